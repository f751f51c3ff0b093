"""Arrays and scalars of numpy as plain values: their type in words, their shape and their memory."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Dict, Optional, Sequence

from hs_job import octets

_KINDS = "biufcmMSUV"  # what lies in an array's own memory, and is no reference


class UnsavableError(ValueError):
    """Of a type whose values are not in the array's memory, or that numpy itself does not know."""


def pack(value: Any) -> Optional[Dict[str, Any]]:
    """None: it is no array and no scalar. A subclass of arrays has more to it than what an array has, and is none. Raises UnsavableError."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, (numpy.str_, numpy.bytes_)):  # as an array it would lose zeros at its end
        own = numpy.str_ if isinstance(value, numpy.str_) else numpy.bytes_
        of = str.__str__(value) if own is numpy.str_ else octets.text(bytes(value))
        return {"scalar": own.__name__, "text": of}
    if isinstance(value, numpy.generic):
        return {"scalar": "", **_array(numpy, numpy.asarray(value))}
    return _array(numpy, value) if type(value) is numpy.ndarray else None


def unpack(saved: Dict[str, Any]) -> Any:
    """Raises ValueError."""
    numpy = importlib.import_module("numpy")
    scalar = saved.get("scalar")
    if scalar == "str_":
        return numpy.str_(saved["text"])
    if scalar == "bytes_":
        return numpy.bytes_(octets.unpacked(saved["text"]))
    found = in_place(saved).copy(order="K")
    return found if scalar is None else found[()]


def in_place(saved: Dict[str, Any]) -> Any:
    """The array in the memory that was saved, for as long as that is there. Raises ValueError."""
    numpy = importlib.import_module("numpy")
    memory = octets.unpacked(saved.get("bytes", ""))
    return numpy.ndarray(tuple(saved["shape"]), type_of(saved["type"]), memory, order=saved.get("order", "C"))


def replaced(saved: Dict[str, Any], array: Any) -> Dict[str, Any]:
    """The same, but for its elements."""
    return {**saved, **_array(importlib.import_module("numpy"), array)}


def _array(numpy: Any, value: Any) -> Dict[str, Any]:
    words = words_for(value.dtype)
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    memory = bytearray(value.nbytes)
    numpy.ndarray(value.shape, value.dtype, memory, order=order)[...] = value
    return {"type": words, "shape": list(value.shape), "order": order, "bytes": octets.packed(memory)}


# --- types -----------------------------------------------------------------------------------------------------------


def words_for(dtype: Any) -> Any:
    """Raises UnsavableError."""
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise UnsavableError(f"of type {dtype}")
    try:
        words = _words(dtype)
        same = type_of(words)
    except (TypeError, ValueError):
        raise UnsavableError(f"of type {dtype}") from None
    if same != dtype or same.isalignedstruct != dtype.isalignedstruct or _own(same) != _own(dtype):
        raise UnsavableError(f"of type {dtype}")
    return words


def _words(dtype: Any) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"each": _words(base), "shape": list(shape)}
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    titles = [field[2] if len(field) > 2 else None for field in fields]
    if any(title is not None and type(title) is not str for title in titles):
        raise ValueError("a field's title is no text")
    return {
        "names": list(dtype.names),
        "types": [_words(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "titles": titles,
        "size": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def type_of(words: Any) -> Any:
    """Raises TypeError or ValueError."""
    numpy = importlib.import_module("numpy")
    if isinstance(words, str):
        found = numpy.dtype(words)
    elif "each" in words:
        found = numpy.dtype((type_of(words["each"]), tuple(words["shape"])))
    else:
        found = numpy.dtype(
            {
                "names": words["names"],
                "formats": [type_of(each) for each in words["types"]],
                "offsets": words["offsets"],
                "titles": words["titles"],
                "itemsize": words["size"],
            },
            align=words["aligned"],
        )
    if found.hasobject or found.kind not in _KINDS:  # what was saved would be taken for addresses
        raise ValueError(f"a checkpoint holds an array of type {found}")
    return found


def _own(dtype: Any) -> Sequence[Any]:
    """What tells types of somebody else's making from numpy's: these are called records, or raw memory."""
    if dtype.subdtype is not None:
        return _own(dtype.subdtype[0])
    fields = [each for name in dtype.names or () for each in _own(dtype.fields[name][0])]
    return [dtype.type, *fields] if dtype.kind == "V" else fields
