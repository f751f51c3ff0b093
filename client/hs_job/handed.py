"""What the script handed over with `hs_job.state`: captured as plain values, loaded into the same objects of a new process."""
# Torch's iterator says only there how far it is:
# Python 3.9 has no strict:
# ruff: noqa: SLF001, B905

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
import threading
from collections import OrderedDict, deque
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from hs_job import advice, cycled, gradients, left_out, loose, modules, rng, runtime, wrapped, zero
from hs_job.inject import hook_torch
from hs_job.keeper import Keeper
from hs_job.pack import PackError, pack, unpack
from hs_job.position import Data
from hs_job.runtime import Runtime
from hs_job.shards import Layouts, tensors_in

FORMAT = 1


class State:
    """Where to begin: all zero in a fresh run, and where there is no agent."""

    def __init__(self, handed: Optional[Handed]) -> None:
        self._handed = handed
        self._step = handed.start_step if handed is not None else 0
        self._epoch, self._batch = (0, 0)
        if handed is not None and handed.data is not None:
            self._epoch, self._batch = handed.data.epoch, handed.data.batch

    @property
    def step(self) -> int:
        """Mini-batches done before this process."""
        if self._handed is not None:
            self._handed.begin_loop()
        return self._step

    @property
    def epoch(self) -> int:
        """Iterations of the loader completed before this process. Reading it says: my loop starts there."""
        self.starts_at_epoch()
        return self._epoch

    @property
    def batch(self) -> int:
        """Batches of that epoch done before this process: who counts them goes on from there."""
        return self._batch

    def starts_at_epoch(self) -> None:
        if self._handed is not None and self._handed.data is not None:
            self._handed.data.starts_at_epoch = True

    @property
    def restored(self) -> bool:
        return self._handed is not None and self._handed.restored


class Handed:
    def __init__(self, rt: Runtime, objects: Dict[str, Any], loader: Any) -> None:
        self._rt = rt
        self.objects = objects
        self.data = Data(loader, rt.advice) if loader is not None else None
        self._loader = self.data.loader if self.data is not None else None
        self.start_step = 0
        self._before = (
            rt.steps.count
        )  # of the job's steps, those that its script does before it hands over, as a warm-up
        self.restored = False
        self._content: Optional[Dict[str, Any]] = None  # of a checkpoint, until training has begun
        self._began: Optional[Dict[str, Any]] = None  # where the copy that this is began (hs_job.average)
        self._ready = False
        self._fetched = 0  # batches, of this epoch, that were trained on
        self._drawn: Optional[Dict[str, Any]] = None  # generators after the next fetch
        self._loop_begun = False
        self._looked = False  # at what goes through the loader
        self._built: modules.Built = {}
        self._formed: modules.Shapes = {}

    @property
    def passes_by(self) -> bool:
        """The script's loop is in what was done before this process: whatever it does to the objects is undone at the first batch that is new."""
        return self._content is not None and self.data is not None

    @property
    def has_stepped(self) -> bool:
        """Mini-batches were counted since it was handed over, or restored."""
        return self._rt.steps.count > self.start_step + self._before

    # --- saving ----------------------------------------------------------------------------------------------------

    def capture(self, step: int, host_of: Optional[Callable[[Any], Any]]) -> Dict[str, Any]:
        own = self.data.generators if self.data is not None else []
        keeper = self._rt.keeper
        modules.check(self.objects, self._built, self._formed)

        def packed(value: Any, where: str) -> Any:
            return pack(value, where, host_of, whole=keeper.reshaped)

        with _asked() as asked, left_out.watched(loose.parameters(self.objects)) as left:
            states = {
                name: state_of(name, thing, whole=keeper.reshaped) for name, thing in self.objects.items()
            }
        self._tell_left_out(asked, left)
        content = {
            "format": FORMAT,
            "step": step,
            "before": 0 if self._rt.steps.by_hand else self._before,
            "by_hand": self._rt.steps.by_hand,
            "rank": self._rt.place.rank,
            "objects": {name: packed(state, name) for name, state in states.items()},
            "persistent": keeper.persistent(self._loader) + keeper.persisted,
            "modes": modules.modes(self.objects),
            "loose": loose.capture(self.objects, packed) if not keeper.in_strategy else {},
            "gradients": gradients.capture(self.objects, keeper.waiting(), packed),
            "data": self.data.position(self._fetched) if self.data is not None else None,
            # Until the batch that is fetched again has come, the generators are where they were for it.
            "rng": rng.capture(sys.modules.get("torch"), own) if self._drawn is None else self._drawn["rng"],
        }
        if self._began is not None:
            content["began"] = self._began
        return content

    def _tell_left_out(self, asked: Set[int], left: List[Any]) -> None:
        """Loaders beside the one that was handed over. Optimizers that train, as one that the script has made in the place of one that it had handed over, and whose state is in nothing that was. `left`: likewise what trains along."""
        if self._rt.batch.has_others:
            self._rt.advice.give(advice.OTHER_LOADERS)
        torch = sys.modules.get("torch")

        def is_saved(thing: Any) -> bool:
            return id(thing) in asked or any(thing is each for each in self.objects.values())

        for each in self._rt.keeper.lasting():
            plain = torch is not None and type(each).state_dict is torch.optim.Optimizer.state_dict
            if is_saved(each) or not plain or not any(True for _ in tensors_in(dict(each.state), torch)):
                continue
            self._rt.advice.leaves_out(each)
        for each, expected in left_out.in_use(left, is_saved):
            self._rt.advice.leaves_out_beside(each, expected)

    # --- restoring -------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        rt = self._rt
        found = rt.keeper.read()
        rt.keeper.forget()
        if found is not None:
            self._take_up(*found)
        self._built, self._formed = modules.built(self.objects), modules.shapes(self.objects)

    def _take_up(self, content: Optional[Dict[str, Any]], generation: int, note: str) -> None:
        rt = self._rt
        if content is not None:
            self._check(content)
            self._content = content
            self._began = content.get("began")
            rt.keeper.persisted = max(0, content.get("persistent", 0) - rt.keeper.persistent(self._loader))
            self.restored = True
            self._before = content.get("before", 0)
            rt.steps.restart(int(content["step"]), by_hand=content.get("by_hand", False))
            self.start_step = rt.steps.count - self._before
            if self.data is not None:
                self.data.loaded_before = any(
                    hasattr(each, "param_groups") and bool(getattr(each, "state", None))
                    for each in self.objects.values()
                )
                self._load(again=True)
                self.data.aim(content["data"], own_dice=content["rank"] == rt.place.rank)
            else:
                self._load()
                self._content = {**content, "objects": {}, "loose": {}}  # what is loaded need not be kept
                self._draw_on()
        rt.tell_restored(generation, note)

    def _check(self, content: Dict[str, Any]) -> None:
        saved, here = set(content["objects"]), set(self.objects)
        if saved != here or (content["data"] is None) != (self.data is None):
            raise ValueError(
                f"hs_job.state was given {sorted(here)}{' and a loader' if self.data else ''}; "
                f"the checkpoint holds {sorted(saved)}{' and a loader' if content['data'] else ''}"
            )

    def _load(self, *, again: bool = False) -> None:
        """`again`: it will be loaded once more, and who takes up its tensors themselves may change them until then."""
        assert self._content is not None
        layouts = Layouts(self.objects)
        for name, thing in self.objects.items():
            saved = self._content["objects"][name]
            state = unpack(apart(saved, thing) if again else saved, layouts)
            with _types_kept():
                if zero.is_spread(thing):
                    zero.load(thing, state)
                else:
                    thing.load_state_dict(state)
            keep_types(thing, state)
            if self._content["step"] and hasattr(thing, "param_groups"):
                # It has stepped, in the process before: torch would warn of a scheduler that steps first.
                thing._opt_called = True
        loose.put_back(self.objects, self._content.get("loose", {}), lambda saved: unpack(saved, layouts))
        for name, steps in self._content.get("behind", {}).items():
            catch_up(self.objects[name], steps)
        modules.put_back(self.objects, self._content.get("modes", {}))
        self._put_gradients_back(layouts)

    def _put_gradients_back(self, layouts: Layouts) -> None:
        assert self._content is not None
        gradients.put_back(self.objects, self._content["gradients"], lambda saved: unpack(saved, layouts))

    def _draw_on(self) -> None:
        """But a rank that is new, as an elastic job's may be: it would draw what another one does, so it goes on with its script's own seeds."""
        assert self._content is not None
        if self._content["rank"] == self._rt.place.rank:
            self._put_dice_back(self._content)

    def _put_dice_back(self, content: Dict[str, Any]) -> None:
        own = self.data.generators if self.data is not None else []
        rng.put_back(sys.modules.get("torch"), own, content["rng"])

    def begin_loop(self) -> None:
        """The script asks where to begin: what it drew since the restore does not count."""
        if self._content is not None and self.data is None and not self._loop_begun:
            self._loop_begun = True
            self._put_gradients_back(Layouts(self.objects))  # scripts clear them before their loop
            self._content["gradients"] = {}
            self._draw_on()

    def before_fetch(self, iterator: Any) -> None:
        """At the loader's first real batch once more: epochs passed by in between may have moved a scheduler."""
        assert self.data is not None
        self._fetched = self.data.trained(iterator)
        if self._content is not None:
            self._load()
            self._draw_on()
            if self.data.ask_again():
                self._drawn = self._content
            self._content = None
            self._tell_if_counted_anew(iterator)
        if not iterator._num_yielded:
            self.data.begins()
        if not self._looked:
            self._looked = True
            if cycled.goes_through(iterator):
                self._rt.cannot_be_saved(advice.CYCLED)
        self.data.is_asked()

    def _tell_if_counted_anew(self, iterator: Any) -> None:
        """Where the script itself knows by the number of a batch whether it is the last one of a step."""
        assert self.data is not None
        if not self.data.adds_up or self._rt.keeper.single or wrapped.adds_up(self.data.outer):
            return
        if cycled.counts_less(iterator, iterator._num_yielded):
            self._rt.advice.give(advice.COUNTED)

    def fetched(self) -> None:
        """The batch has come."""
        if self._drawn is not None:
            self._put_dice_back(self._drawn)
            self._drawn = None


def found(rt: Runtime) -> Optional[Dict[str, Any]]:
    """What `hand_over` is going to put back; None: this is a fresh run."""
    hook_torch()
    rt.start()
    if not rt.live:
        return None
    rt.find_place()
    read = rt.keeper.read()
    return None if read is None else read[0]


def state_of(name: str, thing: Any, *, whole: bool) -> Any:
    """Its state dict. What goes wrong there is the script's, and has a name. `whole`: a part of it is no use."""
    try:
        return zero.state_of(thing, name, whole=whole) if zero.is_spread(thing) else thing.state_dict()
    except PackError:
        raise
    except Exception as error:
        raise RuntimeError(f"{name}.state_dict() failed with {type(error).__name__}: {error}") from error


def apart(saved: Any, thing: Any) -> Any:
    """What it may take up as it is, and change, as a copy of its own. What is large on a device gets its own memory there, and need not lie here twice."""
    torch = sys.modules.get("torch")
    if torch is None:
        return copy.deepcopy(saved)
    if isinstance(thing, torch.nn.Module):
        return saved
    kept: Dict[int, Any] = {}
    if isinstance(thing, torch.optim.Optimizer):
        parameters = [each for group in thing.param_groups for each in group["params"]]
        if all(each.device.type != "cpu" for each in parameters):
            kept = {id(each): each for each in tensors_in(saved, torch) if each.dim()}
    return copy.deepcopy(saved, kept)


def keep_types(thing: Any, state: Any) -> None:
    """What an optimizer keeps for a parameter is of the type that it was of: torch's `load_state_dict` gives tensors the parameter's, which would round
    32-bit weights beside 16-bit parameters with each move, and makes other containers, and no text, of what else it finds there."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(thing, torch.optim.Optimizer):
        return
    kept = state.get("state") or {}
    numbers = [number for group in state.get("param_groups", ()) for number in group["params"]]
    parameters = [parameter for group in thing.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters):
        own = thing.state.get(parameter, {})
        for name, value in (kept.get(number) or {}).items():
            if name in own:
                own[name] = _as_it_was(value, own[name], torch)


@contextlib.contextmanager
def _asked() -> Iterator[Set[int]]:
    """Optimizers, by identity, that are asked for their state meanwhile."""
    found: Set[int] = set()
    torch = sys.modules.get("torch")
    if torch is None:
        yield found
        return
    kind = torch.optim.Optimizer
    original = kind.state_dict

    @functools.wraps(original)
    def state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        found.add(id(optimizer))
        return original(optimizer, *args, **kwargs)

    kind.state_dict = state_dict
    try:
        yield found
    finally:
        kind.state_dict = original


@contextlib.contextmanager
def _types_kept() -> Iterator[None]:
    """Also of optimizers that are inside of what is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    kind = torch.optim.Optimizer
    original = kind.load_state_dict

    @functools.wraps(original)
    def load_state_dict(optimizer: Any, state_dict: Any) -> None:
        original(optimizer, state_dict)
        keep_types(optimizer, state_dict)

    kind.load_state_dict = load_state_dict
    try:
        yield
    finally:
        kind.load_state_dict = original


def _as_it_was(value: Any, loaded: Any, torch: Any) -> Any:
    """What torch, or an optimizer with a way of its own, has made of a value otherwise stays."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        changed = (
            isinstance(loaded, torch.Tensor) and value.dtype != loaded.dtype and value.shape == loaded.shape
        )
        return value.to(loaded.device) if changed else loaded
    if kind is str:
        return value if type(loaded) is str and loaded.startswith("<generator object ") else loaded
    if kind in (dict, OrderedDict) and isinstance(loaded, dict) and value.keys() == loaded.keys():
        return kind((key, _as_it_was(each, loaded[key], torch)) for key, each in value.items())
    if kind in (list, tuple, deque) and type(loaded) is kind and len(value) == len(loaded):
        found = (_as_it_was(*pair, torch) for pair in zip(value, loaded))
        return deque(found, value.maxlen) if kind is deque else kind(found)
    return loaded


def catch_up(schedule: Any, steps: int) -> None:
    """A schedule of learning rates takes the steps that other copies took (one that goes by a measured loss cannot)."""
    torch = sys.modules.get("torch")
    kinds = torch.optim.lr_scheduler if torch is not None else None
    if kinds is not None and not isinstance(schedule, kinds.LRScheduler):
        schedule = getattr(schedule, "scheduler", None)  # accelerate's is around one
    if kinds is None or not isinstance(schedule, kinds.LRScheduler):
        return
    if isinstance(schedule, kinds.ReduceLROnPlateau):
        return
    for _ in range(steps):
        schedule.step()


def _once(keeper: Keeper) -> None:
    """Also where there is no agent: a script that works alone works as a job."""
    if keeper.handed_by == os.getpid():
        raise RuntimeError("hs_job.state is called a second time; expected everything in one call")
    keeper.handed_by = os.getpid()


def hand_over(objects: Dict[str, Any], loader: Any) -> State:
    for name, thing in objects.items():
        if not callable(getattr(thing, "state_dict", None)) or not callable(
            getattr(thing, "load_state_dict", None)
        ):
            raise TypeError(
                f"hs_job.state: {name} is a {type(thing).__name__}; expected state_dict and load_state_dict"
            )
    if loader is not None and not hasattr(wrapped.inner(loader), "_index_sampler"):
        raise TypeError(
            f"hs_job.state: loader is a {type(loader).__name__}; expected a torch.utils.data.DataLoader"
        )
    rt = runtime.current()
    _once(rt.keeper)
    if "torch" in sys.modules:
        hook_torch()
    rt.start()
    if not rt.live:
        return State(None)
    handed = Handed(rt, objects, loader)
    rt.trainer = threading.get_ident()
    rt.find_place()
    handed.restore()
    rt.keeper.handed = handed
    if rt.keeper.follows:
        rt.cannot_be_saved(advice.FOLLOWS)
    rt.tell_can()
    if loader is None:
        rt.point(restorable=True)
    return State(handed)
