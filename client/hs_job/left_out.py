"""What trains along and is in nothing that was handed over: schedules of handed-over optimizers, scalers of losses, averages of weights; layers whose parameters are saved with their optimizer, but not what
else they keep (running means). A new process begins them anew, and a loss curve does not show it at once."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

Kind = Tuple[Callable[[Any], bool], str]
Kinds = Dict[Any, Kind]

_LAYER: Kind = (lambda _: True, "the module that it is a part of, by a name")


@contextlib.contextmanager
def watched(loose: Set[int]) -> Iterator[List[Any]]:
    """Those that are not asked for their state meanwhile, once that is over. `loose`: parameters, by identity, that no handed-over module has."""
    kinds, layers = tuple(_kinds()), _layers() if loose else ()
    found = [
        each
        for each in gc.get_objects()
        if issubclass(type(each), kinds) or (issubclass(type(each), layers) and _keeps_more(each, loose))
    ]
    asked: Set[int] = set()
    left: List[Any] = []
    for each in found:
        vars(each)["state_dict"] = _Asks(each, asked)
    try:
        yield left
    finally:
        for each in found:
            vars(each).pop("state_dict", None)
    left.extend(each for each in found if id(each) not in asked)


class _Asks:
    """In the place of a thing's `state_dict`, until it is asked for: a schedule's is of all that lies in it."""

    def __init__(self, thing: Any, asked: Set[int]) -> None:
        self._thing = thing
        self._asked = asked

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        del vars(self._thing)["state_dict"]
        self._asked.add(id(self._thing))
        return self._thing.state_dict(*args, **kwargs)


def in_use(things: List[Any], is_saved: Callable[[Any], bool]) -> Iterator[Tuple[Any, str]]:
    """Of them those that have done something, with what they should be handed over as. `is_saved`: whether an optimizer is."""
    kinds = _kinds()
    inside = {id(part) for each in things for part in getattr(each, "_schedulers", ())}
    for each in things:
        if id(each) in inside:
            continue
        optimizer, averaged = getattr(each, "optimizer", None), getattr(each, "module", None)
        if (optimizer is not None and not is_saved(optimizer)) or (
            averaged is not None and is_saved(averaged)
        ):
            continue
        works, name = next((kinds[kind] for kind in kinds if isinstance(each, kind)), _LAYER)
        if works(each):
            yield each, name


def _layers() -> Tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return (torch.nn.Module,) if torch is not None else ()


def _keeps_more(layer: Any, loose: Set[int]) -> bool:
    """It has buffers beside such parameters."""
    own = vars(layer)
    if not any(id(each) in loose for each in own.get("_parameters", {}).values()):
        return False
    passing = own.get("_non_persistent_buffers_set", ())
    return any(each is not None and name not in passing for name, each in own.get("_buffers", {}).items())


def _kinds() -> Kinds:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: Kinds = {torch.optim.lr_scheduler.LRScheduler: (lambda one: one.last_epoch > 0, "scheduler=")}
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if scaler is not None:
        found[scaler] = (lambda one: one.is_enabled() and one._scale is not None, "scaler=")  # noqa: SLF001
    averages = sys.modules.get("torch.optim.swa_utils")
    if averages is not None:
        found[averages.AveragedModel] = (lambda one: bool(one.n_averaged > 0), "average=")
    return found
