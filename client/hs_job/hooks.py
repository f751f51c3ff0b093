"""What is hooked in torch: optimizer steps are counted, fetches of a batch are suspend points, optimizers are known.

The stop is at the next fetch, not at the optimizer's step: what a script does after it (the LR scheduler, logging, clearing
gradients) still belongs to the batch. A step with no fetch since the step before it is a suspend point itself.
"""
# What stands in for torch's own methods has their names:
# ruff: noqa: SLF001, N807

from __future__ import annotations

import functools
import importlib
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from hs_job import advice, gradients, noise, rng, runtime
from hs_job.position import Data, Made, Trained
from hs_job.runtime import Runtime
from hs_job.swap import Swapper

if TYPE_CHECKING:
    from hs_job.handed import Handed

Call = Tuple[int, int]  # the optimizer's identity, the thread's

_BETWEEN_STEPS_WITHIN_S = 10.0  # where a step takes longer, it is held amid its batches, but not saved


class Hooks:
    """One per process."""

    def __init__(self, torch: Any, rt: Runtime) -> None:
        self._torch = torch
        self._rt = rt
        self._known: Set[int] = set()
        self._done: Dict[Call, int] = {}  # steps …
        self._under_way: Dict[Call, List[int]] = {}  # … and how many were done when those under way began
        self._kinds: Any = weakref.WeakKeyDictionary()
        self.optimizers: Any = weakref.WeakSet()
        self._last: Any = weakref.WeakKeyDictionary()  # the batch that each optimizer has stepped for last …
        self.lasting: Any = weakref.WeakSet()  # … and those that were there for another one before
        loading: Any = sys.modules["torch.utils.data.dataloader"]
        self.fetch_unhooked = loading._BaseDataLoaderIter.__next__

    def install(self) -> None:
        torch = self._torch
        optimizers: Any = sys.modules["torch.optim.optimizer"]
        optimizers.register_optimizer_step_pre_hook(_undynamo(self._begins))
        optimizers.register_optimizer_step_post_hook(_undynamo(self._stepped))
        self._hook_optimizer(torch.optim.Optimizer)
        self._hook_compiler()
        self._hook_scaler()
        loading: Any = sys.modules["torch.utils.data.dataloader"]
        self._hook_loader(loading.DataLoader)
        self._hook_fetch(loading._BaseDataLoaderIter)
        self._hook_graphs(getattr(torch.cuda, "CUDAGraph", None))

    # --- optimizers ------------------------------------------------------------------------------------------------

    def _hook_optimizer(self, kind: Any) -> None:
        original = kind.__init__
        known = self.optimizers

        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            known.add(optimizer)

        kind.__init__ = __init__

    def _hook_compiler(self) -> None:
        """Torch 2.2 takes away what calls hooks from its optimizers, for good, where it is first asked to compile something; later ones don't."""
        torch, base = self._torch, self._torch.optim.Optimizer
        if not torch.__version__.startswith("2.2."):
            return
        original = torch.compile

        @functools.wraps(original)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if getattr(base.step, "hooked", False):  # it has, and says that all are hooked
                base.step.hooked = False
                for kind in base.__subclasses__():
                    if kind.__module__.startswith("torch.optim."):
                        kind.step = base.profile_hook_step(kind.step)
            return made

        torch.compile = compiled

    def _hook_scaler(self) -> None:
        """Where losses are scaled, gradients of parts are, and the whole ones are not any more: nothing can be told of both."""
        rt, kind = self._rt, getattr(getattr(self._torch, "amp", None), "GradScaler", None)
        if rt.steps.meter is None or kind is None:
            return
        original = kind.__init__

        @functools.wraps(original)
        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            if rt.steps.meter is not None and scaler.is_enabled():
                rt.steps.meter.give_up()

        kind.__init__ = __init__

    def _begins(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        call = id(optimizer), threading.get_ident()
        self._under_way.setdefault(call, []).append(self._done.get(call, 0))

    def _contains_another(self, optimizer: Any) -> bool:
        """The step that ends has called `step` of the class that its own is derived from: that one was counted. One that has failed leaves its beginning below."""
        call = id(optimizer), threading.get_ident()
        done = self._done.get(call, 0)
        self._done[call] = done + 1
        under_way = self._under_way.get(call)
        return bool(under_way and under_way.pop() < done)

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        rt = self._rt
        if self._contains_another(optimizer) or not rt.live:
            return
        batch, key = rt.batch, id(optimizer)
        batch.steps(key)
        if self._last.setdefault(optimizer, batch.number) != batch.number:
            self.lasting.add(optimizer)
        if key not in self._known:  # unpickled or copied: its constructor never ran
            self._known.add(key)
            self.optimizers.add(optimizer)
        handed = rt.keeper.handed
        if rt.steps.by_hand or (handed is not None and handed.passes_by):
            return
        if not batch.counts(key):
            if rt.steps.meter is not None:
                rt.steps.meter.give_up()
            return
        if not self._is_in_a_thread_of_torch():
            rt.trainer = threading.get_ident()
        if batch.loader is not None:
            batch.loader.trains = True
        if rt.steps.meter is not None:
            rt.steps.meter.stepped(optimizer, rt.place.world)
        rt.steps.take()
        if not batch.was_held_at():
            rt.point()

    def _is_in_a_thread_of_torch(self) -> bool:
        """For each device torch has one that does the backward pass: where an optimizer steps amid that, who trains waits for it."""
        task = getattr(self._torch._C, "_current_graph_task_id", None)
        if task is None or task() < 0:
            return False
        known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        return known is None or isinstance(known, threading._DummyThread)

    # --- device memory ---------------------------------------------------------------------------------------------

    def _hook_graphs(self, kind: Any) -> None:
        """A graph is replayed on the addresses that it was captured with: moved away and back, its tensors lie elsewhere, and it trains on what lies there now."""
        original = getattr(kind, "capture_begin", None)
        rt = self._rt
        if original is None:  # a torch for other devices
            return

        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if rt.tiers.swapper is not None and not rt.tiers.swapper.fixed_why:
                rt.tiers.swapper.fixed_why = (
                    "it has captured CUDA graphs, which keep addresses of device memory"
                )
                rt.tell_can()
            return original(graph, *args, **kwargs)

        kind.capture_begin = capture_begin

    # --- data ------------------------------------------------------------------------------------------------------

    def _hook_loader(self, kind: Any) -> None:
        original = kind.__iter__
        rt = self._rt

        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:
            if not rt.live:
                return original(loader)
            data = rt.keeper.handed.data if rt.keeper.handed is not None else None
            if data is not None and self._begins_epoch(loader):
                return data.iterate(original, self.fetch_unhooked)
            if rt.keeper.persisted > 0 and loader.persistent_workers and loader._iterator is None:
                rt.keeper.persisted -= 1
                self._start_workers(loader, original)
            made = Made(loader) if rt.keeper.comes_later and data is None else None
            iterator = original(loader)
            iterator.__dict__["_hs_made"] = made
            trained = self._kinds.get(loader)
            if trained is None:
                trained = self._kinds[loader] = Trained()
            iterator.__dict__["_hs_trained"] = trained
            return iterator

        kind.__iter__ = __iter__

    def _begins_epoch(self, loader: Any) -> bool:
        """Whether it is gone through now to train on it."""
        handed = self._rt.keeper.handed
        if handed is None or handed.data is None or handed.data.loader is not loader:
            return False
        enabled, stepped = self._torch.is_grad_enabled(), handed.has_stepped
        # Who was restored may have come to the end of an epoch of which the script trains on no more.
        if enabled and not (stepped or handed.restored) and self._was_looked_through(handed.data):
            self._rt.advice.give(advice.LOOKED_THROUGH)
        return handed.data.is_training(gradients=enabled, stepped=stepped)

    def _was_looked_through(self, data: Data) -> bool:
        """Batches came, with gradients enabled, of which an optimizer has had nothing."""
        known = list(self.optimizers)
        waits = any(each.grad is not None for one in known for _, each in gradients.numbered(one))
        return self._rt.batch.number > 0 and data.is_trained_on and bool(known) and not waits

    def _start_workers(self, loader: Any, original: Callable[[Any], Any]) -> None:
        """As the process before has done: where they stay, only their start draws a number more, and that was drawn then."""
        generators = rng.generators(loader)
        dice = rng.capture(self._torch, generators)
        original(loader)
        rng.put_back(self._torch, generators, dice)

    def persistent(self, training: Any) -> int:
        """Loaders whose workers stay from one iteration to the next, and are there."""
        return sum(
            each is not training and each.persistent_workers and each._iterator is not None
            for each in list(self._kinds)
        )

    def _hook_fetch(self, kind: Any) -> None:
        original = kind.__next__
        before = self._before_fetch
        rt = self._rt

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            mine = before(iterator) if rt.live else None
            batch = original(iterator)
            if mine is not None:  # not at the end of an epoch: there is no batch
                mine.fetched()
                rt.batch.comes()
            return batch

        kind.__next__ = __next__

    def _before_fetch(self, iterator: Any) -> Optional[Handed]:
        """What was handed over, where it is one of that loader's, for training."""
        rt = self._rt
        if threading.get_ident() != rt.trainer:
            return None  # somebody fetches ahead; holding them would not hold training
        handed = rt.keeper.handed
        data: Optional[Data] = handed.data if handed is not None else None
        trained: Optional[Trained] = iterator.__dict__.get("_hs_trained")
        mine = data if trained is data else None
        if data is not None and trained not in (None, data) and self._torch.is_grad_enabled():
            rt.batch.comes_of_another(trained)
        if mine is not None:
            assert handed is not None
            handed.before_fetch(iterator)
        elif rt.steps.by_hand:
            return None
        elif rt.place.world > 1 and (
            data is not None
            or not self._torch.is_grad_enabled()
            or (rt.steps.count and self._fetched_by_others(trained))
        ):
            rt.batch.is_asked_for(trained, holds=False)
            return None
        rt.batch.is_asked_for(trained, holds=True)
        adds_up = mine is not None and self._adds_up(mine)
        if mine is not None and adds_up and rt.steps.count:
            mine.adds_up = True
        if not adds_up or time.monotonic() - rt.steps.mark[1] > _BETWEEN_STEPS_WITHIN_S:
            rt.point(
                restorable=mine is not None and not adds_up,
                ends=mine is not None and self._ends_here(mine, iterator),
            )
        return handed if mine is not None else None

    def _ends_here(self, mine: Data, iterator: Any) -> bool:
        """But copies are averaged where an epoch's last batch is done and its end not seen."""
        rt = self._rt
        return rt.is_due and not rt.steps.are_portioned and mine.is_done(iterator)

    def _adds_up(self, mine: Data) -> bool:
        """Batches came that no optimizer has stepped for yet: no checkpoint holds their gradients, nor, where one step is of several batches (pairs), these. Where a batch is fetched ahead,
        only right after a step it is known which ones were trained on. Who trains without torch's optimizers has no such steps. Who says himself when a mini-batch is done may fetch several for it."""
        if self._rt.steps.by_hand:
            return not self._rt.batch.is_marked
        return self._rt.batch.is_amid and (mine.ahead > 0 or len(self.optimizers) > 0)

    def _fetched_by_others(self, trained: Optional[Trained]) -> bool:
        """In a gang only what every rank fetches alike is a place to stop: batches that are trained on."""
        return trained is None or not trained.trains


_hooks: Optional[Hooks] = None


def install() -> None:
    """Hooks torch, which is imported; connects to the agent. What can't be hooked is left alone altogether."""
    global _hooks
    rt = runtime.current()
    if _hooks is not None or rt.alone:
        return
    for name in ("torch.optim.optimizer", "torch.utils.data.dataloader"):
        importlib.import_module(name)
    torch = sys.modules["torch"]
    try:
        rt.steps.meter = noise.meter(torch)
        hooks = Hooks(torch, rt)
        hooks.install()
    except Exception:
        rt.give_up()
        raise
    rt.keeper.persistent = hooks.persistent
    rt.keeper.waiting = lambda: gradients.waiting(list(hooks.optimizers), rt.batch.stepped)
    rt.keeper.lasting = lambda: list(hooks.lasting)
    rt.tiers.swapper = Swapper(torch, lambda: list(hooks.optimizers), lambda: rt.keeper.handed)
    _hooks = hooks
    rt.start()
    rt.tell_can()


def _undynamo(function: Any) -> Any:
    """Not to be traced into compiled code: what it counts happens at run time. (What torch.compiler.disable does, without its imports.)"""

    def plain(*args: Any) -> None:
        function(*args)

    marks: Dict[str, Any] = {"_torchdynamo_disable": True}
    plain.__dict__.update(marks)
    return plain
