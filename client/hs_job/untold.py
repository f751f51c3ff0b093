"""The steps that the agent has not been told of: measured from one step to a later one, time held left out."""

from __future__ import annotations

from typing import Optional, Tuple

Mark = Tuple[int, float]
"""Mini-batches done, and when that many were."""


class Untold:
    def __init__(self) -> None:
        self.told = 0  # mini-batches
        self._base: Optional[Mark] = None  # from which the next ones are measured
        self._went: Optional[Mark] = None  # when it was let go on; None: it has told of steps since

    def passes(self, mark: Mark) -> None:
        """The first step after standing still is left out of the rate."""
        if self._base is None:
            self._base = mark

    def stands(self) -> None:
        self._base = None

    def goes_on(self, mark: Optional[Mark]) -> None:
        """None: for the first time. Its very first step warms up."""
        self._went = mark

    def since(self, mark: Mark, *, stands: bool) -> Optional[Mark]:
        """From where there are steps to tell of; None: there are none.

        `stands`: where no other step was told of since it went on, the first one is, as steps may take longer than turns.
        """
        base = self._base
        if stands and self._went is not None and (base is None or mark[0] <= base[0]):
            base = self._went
        return base if base is not None and mark[0] > base[0] else None

    def tell(self, mark: Mark) -> None:
        self._base, self._went, self.told = mark, None, mark[0]
