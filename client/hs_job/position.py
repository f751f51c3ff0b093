"""Where a DataLoader stands, and how a new one gets there: state of the generators when its iterator was made and when that was first asked
for a batch (torch's samplers draw only then), and batches fetched.

Without workers the indices are skipped and nothing is loaded; with workers, or an iterable dataset, the batches are fetched again, since
only that leaves the workers' own generators where they were.

Behind a loader that looks a batch ahead (`wrapped`) the newest batch is not trained on yet when the next one is asked for: a new process fetches it
again, with the numbers that were drawn for it.
"""
# A DataLoader's iterator has no public position:
# ruff: noqa: SLF001

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterator, Optional

from hs_job import rng, wrapped
from hs_job.advice import LOADED_BEFORE, Advice


class Made:
    """What an iterator is about to be made with."""

    def __init__(self, loader: Any) -> None:
        self.reused = (
            getattr(loader, "_iterator", None) is not None
        )  # persistent workers: it is set back, not made anew
        self.dice = rng.capture(sys.modules.get("torch"), rng.generators(loader))


class Trained:
    """Of a DataLoader: whether its batches are trained on."""

    trains = False


class Data(Trained):
    """The training loader that the script handed over."""

    trains = True

    def __init__(self, loader: Any, advice: Advice) -> None:
        self.outer = loader
        self._advice = advice
        self.loader = wrapped.inner(loader)
        self.ahead = wrapped.ahead(loader)  # batches that are fetched before the one in hand is trained on
        self.generators = rng.generators(self.loader)
        self.starts_at_epoch = False  # the script's loop does (it read state.epoch)
        self._epoch = -1  # of the newest iterator
        self._made: Dict[str, Any] = {}
        self._begun: Optional[Dict[str, Any]] = None
        self._reused = False
        self._iterations = 0  # as the loader has counted them when this epoch began
        self._goal: Optional[Dict[str, Any]] = None
        self._gone_on_after = 0  # batches of the newest iterator that were trained on by the process before
        self._passed_by = 0
        self._own_dice = True
        self.adds_up = False  # steps are of several of its batches
        self.loaded_before = False  # by the script itself, ahead of what is restored
        self._gradients = False  # it has been gone through with gradients enabled
        self._asked: Optional[Dict[str, Any]] = None  # dice when the newest batch was asked for …
        self._asked_before: Optional[Dict[str, Any]] = (
            None  # … and the one before, where a loader looks ahead
        )

    def aim(self, position: Dict[str, Any], *, own_dice: bool) -> None:
        """`own_dice`: the generators of the position are this rank's."""
        self._goal = position
        self._own_dice = own_dice
        self._gradients = position["gradients"]
        self.adds_up = position["adds_up"]
        self._asked = position["asked"] if own_dice else None
        wrapped.go_to(self.outer, position["epoch"])

    @property
    def epoch(self) -> int:
        return self._goal["epoch"] if self._goal is not None else max(0, self._epoch)

    @property
    def batch(self) -> int:
        """Of that epoch, at which this process begins."""
        return self._batches(self._goal["fetched"], self._goal["stride"]) if self._goal is not None else 0

    def position(self, fetched: int) -> Dict[str, Any]:
        return {
            "epoch": self._epoch,
            "fetched": fetched,
            "stride": self._stride(),
            "made": self._made,
            "begun": self._begun,
            "reused": self._reused,
            "iterations": self._iterations,
            "batches": _batches(self.loader),
            "in_order": _in_order(self.loader),
            "gradients": self._gradients,
            "adds_up": self.adds_up,
            "asked": self._asked_before if fetched and self.ahead else None,
        }

    def is_training(self, *, gradients: bool, stepped: bool) -> bool:
        """Whether to go through it now is an epoch of training: without gradients it is not, where that is done with them.

        `stepped`: something has been trained on already. Else what was gone through before the first gradients were enabled (an evaluation ahead of
        training, the mean of the data) was no epoch either: a new process knows that from the beginning.
        """
        if gradients and not self._gradients and not stepped and self._goal is None:
            self._epoch = -1
        self._gradients = self._gradients or gradients
        return gradients or not self._gradients

    @property
    def is_trained_on(self) -> bool:
        """As far as it was ever gone through with gradients enabled."""
        return self._gradients

    def is_done(self, iterator: Any) -> bool:
        """The next fetch ends the epoch: what the script does then belongs to the process that has trained on its batches."""
        if self.ahead:
            return False  # its last batch is in hand
        return not _iterable(self.loader.dataset) and 0 < _batches(self.loader) <= iterator._num_yielded

    def is_of(self, loader: Any) -> bool:
        return loader is self.outer

    def trained(self, iterator: Any) -> int:
        """Batches of this epoch, where the next one is asked for and an optimizer has stepped since the last one came."""
        fetched: int = iterator._num_yielded
        return max(self._gone_on_after, fetched - self.ahead)  # of what was skipped none is in hand

    def is_asked(self) -> None:
        """A batch is about to be fetched. Workers draw by themselves."""
        if self.ahead and not self.loader.num_workers:
            self._asked_before, self._asked = self._asked, self._dice()

    def ask_again(self) -> bool:
        """What comes next was fetched before: as it was then. False: it was not, or nobody draws."""
        if self._asked is None:
            return False
        rng.put_back(sys.modules.get("torch"), self.generators, self._asked)
        return True

    def _stride(self) -> int:
        """Examples that one batch takes from the order in which all ranks go through them; 0: not known."""
        loader = self.loader
        batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if not isinstance(batch_size, int):
            return 0
        ranks = [getattr(each, "num_replicas", 1) for each in rng.samplers(loader)]
        return batch_size * max(ranks) * wrapped.shards(loader)

    def iterate(self, original: Callable[[Any], Any], fetch: Callable[[Any], Any]) -> Any:
        """Stands in for the loader's `__iter__`."""
        self.generators = rng.generators(self.loader)  # a script may make others for each epoch
        goal = self._goal
        if goal is None:
            made = Made(self.loader)
            iterator = original(self.loader)
            self._begins_epoch(made)
        elif not self.starts_at_epoch and self._passed_by < goal["epoch"]:
            if self.loaded_before:
                self._advice.give(LOADED_BEFORE)
            self._passed_by += 1
            return _nothing()
        else:
            self._goal = None
            iterator = self._make_again(original, fetch, goal)
        iterator.__dict__["_hs_trained"] = self
        return iterator

    def takes_up(self, iterator: Any) -> bool:
        """One that was made before the loader was handed over is that of its first epoch. False: it is not known how, or a batch of it was fetched."""
        made: Optional[Made] = iterator.__dict__.get("_hs_made") if iterator is not None else None
        if made is None or iterator._num_yielded:
            return False
        self._gradients = True
        self._begins_epoch(made)
        iterator.__dict__["_hs_trained"] = self
        return True

    def _begins_epoch(self, made: Made) -> None:
        self._epoch += 1
        self._gone_on_after = 0
        self._made, self._reused = made.dice, made.reused
        self._iterations = wrapped.iterations(self.outer)

    def begins(self) -> None:
        """The newest iterator is asked for its first batch. The script may have drawn numbers since it was made."""
        self._begun = self._dice()

    def _dice(self) -> Dict[str, Any]:
        return rng.capture(sys.modules.get("torch"), self.generators)

    def _batches(self, fetched: int, stride: int) -> int:
        """As many examples as those, in batches of now: an elastic job may have others. Less than one batch of them is trained on again."""
        now = self._stride()
        return fetched if stride == now or not stride or not now else fetched * stride // now

    def _make_again(
        self, original: Callable[[Any], Any], fetch: Callable[[Any], Any], goal: Dict[str, Any]
    ) -> Any:
        torch = sys.modules.get("torch")
        self._epoch, self._reused = goal["epoch"], goal["reused"]
        self._made, self._begun = goal["made"], goal["begun"]
        self._iterations = goal["iterations"]
        wrapped.iterates_again(self.outer, self._iterations)
        if self._reused and self.loader.persistent_workers:
            original(self.loader)
        ours = None if self._own_dice else rng.capture(torch, [])
        rng.put_back(torch, self.generators, self._made)
        iterator = original(self.loader)
        if ours is not None:
            rng.put_back(torch, [], ours)
        elif self._begun is not None:
            rng.put_back(torch, self.generators, self._begun)
        self._gone_on_after = self._batches(goal["fetched"], goal["stride"])
        self._skip(iterator, self._gone_on_after, fetch)
        return iterator

    def _skip(self, iterator: Any, batches: int, fetch: Callable[[Any], Any]) -> None:
        by_index = self.loader.num_workers == 0 and not _iterable(self.loader.dataset)
        try:
            for _ in range(batches):
                if by_index:
                    next(iterator._sampler_iter)
                    iterator._num_yielded += 1
                else:
                    fetch(iterator)
        except StopIteration:
            self._advice.ended_early(batches)


def _batches(loader: Any) -> int:
    """Of an epoch; 0: not known."""
    try:
        return len(loader)
    except Exception:  # a sampler of the user's own, which may know none, or say so in its own way
        return 0


def _in_order(loader: Any) -> bool:
    """Every epoch gives the same batches one after another, whatever the generators are at. Who is told the epoch shuffles by its number."""
    sequential = sys.modules["torch"].utils.data.SequentialSampler
    # A loader that was given a sampler of batches says that its own one is sequential.
    found = [loader.sampler] if loader.batch_sampler is None else list(rng.samplers(loader))[1:]
    return any(isinstance(each, sequential) or hasattr(each, "set_epoch") for each in found)


def _iterable(dataset: Any) -> bool:
    torch = sys.modules["torch"]
    return isinstance(dataset, torch.utils.data.IterableDataset)


def _nothing() -> Iterator[Any]:
    """An epoch that was done before the restore."""
    return iter(())
