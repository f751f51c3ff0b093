"""State dicts as values that `torch.load(weights_only=True)` takes back: no pickled classes, nothing that runs code.

What it takes back grows with the versions of torch. So only what all of them take is pickled (tensors, numbers, text, and their containers), and
everything else is described by that.
"""
# Versions of modules are private to torch:
# Python 3.9 has no strict:
# ruff: noqa: SLF001, B905

from __future__ import annotations

import io
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Callable, Dict, Optional, Set, Tuple

from hs_job import arrays, octets, shards

_TAG = "__heteroshare__"
_PLAIN = (type(None), bool, int, float, str)
_TYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
_loadable: Set[Any] = {f"torch.{name}" for name in _TYPES}
"""Of tensors, as every version of torch takes them back; and forms of others that were tried."""
_SAVED = "only tensors, numbers, text, bytes, arrays of these, and containers of them can be saved"
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
            if kind is torch.Size:
                return value
            if kind in (torch.dtype, torch.device):
                return {_TAG: kind.__name__, "name": str(value)}
        if kind in (dict, OrderedDict):
            return self._dict(value, where)
        if kind in (list, tuple):
            return kind(self.pack(each, f"{where}[{index}]") for index, each in enumerate(value))
        return self._tagged(kind, value, where)

    def _tagged(self, kind: Any, value: Any, where: str) -> Any:
        if kind is Counter:
            items = [[self._key(k, where), self.pack(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {_TAG: "counter", "items": items}
        if kind is defaultdict:  # its factory is the loading object's own business
            return self.pack(dict(value), where)
        if kind in (set, frozenset):
            return {_TAG: kind.__name__, "items": [self._key(each, where) for each in value]}
        if kind is deque:
            return {_TAG: "deque", "items": [self.pack(each, where) for each in value], "most": value.maxlen}
        if kind is bytes or kind is bytearray:
            return {_TAG: "octets", "kind": kind.__name__, "of": octets.packed(bytearray(value))}
        if kind is complex:
            return {_TAG: "complex", "parts": [value.real, value.imag]}
        try:
            array = arrays.pack(value)
        except arrays.UnsavableError as error:
            raise PackError(f"{where} is an array {error}: {_SAVED}") from None
        if array is not None:
            return {_TAG: "array", **array}
        raise PackError(f"{where} is a {kind.__module__}.{kind.__qualname__}: {_SAVED}")

    def _dict(self, value: Any, where: str) -> Any:
        kind = type(value)
        items = [(self._key(key, where), self.pack(each, f"{where}[{key!r}]")) for key, each in value.items()]
        told = self.pack(versions(value), where)
        if _TAG not in value and all(found == key for (found, _), key in zip(items, value)):
            return with_versions(kind(items), told)
        return {_TAG: "dict", "ordered": kind is OrderedDict, "items": items, "versions": told}

    def _plain(self, value: Any, where: str) -> Any:
        if type(value) is int and value.bit_length() > _MOST_BITS:
            raise PackError(
                f"{where} is a whole number of {value.bit_length()} bits: at most {_MOST_BITS} can be saved"
            )
        return value

    def _key(self, key: Any, where: str) -> Any:
        """Other than the key itself where that is not plain."""
        kind = type(key)
        if kind in _PLAIN:
            return self._plain(key, f"a key of {where}")
        if kind is tuple:
            return tuple(self._key(each, where) for each in key)
        if kind is bytes:
            return {_TAG: "octets", "kind": "bytes", "of": octets.text(key)}
        if kind is complex:
            return self.pack(key, where)
        raise PackError(f"a key of {where} is a {kind.__qualname__}: expected numbers or text")

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
        self._try(tensor, where)
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

    def _try(self, tensor: Any, where: str) -> None:
        """Whether this version of torch takes back what it writes of such a tensor, before it is relied on: there are types that it does not."""
        torch = self._torch
        assert torch is not None
        strided = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
        form: Any = str(tensor.dtype)
        if not strided:
            form = (form, tensor.layout, tensor.is_quantized and tensor.qscheme(), tensor.is_nested)
        if form in _loadable:
            return
        file = io.BytesIO()
        try:
            torch.save(tensor.new_empty(0, device="cpu") if strided else tensor.cpu(), file)
            file.seek(0)
            load(file)
        except Exception:
            raise PackError(
                f"{where} is a tensor of type {tensor.dtype} ({tensor.layout}), which torch {torch.__version__} does not take back from a checkpoint"
            ) from None
        _loadable.add(form)


def load(file: Any) -> Any:
    """What was packed and saved there. What torch warns of meanwhile (that it checks sparse tensors, 2.14) is not the script's doing, nor an error where it makes warnings errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sys.modules["torch"].load(file, map_location="cpu", weights_only=True)


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
    if tag == "dict":
        made = OrderedDict if value["ordered"] else dict
        items = ((unpack(key), unpack(each, layouts)) for key, each in value["items"])
        return with_versions(made(items), unpack(value["versions"]))
    if tag == "counter":
        return Counter({unpack(key): unpack(each, layouts) for key, each in value["items"]})
    if tag in ("set", "frozenset"):
        return {"set": set, "frozenset": frozenset}[tag](map(unpack, value["items"]))
    if tag == "deque":
        return deque((unpack(each, layouts) for each in value["items"]), value["most"])
    if tag == "array":
        return arrays.unpack(value)
    if tag == "octets":
        return {"bytes": bytes, "bytearray": bytearray}[value["kind"]](octets.unpacked(value["of"]))
    if tag == "complex":
        return complex(*value["parts"])
    if tag in ("dtype", "device"):
        return _of_torch(tag, value["name"])
    if tag == shards.TAG and layouts is not None:
        return layouts.put(value["part"], value)
    raise ValueError(f"unknown mark {tag!r} in a checkpoint")


def _of_torch(tag: str, name: str) -> Any:
    torch = sys.modules["torch"]
    if tag == "device":
        return torch.device(name)
    found = getattr(torch, name.partition(".")[2], None)
    if type(found) is not torch.dtype:
        raise ValueError(
            f"a checkpoint holds a type of tensors that torch {torch.__version__} does not know: {name}"
        )
    return found


def versions(value: Any) -> Any:
    """Of the modules that a module's `state_dict` is of: by these they tell what earlier ones of them have written. None: it is not of one."""
    return getattr(value, "_metadata", None)


def with_versions(state: Any, found: Any) -> Any:
    if found is not None:
        state._metadata = found
    return state
