"""Copies of a job become one again: their checkpoints averaged, as if one process had done all of their steps (HadarE; Hadar, section V).

An agent leaves `gen-<n>/average.json` where several checkpoints make up one; the first process that is to go on from it writes the average there, as
generation n, and takes that up like any other. Tensors of floating point are averaged in double precision, weighted by the steps that each copy did;
all else (whole numbers, learning rates, state of random generators) is the busiest copy's. Steps and batches add up, and a schedule that was handed over is taken on to
where it would stand.
"""
# Descriptors of folders are os; Python 3.9 has no strict:
# ruff: noqa: B905, PTH118

from __future__ import annotations

import hashlib
import importlib
import os
import random
import re
import shutil
import struct
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from hs_job import arrays, dice, rng
from hs_job.files import read_small
from hs_job.pack import versions, with_versions

if TYPE_CHECKING:
    from hs_job.checkpoint import Folder

NAME = "average.json"
_COPY = re.compile(r"copy-(\d+)\.\d+")
_TAG = "__heteroshare__"  # as hs_job.pack marks what is no plain value

Content = Dict[str, Any]


class AverageError(Exception):
    """The parts do not make one: another number of steps must not be gone on from in silence."""


def complete(folder: Folder, generation: int) -> None:
    """Writes the average that is asked for in this generation's folder, if it is not there yet. Raises AverageError."""
    place = os.path.join(folder.path, f"gen-{generation}")
    asked = read_small(place, NAME)
    if asked is None or os.path.lexists(os.path.join(place, folder.node.manifest)):
        return
    try:
        steps = [int(part["steps"]) for part in asked["parts"]]
        kept = [folder.at(str(part["folder"])).content(int(part["generation"])) for part in asked["parts"]]
        content = as_copy(
            merged(kept, steps, int(asked["step"])),
            int(asked.get("copy", 0)),
            int(asked.get("copies", 1)),
            int(asked.get("beside", sys.maxsize)),
        )
    except Exception as error:
        raise AverageError(
            f"checkpoints of {len(asked.get('parts', ()))} copies cannot be averaged: {error}"
        ) from error
    folder.write(generation, int(asked["step"]), content)
    if folder.leads:
        _clear(place, folder.path, int(asked.get("before", 0)))


def _clear(place: str, own: str, before: int) -> None:
    """The parts, and what copies wrote in earlier epochs."""
    for name in os.listdir(place):  # noqa: PTH208
        if name.startswith("part-"):
            shutil.rmtree(os.path.join(place, name), ignore_errors=True)
    whole = os.path.dirname(own) if _COPY.fullmatch(os.path.basename(own)) else own  # noqa: PTH119, PTH120
    for name in os.listdir(whole):  # noqa: PTH208
        copy = _COPY.fullmatch(name)
        if copy is not None and int(copy.group(1)) < before:
            shutil.rmtree(os.path.join(whole, name), ignore_errors=True)


def merged(kept: Sequence[Content], steps: Sequence[int], step: int) -> Content:
    """One content, at `step`, of those of copies that did so many `steps` each since they were one. Raises ValueError where they do not match."""
    if not kept or len(kept) != len(steps) or min(steps) < 0:
        raise ValueError(f"{len(kept)} copies that did {list(steps)} steps")
    total = sum(steps)
    weights = [each / total for each in steps] if total else [1.0, *[0.0] * (len(steps) - 1)]
    busiest = _busiest_of(kept, steps)
    first = kept[busiest]
    torch = sys.modules.get("torch")
    if any(content["objects"].keys() != first["objects"].keys() for content in kept):
        raise ValueError("they were handed other objects")
    data = _position(kept, first)
    behind = _behind(kept, first, data)
    whole = schedules(first)  # learning rates are no parameters, though they may be tensors
    found = {
        **first,
        "step": step,
        "objects": {
            name: value
            if name in whole
            else _mean([content["objects"][name] for content in kept], weights, busiest, name, torch)
            for name, value in first["objects"].items()
        },
        "loose": _mean([content.get("loose", {}) for content in kept], weights, busiest, "loose", torch),
        "data": data,
        "behind": behind,
    }
    found["began"] = _began(found, behind)
    return found


def _busiest_of(kept: Sequence[Content], steps: Sequence[int]) -> int:
    """But none that has ended an epoch which all together have not, as it began further on in it: its schedules can't be taken back."""
    order = sorted(range(len(steps)), key=lambda at: (-steps[at], at))
    position = _position(kept, kept[order[0]])
    if position is None:
        return order[0]
    return next((at for at in order if kept[at]["data"]["epoch"] <= position["epoch"]), order[0])


def as_copy(content: Content, copy: int, copies: int, beside: int = sys.maxsize) -> Content:
    """What copy number `copy` goes on from: random numbers of its own, so that it does not train on the same batches as the others.

    A loader that does not shuffle is taken on by its part of what is left of the epoch, but by no more steps than those `beside` it are to do: in the
    last epoch its script would end before its own were done.
    """
    if copies < 2 or copy < 1:
        return content
    found = {**content, "rng": _reseed(content["rng"], content["step"], copy)}
    data = content["data"]
    if data is not None:
        moved = dict(data)
        if data["made"]:
            moved.update(made=_reseed(data["made"], content["step"], copy), begun=None)
        if data.get("in_order") and data.get("batches"):
            moved["fetched"] += min(copy * max(0, data["batches"] - data["fetched"]) // copies, beside)
        found["data"] = moved
        found["began"] = {**content["began"], "data": moved, "all": data}
    return found


# --- values -------------------------------------------------------------------------------------------------------


def _mean(values: List[Any], weights: Sequence[float], busiest: int, where: str, torch: Any) -> Any:
    first = values[busiest]
    kind = type(first)
    if any(type(value) is not kind for value in values):
        raise ValueError(f"{where} is of several types in the copies")
    if torch is not None and isinstance(first, torch.Tensor):
        return _mean_tensor(values, weights, first, where, torch)
    if isinstance(first, dict):
        if first.get(_TAG) == "array":
            return _mean_array(values, weights, first, where)
        if first.get(_TAG) == "octets":
            return first
        if odd := _odd(values, first):
            if not _holds_tensors(values, torch):
                return first  # it grows: no parameter either
            raise ValueError(f"the copies differ in {odd} of {where}")
        ways: Dict[str, Callable[..., Any]] = _OF_OPTIMIZER if _OF_OPTIMIZER.keys() <= first.keys() else {}

        def mean(key: Any) -> Any:
            way: Callable[..., Any] = ways.get(key, _mean)
            return way([value[key] for value in values], weights, busiest, f"{where}[{key!r}]", torch)

        return with_versions(kind((key, mean(key)) for key in first), versions(first))
    if kind in (list, tuple):
        if any(len(value) != len(first) for value in values):
            return first  # a list that grows is no parameter
        return kind(
            _mean([value[at] for value in values], weights, busiest, f"{where}[{at}]", torch)
            for at in range(len(first))
        )
    return first


def _odd(values: List[Any], first: Any) -> str:
    """Entries that some of them have and others do not; empty: there are none."""
    if first.get(_TAG) == "dict":
        return "entries" if any(_keys(value) != _keys(first) for value in values) else ""
    odd = sorted({str(key) for value in values for key in value.keys() ^ first.keys()})
    return f"entries {odd}" if odd else ""


def _keys(saved: Content) -> List[Any]:
    """Of a dict whose keys are not plain."""
    return [key for key, _ in saved.get("items", ())]


def _holds_tensors(value: Any, torch: Any) -> bool:
    """Or arrays."""
    if isinstance(value, dict):
        return value.get(_TAG) == "array" or any(_holds_tensors(each, torch) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensors(each, torch) for each in value)
    return torch is not None and isinstance(value, torch.Tensor)


def _busiest(values: List[Any], _weights: Sequence[float], busiest: int, *_: Any) -> Any:
    """Of what an optimizer says of its groups: rates and the like are no parameters."""
    return values[busiest]


def _union(values: List[Any], weights: Sequence[float], busiest: int, where: str, torch: Any) -> Any:
    """What optimizers keep of parameters, which one has only once it has stepped it: the mean of those that have."""
    if any(type(value) is not dict or _TAG in value for value in values):
        return _mean(values, weights, busiest, where, torch)
    found = {}
    for key in dict.fromkeys(key for value in values for key in value):
        have = [at for at, value in enumerate(values) if key in value]
        total = sum(weights[at] for at in have)
        own = [weights[at] / total if total else float(at == have[0]) for at in have]
        most = have.index(busiest) if busiest in have else own.index(max(own))
        found[key] = _mean([values[at][key] for at in have], own, most, f"{where}[{key!r}]", torch)
    return found


_OF_OPTIMIZER: Dict[str, Callable[..., Any]] = {"param_groups": _busiest, "state": _union}


def _mean_tensor(values: List[Any], weights: Sequence[float], first: Any, where: str, torch: Any) -> Any:
    if not (first.is_floating_point() or first.is_complex()):
        return first
    if any(value.shape != first.shape for value in values):
        raise ValueError(f"{where} has shapes {sorted({tuple(value.shape) for value in values})}")
    wide = torch.complex128 if first.is_complex() else torch.float64
    if first.layout is not torch.strided:
        return _mean_sparse(values, weights, first, wide)
    total = torch.zeros(first.shape, dtype=wide, device=first.device)
    for value, weight in zip(values, weights):
        if weight:
            total += weight * value.to(wide)
    return total.to(first.dtype)


def _mean_sparse(values: List[Any], weights: Sequence[float], first: Any, wide: Any) -> Any:
    """In its own layout: only into that it is loaded, and as a whole it may be far too large."""
    parts = [weight * value.to_sparse().to(wide) for value, weight in zip(values, weights) if weight]
    total = sum(parts[1:], parts[0]).to(first.dtype).coalesce()
    if first.layout is total.layout:
        return total
    blocks = tuple(first.values().shape[1:3]) if "bs" in str(first.layout) else None
    return total.to_sparse(layout=first.layout, blocksize=blocks)


def _mean_array(values: List[Any], weights: Sequence[float], first: Any, where: str) -> Any:
    numpy = importlib.import_module("numpy")
    if "scalar" in first or (kind := arrays.type_of(first["type"]).kind) not in "fc":
        return first
    if any((value.get("type"), value.get("shape")) != (first["type"], first["shape"]) for value in values):
        raise ValueError(f"{where} has several types or shapes in the copies")
    wide = numpy.complex128 if kind == "c" else numpy.float64
    total = sum(
        weight * arrays.in_place(value).astype(wide) for value, weight in zip(values, weights) if weight
    )
    return arrays.replaced(first, numpy.asarray(total, arrays.type_of(first["type"])))


# --- where the data stand -----------------------------------------------------------------------------------------


def _began(content: Content, behind: Optional[Dict[str, int]] = None) -> Dict[str, Any]:
    counts = {name: count + (behind or {}).get(name, 0) for name, count in schedules(content).items()}
    return {"data": content["data"], "all": content["data"], "schedules": counts}


def _batches(position: Optional[Dict[str, Any]], each: int) -> int:
    return 0 if position is None else max(0, position["epoch"]) * each + position["fetched"]


def _position(kept: Sequence[Content], first: Content) -> Optional[Dict[str, Any]]:
    """Where a loader stands that has given all that the copies' have given since they began."""
    data: Optional[Dict[str, Any]] = first["data"]
    each = data.get("batches") if data is not None else None
    if data is None or not each or len(kept) == 1:
        return data
    began = first.get("began") or {}
    total = _batches(began.get("all"), each)
    for content in kept:
        own = (content.get("began") or {}).get("data")
        total += max(0, _batches(content["data"], each) - _batches(own, each))
    epoch, fetched = divmod(total, each)
    if fetched == 0 and epoch > 0:
        epoch, fetched = epoch - 1, each  # the epoch's last batch is done, its end not seen
    # Another epoch is shuffled anew: from where the busiest copy's generators stand.
    generators = {} if epoch == max(0, data["epoch"]) else {"made": first["rng"], "begun": None}
    return {**data, "epoch": epoch, "fetched": fetched, **generators}


def schedules(content: Content) -> Dict[str, int]:
    """How often each schedule of learning rates has stepped."""
    found = {}
    for name, value in content["objects"].items():
        count = value.get("last_epoch") if isinstance(value, dict) else None
        if type(count) is int:
            found[name] = count
    return found


def _behind(kept: Sequence[Content], first: Content, data: Optional[Dict[str, Any]]) -> Dict[str, int]:
    """Steps that the busiest copy's schedules lack: those that the others have taken; where they step with epochs, those of all together."""
    before = (first.get("began") or {}).get("schedules", {})
    found = {}
    for name, count in schedules(first).items():
        start = before.get(name, 0)
        epochs = data is not None and count == max(0, first["data"]["epoch"])
        if epochs and data is not None:
            target = int(data["epoch"])
        else:
            target = start + sum(max(0, schedules(content).get(name, 0) - start) for content in kept)
        if target > count:
            found[name] = target - count
    return found


# --- random numbers -----------------------------------------------------------------------------------------------


def _reseed(state: Dict[str, Any], step: int, copy: int) -> Dict[str, Any]:
    """Every generator in another place: the same for the same step, copy and generators, another for each copy."""
    digest = hashlib.sha256(repr((step, copy, state.get("python"))).encode())
    torch = sys.modules.get("torch")
    if torch is not None:
        for tensor in (*state.get("own", ()), *((state["torch"],) if "torch" in state else ())):
            if not isinstance(tensor, dict):
                digest.update(bytes(tensor.tolist()))
    seeds = random.Random(digest.digest())
    version, numbers, gauss = random.Random(seeds.getrandbits(64)).getstate()
    found: Dict[str, Any] = {**state, "python": [version, list(numbers), gauss]}
    if torch is not None:

        def anew(tensor: Any) -> Any:
            if isinstance(tensor, dict):
                return dice.anew(tensor, seeds.getrandbits(32))
            if tensor.numel() == 16:  # a CUDA generator: seed and offset
                made = struct.pack("<qq", seeds.getrandbits(62), 0)
                return torch.tensor(list(made), dtype=torch.uint8, device="cpu")
            return torch.Generator().manual_seed(seeds.getrandbits(62)).get_state()

        found["own"] = [anew(each) for each in state.get("own", ())]
        if "torch" in state:
            found["torch"] = anew(state["torch"])
        if "cuda" in state:
            found["cuda"] = [anew(each) for each in state["cuda"]]
    if "numpy" in state:
        numpy = importlib.import_module("numpy")
        kept, seed = state["numpy"], seeds.getrandbits(32)
        own = seed if isinstance(kept, list) else getattr(numpy.random, kept["bit_generator"])(seed)
        found["numpy"] = rng.of_numpy(numpy.random.RandomState(own).get_state(legacy=False))
    return found
