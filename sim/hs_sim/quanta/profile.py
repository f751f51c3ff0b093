"""What the controller would have measured of each job class on each GPU model: one report a quantum from every job in its turn."""

from collections.abc import Mapping

import numpy as np

from hs_core.profile import KEEP
from hs_sim.quanta.rows import Floats, Ints

ENOUGH = 3  # reports of a class on a model before a policy is told of the rate


class Measured:
    """Of the newest `KEEP` quanta with reports the median, by (class, model) as one number."""

    def __init__(
        self, keys: list[tuple[str, str]], true: Floats, cv: float, seed: int, *, known: bool = False
    ) -> None:
        """`known`: of everything as if reports enough had come before the run."""
        self._keys = keys
        self._true = true
        self._cv = cv
        self._dice = np.random.default_rng((seed, 0x5EED))
        self._ring: Floats = np.zeros((len(keys), KEEP if cv else 1))
        self._reports: Ints = np.full(len(keys), ENOUGH if known else 0, dtype=np.int64)
        if known and cv:
            noise = self._dice.standard_normal(self._ring.shape)
            self._ring = true[:, None] * np.maximum(0.05, 1.0 + cv * noise)
        self.settled = known and not cv  # reports tell nothing new
        self._known: dict[tuple[str, str], float] = {}
        self._stale = True

    def report(self, pairs: Ints) -> bool:
        """Of every job that is in its turn, its pair. True if a policy may want to know."""
        if self.settled or not (self._cv or (self._reports[pairs] < ENOUGH).any()):
            return False
        counts = np.bincount(pairs, minlength=len(self._keys))
        seen = np.flatnonzero(counts)
        before = self._reports[seen] >= ENOUGH
        if self._cv:
            noise = self._dice.standard_normal(seen.size) / np.sqrt(counts[seen])
            sample = self._true[seen] * np.maximum(0.05, 1.0 + self._cv * noise)
            fresh = self._reports[seen] == 0
            self._ring[seen[fresh]] = sample[fresh, None]
            self._ring[seen, self._reports[seen] % KEEP] = sample
            self._stale = True
        self._reports[seen] += 1
        news = bool((self._reports[seen] >= ENOUGH).sum() > before.sum())
        self._stale |= news
        return news

    def learn(self, pair: int) -> None:
        """A profiling run has told as many reports as are needed."""
        while self._reports[pair] < ENOUGH:
            self.report(np.array([pair]))

    def changed(self) -> None:
        """What is true: where nothing blurs it, a report is enough to know."""
        self._stale = True

    def rates(self) -> Mapping[tuple[str, str], float]:
        if self._stale:
            self._stale = False
            known = np.flatnonzero(self._reports >= ENOUGH)
            values = np.median(self._ring, axis=1) if self._cv else self._true
            self._known = {self._keys[pair]: float(values[pair]) for pair in known.tolist()}
        return self._known
