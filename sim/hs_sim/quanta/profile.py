"""What the controller would have measured of each job class on each GPU model: one report a quantum from every job in its turn."""

from collections.abc import Mapping

import numpy as np

from hs_core.profile import KEEP, SURE
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
        self._ring: Floats = np.full((len(keys), KEEP if cv else 1), np.inf)  # inf: no report yet
        self._reports: Ints = np.full(len(keys), KEEP if known else 0, dtype=np.int64)
        if known and cv:
            noise = self._dice.standard_normal(self._ring.shape)
            self._ring = true[:, None] * np.maximum(0.05, 1.0 + cv * noise)
        self._told: Floats = true.copy()  # where nothing blurs it: what was true at the last report
        self._changed = False  # since then, of some
        self.settled = known and not cv  # reports tell nothing new
        self._known: dict[tuple[str, str], float] = {}
        self._within: dict[tuple[str, str], float] = {}
        self._stale = True

    def report(self, pairs: Ints) -> bool:
        """Of every job that is in its turn, its pair. True if a policy may want to know."""
        changed = self._changed and bool((self._told[pairs] != self._true[pairs]).any())
        if self.settled or not (self._cv or changed or (self._reports[pairs] < ENOUGH).any()):
            return False
        counts = np.bincount(pairs, minlength=len(self._keys))
        seen = np.flatnonzero(counts)
        before = self._reports[seen] >= ENOUGH
        if self._cv:
            noise = self._dice.standard_normal(seen.size) / np.sqrt(counts[seen])
            sample = self._true[seen] * np.maximum(0.05, 1.0 + self._cv * noise)
            self._ring[seen, self._reports[seen] % KEEP] = sample
            self._stale = True
        self._told[seen] = self._true[seen]
        self._reports[seen] += 1
        news = changed or bool((self._reports[seen] >= ENOUGH).sum() > before.sum())
        self._stale |= news
        return news

    def learn(self, pair: int) -> None:
        """A profiling run has told as many reports as are needed."""
        while self._reports[pair] < ENOUGH:
            self.report(np.array([pair]))

    def changed(self) -> None:
        """What is true: where nothing blurs it, a report is enough to know. Policies that know all know it at once."""
        self._changed = True
        if self.settled:
            self._told[:] = self._true
            self._stale = True

    def rates(self) -> Mapping[tuple[str, str], float]:
        self._look()
        return self._known

    def within(self) -> Mapping[tuple[str, str], float]:
        """How far from these the true ones may be, as parts of them."""
        self._look()
        return self._within

    def _look(self) -> None:
        if not self._stale:
            return
        self._stale = False
        known = np.flatnonzero(self._reports >= ENOUGH)
        keys = [self._keys[pair] for pair in known.tolist()]
        if not self._cv:
            self._known = dict(zip(keys, self._told[known].tolist(), strict=True))
            return
        values, within = _medians(self._ring[known], self._reports[known])
        self._known = dict(zip(keys, values.tolist(), strict=True))
        self._within = dict(zip(keys, within.tolist(), strict=True))


def _medians(ring: Floats, reports: Ints) -> tuple[Floats, Floats]:
    """Of the reports in each row, and how far the true ones may be from them: as `hs_core.profile` has them."""
    ring, rows = np.sort(ring, axis=1), np.arange(len(ring))
    count = np.minimum(reports, ring.shape[1])
    middle = (ring[rows, (count - 1) // 2] + ring[rows, count // 2]) / 2
    aside = (count - 1) // 4
    spread = ring[rows, count - 1 - aside] - ring[rows, aside]
    return middle, SURE * spread / (np.where(middle > 0, middle, 1.0) * np.sqrt(count))
