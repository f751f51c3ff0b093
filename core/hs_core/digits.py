"""Whole numbers as people type them: Python itself takes superscripts for digits, and refuses to read too many of them."""


def whole(text: str, most: int) -> int | None:
    """0 to `most`, in ASCII digits and nothing else; None: it is none."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(most)) and int(digits) <= most else None
