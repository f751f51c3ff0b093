"""The driver's product names → the short model names users write (`--gpu-type H100`)."""

import re

# Names the rule below gets wrong.
_TABLE = {
    "NVIDIA RTX A6000": "A6000",
    "NVIDIA RTX A5000": "A5000",
    "NVIDIA RTX A4000": "A4000",
}
_VENDOR = {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GRID", "GRAPHICS", "DEVICE"}
_DATACENTER = re.compile(r"[A-Z]{1,2}\d{1,4}[A-Z]?")
_SIZE = re.compile(r"\d+(GB|G|MB)", re.IGNORECASE)
_NOISE = {
    "GENERATION",
    "LAPTOP",
    "GPU",
    "DESIGN",
    "WITH",
    "MAX",
    "Q",
    "EDITION",
    "BLACKWELL",
    "WORKSTATION",
    "SERVER",
}


def short_model(product: str) -> str:
    """ "Tesla V100-SXM2-16GB" → "V100", "NVIDIA GeForce RTX 4090" → "RTX4090"."""
    if product in _TABLE:
        return _TABLE[product]
    words = [word for word in re.split(r"[\s_/-]+", product.strip()) if word and word.upper() not in _VENDOR]
    if words and _DATACENTER.fullmatch(words[0]):
        return words[0]
    kept = [word for word in words if not _SIZE.fullmatch(word) and word.upper() not in _NOISE]
    short = re.sub(r"[^A-Za-z0-9.]", "", "".join(kept))
    return short or "GPU"
