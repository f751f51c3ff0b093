"""Bytes as values that every version of torch takes back: pickled as they are they need a call, which `weights_only` of the older ones refuses."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Union

_LONG = 4096
"""From here on they are a tensor: as text they may take twice the space; each tensor is an entry of the file, of which words of a tokenizer would make many."""


def packed(memory: bytearray) -> Any:
    """Text with a character for each byte, or a tensor; that one is made of this very memory."""
    torch = sys.modules.get("torch")
    if torch is None or len(memory) < _LONG:
        return text(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)


def text(memory: Union[bytes, bytearray]) -> str:
    return memory.decode("latin-1")


def unpacked(saved: Any) -> Union[bytes, memoryview]:
    """Of a tensor its own memory, for as long as that is there. Raises ValueError."""
    if isinstance(saved, str):
        return saved.encode("latin-1")
    torch = sys.modules["torch"]
    if (
        type(saved) is not torch.Tensor
        or saved.dtype != torch.uint8
        or saved.layout != torch.strided
        or saved.device.type != "cpu"
        or saved.dim() != 1
        or not saved.is_contiguous()
    ):
        raise ValueError("what stands for bytes in a checkpoint is no row of them")
    if not len(saved):
        return b""
    return memoryview((ctypes.c_ubyte * len(saved)).from_address(saved.data_ptr()))
