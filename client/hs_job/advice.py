"""What a script should do otherwise, as its user reads it: in the job's log, once, and as why the job could not be saved."""

from __future__ import annotations

import weakref
from typing import Any, Set

from hs_job.aloud import say

ASTRAY = (
    "it trains on batches that are not fetched from the loader handed over to hs_job.state, or from an iterator of it that was made before "
    "(expected: iter(loader) after hs_job.state, or that no loader is handed over and each mini-batch ends with hs_job.step())"
)
COUNTED = (
    "gradients of several batches add up to one step, and enumerate counts the batches of the epoch that goes on from its beginning, though some were done before: steps by that count are of other batches than they were "
    "(expected: enumerate(loader, state.batch if epoch == state.epoch else 0))"
)
CYCLED = (
    "itertools.cycle goes through the loader, and keeps the batches of its first epoch: a new process would have no more of these than were left "
    "(expected a loop that iterates the loader once for each epoch)"
)
FOLLOWS = (
    "another command of this job has handed over its state before, and the job would begin with that again "
    "(expected: one that does, or a job for each, submitted with --after)"
)
LOADED_BEFORE = (
    "the job goes on from its checkpoint, and epochs that were done before are passed by, as its loop is taken to begin at 0. Its optimizer had a state before hs_job.state was called: "
    "if that is of a checkpoint of its own, and the loop begins at the epoch which that says, it passes epochs by that were not trained on (expected: at state.epoch where state.restored is true)"
)
LOOKED_THROUGH = (
    "the loader handed over to hs_job.state was gone through with gradients enabled before anything was trained on: that counts as an epoch, and a new process would train on one less "
    "(expected: that it is done before hs_job.state, or under torch.no_grad())"
)
NEVER_THERE = (
    "the script ends, and its loop has not come to where the job had stopped: nothing was trained in this process. It may have begun at an epoch that a checkpoint of its own says "
    "(expected: at state.epoch where state.restored is true)"
)
NO_PLACE = (
    "it stands where a new process cannot get to (not at a fetch of the handed-over loader, "
    "or amid batches whose gradients add up to one step)"
)
NO_STATE = "no state was handed over with hs_job.state that a new process could take up"
OTHER_LOADERS = (
    "batches of another loader are trained on beside those of the one that was handed over to hs_job.state: how far that is is not saved, and a new process begins it anew "
    "(expected: one loader, of a dataset of both)"
)
RELOADS = (
    "the trainer makes its training loader anew every so many epochs (reload_dataloaders_every_n_epochs), and only the first one was handed over "
    "(expected: 0, and one loader whose dataset or sampler changes)"
)
TRAINS_AGAIN = "this process trains a second time: a job that is moved would begin the first time again, so it is not moved from now on"
UNCOUNTED = (
    "hs_job.state was given no loader, and hs_job.step has not been called: the job is held, and not moved "
    "(expected: hs_job.step() after each mini-batch, or loader=)"
)


class Advice:
    """Of one process."""

    def __init__(self) -> None:
        self._given: Set[str] = set()
        self._left_out: Any = weakref.WeakSet()

    def give(self, words: str) -> None:
        """Whoever has read them is not told again."""
        if words not in self._given:
            self._given.add(words)
            say(words)

    def not_moved(self, why: str) -> None:
        self.give(f"the job is held, and not moved: {why}")

    def came_nowhere(self, steps: int, since_s: float) -> None:
        """Each time anew: it has come to one since it was told so before. `steps`, `since_s`: for so long it has been told to leave, or to save."""
        say(
            f"told to leave or to save {since_s:.0f} s and {steps} steps ago, and come to no place where that can be done: {ASTRAY}; it is held, and not moved, until it is"
        )

    def leaves_out(self, optimizer: Any) -> None:
        """Once for each: several of a kind are several lines."""
        if optimizer not in self._left_out:
            self._left_out.add(optimizer)
            say(
                f"an optimizer ({type(optimizer).__name__}) trains whose state is in nothing that was handed over to hs_job.state: it is not saved, and a new process begins it anew"
            )

    def leaves_out_beside(self, thing: Any, expected: str) -> None:
        """What an optimizer trains with. Once for each kind: a network has many layers of one."""
        self.give(
            f"a {type(thing).__name__} is in use whose state is in nothing that was handed over to hs_job.state: it is not saved, and a new process begins it anew (expected: {expected})"
        )

    def ended_early(self, batches: int) -> None:
        """`batches`: so many of its loader the job had trained on when it stopped."""
        self.give(
            f"the loader ended before batch {batches}, where the job had stopped: are its data the same?"
        )
