"""Random generators that a script has made for its data: those of torch, of numpy and of Python that lie in a sampler, a dataset or what these keep (transforms, a
dataset inside). How they stand as plain values."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, Iterator, List, Set

from hs_job.pack import pack, unpack

_DEEP = 7  # a dataset, what it is a part of, its transforms, their list, one of them, a part of that, its generator
_WIDE = 64  # longer lists are data
_MOST = 10_000


def among(things: List[Any]) -> Iterator[Any]:
    """Each once, in an order that a new process finds them in, too."""
    seen: Set[int] = set()
    row = [(thing, _DEEP) for thing in things]
    while row and len(seen) < _MOST:
        thing, deep = row.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if _kind(thing):
            yield thing
        elif deep:
            row.extend((each, deep - 1) for each in _parts(thing))


def state(thing: Any) -> Any:
    kind = _kind(thing)
    if kind == "python":
        version, numbers, gauss = thing.getstate()
        return {"kind": kind, "state": [version, list(numbers), gauss]}
    if kind in ("Generator", "RandomState"):
        kept = thing.bit_generator.state if kind == "Generator" else thing.get_state(legacy=False)
        return {"kind": kind, "state": pack(kept, "the state of a generator of numpy's")}
    return thing.get_state()


def set_state(thing: Any, kept: Any) -> None:
    """One of another kind is left as the script has made it."""
    kind = _kind(thing)
    if not isinstance(kept, dict):
        if kind not in ("python", "Generator", "RandomState"):
            thing.set_state(kept)
    elif kept["kind"] != kind:
        return
    elif kind == "python":
        version, numbers, gauss = kept["state"]
        thing.setstate((version, tuple(numbers), gauss))
    elif kind == "RandomState":
        thing.set_state(unpack(kept["state"]))
    elif (found := unpack(kept["state"]))["bit_generator"] == thing.bit_generator.state["bit_generator"]:
        thing.bit_generator.state = found


def anew(kept: Dict[str, Any], seed: int) -> Any:
    """The state of another generator of that kind."""
    if kept["kind"] == "python":
        return state(random.Random(seed))
    numpy = sys.modules["numpy"]
    own = getattr(numpy.random, unpack(kept["state"])["bit_generator"])(seed)
    return state(getattr(numpy.random, kept["kind"])(own))


def _kind(thing: Any) -> str:
    """Empty: it is none. Of its type alone: what stands in for another object may do much when it is asked for its class."""
    kind = type(thing)
    if issubclass(kind, random.Random):
        return "" if issubclass(kind, random.SystemRandom) else "python"
    torch, numpy = sys.modules.get("torch"), getattr(sys.modules.get("numpy"), "random", None)
    if torch is not None and issubclass(kind, torch.Generator):
        return "torch"
    for name in ("Generator", "RandomState") if numpy is not None else ():
        if issubclass(kind, getattr(numpy, name)):
            return name
    return ""


def _parts(thing: Any) -> List[Any]:
    kind = type(thing)
    if kind in (list, tuple, dict):
        held = thing.values() if kind is dict else thing
        return list(held) if len(thing) <= _WIDE else []
    torch = sys.modules.get("torch")
    closed = issubclass(kind, type) or kind.__module__ in ("builtins", "numpy")
    if closed or (torch is not None and issubclass(kind, torch.Tensor)):
        return []
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return []
    return list(found.values()) if type(found) is dict else []
