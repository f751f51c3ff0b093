"""Gradients that add up for an optimizer which did not step for the newest batch, while another one did: they are state like its own."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Mapping, Set, Tuple

Saved = Dict[str, Dict[int, Any]]  # by name of the optimizer, by number of the parameter


def waiting(optimizers: Any, stepped: Set[int]) -> Set[int]:
    """Parameters, by identity, of no optimizer that has stepped."""
    found: Set[int] = set()
    taken: Set[int] = set()
    for optimizer in optimizers:
        (taken if id(optimizer) in stepped else found).update(id(each) for _, each in numbered(optimizer))
    return found - taken


def capture(objects: Mapping[str, Any], parameters: Set[int], pack: Callable[[Any, str], Any]) -> Saved:
    found: Saved = {}
    for name, thing in objects.items():
        kept = {
            number: pack(each.grad, f"the gradient of {name}[{number}]")
            for number, each in numbered(thing)
            if id(each) in parameters and each.grad is not None
        }
        if kept:
            found[name] = kept
    return found


def put_back(objects: Mapping[str, Any], saved: Saved, unpack: Callable[[Any], Any]) -> None:
    for name, kept in saved.items():
        for number, parameter in numbered(objects[name]):
            if number in kept:
                # A copy: what adds up here is not to change what was saved.
                parameter.grad = unpack(kept[number]).to(parameter.device, copy=True)


def numbered(thing: Any) -> Iterator[Tuple[int, Any]]:
    groups = getattr(thing, "param_groups", None)
    if isinstance(groups, list):
        yield from enumerate(each for group in groups for each in group["params"])
