"""The state of every random generator that training draws from, as plain values."""
# Python 3.9 has no strict:
# ruff: noqa: B905

from __future__ import annotations

import random
import sys
from typing import Any, Dict, Iterator, List

from hs_job import dice
from hs_job.pack import pack, unpack


def generators(loader: Any) -> List[Any]:
    """Those that a DataLoader and its samplers were given, and those that its samplers and its dataset keep, each once."""
    found: List[Any] = []
    owners = [loader, *samplers(loader)]
    given = (getattr(owner, "generator", None) for owner in owners)
    kept = dice.among([*owners[1:], getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)])
    for generator in (*(each for each in given if hasattr(each, "get_state")), *kept):
        if not any(generator is each for each in found):
            found.append(generator)
    return found


def samplers(loader: Any) -> Iterator[Any]:
    """Its own, and those of its batches: a sampler of batches may be around another one."""
    yield getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    while batches is not None:
        yield batches
        yield getattr(batches, "sampler", None)
        batches = getattr(batches, "batch_sampler", None)


def capture(torch: Any, own: List[Any]) -> Dict[str, Any]:
    version, numbers, gauss = random.getstate()
    state: Dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "own": [dice.state(each) for each in own],
    }
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = of_numpy(numpy.random.get_state(legacy=False))
    return state


def of_numpy(kept: Dict[str, Any]) -> Any:
    """A list where it is of numpy's own choice, else what the script's choice of a generator keeps."""
    if kept["bit_generator"] != "MT19937":
        return pack(kept, "the state of numpy's generator")
    keys, position = kept["state"]["key"], kept["state"]["pos"]
    return ["MT19937", keys.tolist(), int(position), int(kept["has_gauss"]), float(kept["gauss"])]


def put_back(torch: Any, own: List[Any], state: Dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    for generator, kept in zip(own, state["own"]):
        dice.set_state(generator, kept)
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            for device, kept in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(kept, device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kept = state["numpy"]
        numpy.random.set_state(tuple(kept) if isinstance(kept, list) else unpack(kept))
