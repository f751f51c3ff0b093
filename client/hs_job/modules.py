"""What a module's state dict leaves out: which parameters learn, and which parts are in training mode. And whether what a new process builds would take it up."""
# Python 3.9 has no strict:
# ruff: noqa: B905

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from hs_job.pack import PackError

Modes = Dict[str, Dict[str, List[bool]]]
Built = Dict[str, List[Any]]


def modes(objects: Mapping[str, Any]) -> Modes:
    return {
        name: {
            "learns": [each.requires_grad for each in module.parameters()],
            "trains": [each.training for each in module.modules()],
        }
        for name, module in _modules(objects)
    }


def put_back(objects: Mapping[str, Any], saved: Modes) -> None:
    """A module that is laid out in another way, as another strategy may have it, is left as its script has built it."""
    for name, module in _modules(objects):
        kept = saved.get(name, {"learns": [], "trains": []})
        parameters, parts = list(module.parameters()), list(module.modules())
        if (len(parameters), len(parts)) != (len(kept["learns"]), len(kept["trains"])):
            continue
        for parameter, learns in zip(parameters, kept["learns"]):
            if parameter.requires_grad is not learns:
                parameter.requires_grad_(learns)
        for part, trains in zip(parts, kept["trains"]):
            if part.training is not trains:
                part.training = trains


def built(objects: Mapping[str, Any]) -> Built:
    """Of what parameters each is. A module that loads in its own way may build what it lacks: then nothing is known."""
    torch = sys.modules.get("torch")
    modules = dict(_modules(objects))
    if any(type(each).load_state_dict is not torch.nn.Module.load_state_dict for each in modules.values()):  # type: ignore[union-attr]
        return {}
    found: Built = {name: [at for at, _ in each.named_parameters()] for name, each in modules.items()}
    for name, thing in objects.items():
        groups = getattr(thing, "param_groups", None)
        if name not in modules and isinstance(groups, list):
            found[name] = [len(group["params"]) for group in groups]
    return found


def check(objects: Mapping[str, Any], then: Built) -> None:
    """Raises PackError where one has other parameters than when it was handed over: a new process would build it without them, and fail where it loads it."""
    now = built(objects) if then else {}
    for name in now:
        if now[name] == then[name]:
            continue
        counts = f"{_count(now[name])}, and {_count(then[name])} when it was handed over"
        raise PackError(
            f"{name} has other parameters than before ({counts}): a new process would build it without"
        )


def _count(parts: List[Any]) -> str:
    if parts and isinstance(parts[0], int):
        return f"{sum(parts)} in {len(parts)} group{'s' if len(parts) > 1 else ''}"
    return str(len(parts))


def _modules(objects: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is not None:
        yield from ((name, each) for name, each in objects.items() if isinstance(each, torch.nn.Module))
