"""What has been done of the newest mini-batch: whose it is, and which optimizers have stepped for it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Optional, Set

if TYPE_CHECKING:
    from hs_job.position import Trained


class Batch:
    """One per process: the newest. Before the first it has no loader."""

    def __init__(self) -> None:
        self.loader: Optional[Trained] = None  # that was asked for a batch last
        self.number = 0  # of those that came of what was handed over
        self.stepped: Set[int] = set()  # optimizers, by identity, since it came
        # Batches of other loaders are trained on beside those of what was handed over.
        self.has_others = False
        self._came = False
        self.is_marked = True  # none came since the script has said that its mini-batch is done
        self._others: Counter[Trained] = Counter()  # batches since the newest step
        self._held_at = False  # a place to stop since the newest step that counts
        self._round: Set[int] = set()  # optimizers of the newest step that counts
        self._round_of: Optional[Trained] = None  # whose batch that was

    @property
    def is_amid(self) -> bool:
        """It came, and no optimizer has stepped for it yet."""
        return self._came and not self.stepped

    def is_asked_for(self, loader: Optional[Trained], *, holds: bool) -> None:
        """`holds`: where it is asked for is a place to stop."""
        self.loader = loader
        if not holds:
            return
        self._held_at = True
        if loader is not None and loader is self._round_of:
            self._round.clear()  # who steps now does so for another batch

    def comes(self) -> None:
        """Of what was handed over: a job that is saved goes on from here."""
        self._came, self.is_marked = True, False
        self.number += 1
        self.stepped.clear()

    def comes_of_another(self, loader: Trained) -> None:
        """Not of what was handed over. One that is gone through between two steps, as who evaluates does, is not trained on."""
        self._others[loader] += 1

    def steps(self, optimizer: int) -> None:
        self.stepped.add(optimizer)
        self.has_others = self.has_others or 1 in self._others.values()
        self._others.clear()

    def counts(self, optimizer: int) -> bool:
        """Whether its step is a mini-batch's first. Where several step for the same one, they make a round."""
        if self._round and optimizer not in self._round:
            self._round.add(optimizer)
            return False
        self._round = {optimizer}
        self._round_of = self.loader
        return True

    def was_held_at(self) -> bool:
        """Whether there was a place to stop since the step before; from now on there was none."""
        held, self._held_at = self._held_at, False
        return held
