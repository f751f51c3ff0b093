"""jobTickets of very many jobs: most share a few numbers, so they are known by which of these it is, and by job for who asks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hs_core.names import JobId

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SPARSE = 8  # so many ids for each job are looked up in a table yet


class JobTickets(Mapping[JobId, Fraction]):
    """A value."""

    def __init__(
        self,
        ids: Ints,
        which: Ints,
        numbers: Sequence[Fraction] | Callable[[], Sequence[Fraction]],
        known: Floats | None = None,
    ) -> None:
        """`ids`: in order; `which`: the number that each job has. `numbers`: or who finds them when they are asked for, where `known`, the same as floats, is enough
        for most."""
        self.ids, self.which = ids, which
        self._numbers = numbers
        if known is not None:
            self.known = known

    @cached_property
    def numbers(self) -> Sequence[Fraction]:
        return self._numbers() if callable(self._numbers) else self._numbers

    @cached_property
    def known(self) -> Floats:
        """`numbers` as floats."""
        return np.array([over / under for over, under in self.ratios], dtype=np.float64)

    @cached_property
    def ratios(self) -> list[tuple[int, int]]:
        """`numbers` in lowest terms."""
        return [number.as_integer_ratio() for number in self.numbers]

    @cached_property
    def by_id(self) -> dict[JobId, Fraction]:
        has = map(self.numbers.__getitem__, self.which.tolist())
        return dict(zip(map(JobId, self.ids.tolist()), has, strict=True))

    @cached_property
    def _place(self) -> Ints | None:
        """Of each id from the first to the last; None: there are far more of those than jobs."""
        ids = self.ids
        if not ids.size or ids[-1] - ids[0] > SPARSE * ids.size:
            return None
        place = np.zeros(ids[-1] - ids[0] + 1, dtype=np.int64)
        place[ids - ids[0]] = np.arange(ids.size)
        return place

    def which_of(self, jobs: Sequence[JobId] | Ints) -> Ints:
        """The numbers that these jobs have, who are all there."""
        asked = np.asarray(jobs, dtype=np.int64)
        table = self._place
        place = np.searchsorted(self.ids, asked) if table is None else table[asked - self.ids[0]]
        found: Ints = self.which[place]
        return found

    def floats(self) -> Floats:
        """Of each job."""
        found: Floats = self.known[self.which]
        return found

    def __getitem__(self, job: JobId) -> Fraction:
        return self.by_id[job]

    def __iter__(self) -> Iterator[JobId]:
        return iter(self.by_id)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"JobTickets({self.by_id!r})"
