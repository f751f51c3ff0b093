"""State dicts as values that `torch.load(weights_only=True)` takes back: no pickled classes, nothing that runs code."""
# Versions of modules are private to torch:
# ruff: noqa: SLF001

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Callable, Dict, Optional, Tuple

from hs_job import shards

_TAG = "__heteroshare__"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_MOST_BITS = 255 * 8 - 1  # longer ones are pickled in a way that torch does not load


class PackError(TypeError):
    """Something handed over holds what no checkpoint can: what only pickle could save, or a part where the whole is needed."""


def pack(
    value: Any, where: str, host_of: Optional[Callable[[Any], Any]] = None, *, whole: bool = False
) -> Any:
    """`host_of` gives a tensor whose memory was swapped out as it is on the host, None for others. `whole`: a part of a tensor is no use."""
    return _Packer(host_of, whole).pack(value, where)


class _Packer:
    def __init__(self, host_of: Optional[Callable[[Any], Any]], whole: bool) -> None:
        self._whole = whole
        self._torch = sys.modules.get("torch")
        self._host_of = host_of
        self._seen: Dict[Tuple[Any, ...], Any] = {}

    def pack(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return self._plain(value, where)
        torch = self._torch
        if torch is not None:
            if isinstance(value, torch.Tensor):
                return self._tensor(value, where)
            if kind in (torch.dtype, torch.device, torch.Size):
                return value
        if kind in (dict, OrderedDict):
            packed = kind(
                (self._key(key, where), self.pack(each, f"{where}[{key!r}]")) for key, each in value.items()
            )
            return with_versions(packed, self.pack(versions(value), where))
        if kind in (list, tuple):
            return kind(self.pack(each, f"{where}[{index}]") for index, each in enumerate(value))
        return self._tagged(kind, value, where)

    def _tagged(self, kind: Any, value: Any, where: str) -> Any:
        if kind is Counter:
            return {_TAG: "counter", "items": [[self._key(k, where), v] for k, v in value.items()]}
        if kind is defaultdict:  # its factory is the loading object's own business
            return self.pack(dict(value), where)
        if kind in (set, frozenset):
            return {_TAG: kind.__name__, "items": [self._key(each, where) for each in value]}
        if kind is deque:
            return {_TAG: "deque", "items": [self.pack(each, where) for each in value], "most": value.maxlen}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and isinstance(value.item(), _PLAIN):
            return value.item()
        if numpy is not None and kind is numpy.ndarray and value.dtype.kind in "biufc":
            array = {_TAG: "array", "type": value.dtype.str, "shape": list(value.shape)}
            return {**array, "bytes": value.tobytes()} if value.size else array
        raise PackError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}: only tensors, numbers, text and containers of them can be saved"
        )

    def _plain(self, value: Any, where: str) -> Any:
        if type(value) is bytes and not value:  # pickled as a call, which torch does not load
            return {_TAG: "bytes"}
        if type(value) is int and value.bit_length() > _MOST_BITS:
            raise PackError(
                f"{where} is a whole number of {value.bit_length()} bits: at most {_MOST_BITS} can be saved"
            )
        return value

    def _key(self, key: Any, where: str) -> Any:
        if type(key) in _PLAIN or (type(key) is tuple and all(type(each) in _PLAIN for each in key)):
            for each in key if type(key) is tuple else (key,):
                if self._plain(each, f"a key of {where}") is not each:
                    raise PackError(f"a key of {where} is {each!r}: expected numbers or text")
            return key
        raise PackError(f"a key of {where} is a {type(key).__qualname__}: expected numbers or text")

    def _tensor(self, tensor: Any, where: str) -> Any:
        torch = self._torch
        assert torch is not None
        if shards.is_spread(tensor):
            if self._whole:
                raise PackError(
                    f"{where} is spread over the ranks (DTensor): a job that may go on with other ranks, or in another strategy, has to hand over whole state dicts"
                )
            return {
                _TAG: shards.TAG,
                "part": self._tensor(shards.local(tensor), where),
                **shards.describe(tensor),
            }
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise PackError(f"{where} is a {type(tensor).__qualname__}: only plain tensors can be saved")
        tensor = tensor.detach()
        host = self._host_of(tensor) if self._host_of is not None else None
        if host is not None:
            return host
        if tensor.device.type == "cpu" or tensor.layout is not torch.strided:
            return tensor.cpu()
        key = (
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        if key not in self._seen:  # tied weights stay tied
            self._seen[key] = tensor.cpu()
        return self._seen[key]


def unpack(value: Any, layouts: Optional[shards.Layouts] = None) -> Any:
    """`layouts`: where parts of tensors go. Raises ValueError where one has no place."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(unpack(each, layouts) for each in value)
    if kind not in (dict, OrderedDict):
        return value
    tag = value.get(_TAG)
    if tag is None:
        found = kind((key, unpack(each, layouts)) for key, each in value.items())
        return with_versions(found, unpack(versions(value)))
    if tag == "bytes":
        return b""
    if tag == "counter":
        return Counter(dict(value["items"]))
    if tag in ("set", "frozenset"):
        return {"set": set, "frozenset": frozenset}[tag](value["items"])
    if tag == "deque":
        return deque((unpack(each, layouts) for each in value["items"]), value["most"])
    if tag == "array":
        import importlib

        numpy = importlib.import_module("numpy")
        if "bytes" not in value:
            return numpy.empty(value["shape"], value["type"])
        return numpy.frombuffer(value["bytes"], dtype=value["type"]).reshape(value["shape"]).copy()
    if tag == shards.TAG and layouts is not None:
        return layouts.put(value["part"], value)
    raise ValueError(f"unknown mark {tag!r} in a checkpoint")


def versions(value: Any) -> Any:
    """Of the modules that a module's `state_dict` is of: by these they tell what earlier ones of them have written. None: it is not of one."""
    return getattr(value, "_metadata", None)


def with_versions(state: Any, found: Any) -> Any:
    if found is not None:
        state._metadata = found
    return state
