"""Parameters of a handed-over optimizer that no handed-over module has: a temperature, an image that is optimized, 32-bit weights beside a module's. An optimizer's
state dict leaves out what its parameters are, and a tensor has none of its own to hand over."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterator, Mapping, Set, Tuple

from hs_job import gradients

Saved = Dict[str, Dict[int, Any]]  # by name of the optimizer, by number of the parameter


def capture(objects: Mapping[str, Any], pack: Callable[[Any, str], Any]) -> Saved:
    found: Saved = {}
    for name, number, parameter in _of(objects):
        found.setdefault(name, {})[number] = pack(parameter, f"parameter {number} of {name}")
    return found


def put_back(objects: Mapping[str, Any], saved: Saved, unpack: Callable[[Any], Any]) -> None:
    """Raises ValueError where one is of another shape than it was."""
    for name, number, parameter in _of(objects):
        if number not in saved.get(name, {}):
            continue
        value = unpack(saved[name][number])
        if value.shape != parameter.shape:
            raise ValueError(
                f"parameter {number} of {name} is of shape {list(parameter.shape)}; the checkpoint holds one of {list(value.shape)}"
            )
        with sys.modules["torch"].no_grad():
            parameter.copy_(value)


def parameters(objects: Mapping[str, Any]) -> Set[int]:
    """By identity."""
    return {id(parameter) for _, _, parameter in _of(objects)}


def _of(objects: Mapping[str, Any]) -> Iterator[Tuple[str, int, Any]]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    own = {
        id(each)
        for thing in objects.values()
        if isinstance(thing, torch.nn.Module)
        for each in thing.parameters()
    }
    for name, thing in objects.items():
        for number, parameter in gradients.numbered(thing):
            if id(parameter) not in own:
                yield name, number, parameter
