"""Whether a script has ended for want of device memory, which others may have held, and how much it had asked for."""

from __future__ import annotations

from typing import Iterator, Optional

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ASKED = r"ried to allocate (\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_MOST_CAUSES = 20


def asked_bytes(error: Optional[BaseException]) -> int:
    """In vain, by what ended the script; 0: that was something else, 1: it does not say how much."""
    for cause in _causes(error):
        text = str(cause)
        if _is_lack(cause, text):
            return _said(text)
    return 0


def _causes(error: Optional[BaseException]) -> Iterator[BaseException]:
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _is_lack(error: BaseException, text: str) -> bool:
    """torch's own kind, in this process or told of one that it has spawned; what CUDA and its libraries say where they want memory for themselves."""
    if "OutOfMemoryError" in type(error).__name__ or "OutOfMemoryError: " in text:
        return True
    return isinstance(error, RuntimeError) and ("out of memory" in text.lower() or "ALLOC_FAILED" in text)


def _said(text: str) -> int:
    import re

    found = re.search(_ASKED, text)
    return max(1, int(float(found.group(1)) * _UNITS[found.group(2)])) if found else 1
