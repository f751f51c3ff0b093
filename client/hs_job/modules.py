"""What a module's state dict leaves out: which parameters learn, and which parts are in training mode. And whether what a new process builds would take it up."""
# Python 3.9 has no strict; how a module is loaded is private to torch:
# ruff: noqa: B905, SLF001

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from hs_job.gradients import numbered
from hs_job.pack import PackError

Modes = Dict[str, Dict[str, List[bool]]]
Built = Dict[str, List[Any]]
Shape = Optional[str]  # in words; None: it may be loaded with any
Shapes = Dict[str, Dict[str, Shape]]

_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
_PLAIN = {f"torch.nn.modules.{name}" for name in ("module", "batchnorm", "instancenorm")}


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


def shapes(objects: Mapping[str, Any]) -> Shapes:
    """Of the parameters and buffers of each module that are in its state dict, as far as they are loaded into what is there."""
    return {name: dict(_shapes(module, "", known=True)) for name, module in _modules(objects)}


def check(objects: Mapping[str, Any], then: Built, formed: Shapes) -> None:
    """Raises PackError where one has other parameters or buffers than when it was handed over: a new process would build it without them, and fail where it loads it."""
    now = built(objects) if then else {}
    for name in now:
        if now[name] == then[name]:
            continue
        is_now, was = _count(now[name]), _count(then[name])
        if is_now == was:
            is_now, was = _first_unlike(now[name], then[name])
        counts = f"{is_now}, and {was} when it was handed over"
        raise PackError(
            f"{name} has other parameters than before ({counts}): a new process would build it without"
        )
    for name, found in shapes(objects).items() if then else ():
        _check_shapes(name, found, formed[name])
    for name, thing in objects.items():
        _check_kept(name, thing)


def _check_shapes(name: str, now: Dict[str, Shape], then: Dict[str, Shape]) -> None:
    for at in {**then, **now}:
        is_now, was = (each.get(at, "missing") for each in (now, then))
        if is_now != was and None not in (is_now, was):
            raise PackError(
                f"{name}.{at} is {is_now}, and was {was} when it was handed over: a new process would build it as it was"
            )


def _check_kept(name: str, optimizer: Any) -> None:
    """What it keeps for a parameter that was replaced has no number in its state dict: torch fails with a KeyError."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(type(optimizer), "state_dict", None) is not torch.optim.Optimizer.state_dict:
        return
    own = {id(each) for _, each in numbered(optimizer)}
    if any(isinstance(each, torch.Tensor) and id(each) not in own for each in optimizer.state):
        raise PackError(
            f"{name} keeps a state for a parameter that is in none of its groups any more, as where that was replaced: it has no state dict so"
        )


def _shapes(module: Any, at: str, *, known: bool) -> Iterator[Tuple[str, Shape]]:
    known = known and _is_loaded_as_it_is(module)
    passing = getattr(module, "_non_persistent_buffers_set", ())
    buffers = ((name, each) for name, each in module._buffers.items() if name not in passing)
    for name, tensor in (*module._parameters.items(), *buffers):
        if tensor is not None:
            yield at + name, f"of shape {list(tensor.shape)}" if known else None
    for name, child in module._modules.items():
        if child is not None:
            yield from _shapes(child, f"{at}{name}.", known=known)


def _is_loaded_as_it_is(module: Any) -> bool:
    """Neither it nor a hook has a way of its own, as lazy modules do until their first batch."""
    ways = (
        getattr(type(module), name) for name in ("state_dict", "_save_to_state_dict", "_load_from_state_dict")
    )
    hooks = (getattr(module, name, None) for name in _HOOKS)
    return all(each.__module__ in _PLAIN for each in ways) and not any(hooks)


def _first_unlike(now: List[Any], then: List[Any]) -> Tuple[Any, Any]:
    pairs = (*zip(sorted(now), sorted(then)), *zip(now, then))  # unlike in name, else only in order
    return next(pair for pair in pairs if pair[0] != pair[1])


def _count(parts: List[Any]) -> str:
    if parts and isinstance(parts[0], int):
        return f"{sum(parts)} in {len(parts)} group{'s' if len(parts) > 1 else ''}"
    return str(len(parts))


def _modules(objects: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is not None:
        yield from ((name, each) for name, each in objects.items() if isinstance(each, torch.nn.Module))
