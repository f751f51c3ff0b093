"""Very many jobs and the pools where they live, as arrays: kept from one decision to the next, and of what has changed alone made anew."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hs_core.mechanism.band import NUMBERS
from hs_core.mechanism.floor import Floor, Ints
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts


class Roll(NamedTuple):
    """A value."""

    ids: Ints  # in order
    gang: Ints  # GPUs
    owner: Ints  # its user, as `band` numbers them
    pool: Ints  # of its home: the model's place among the floor's, newest first; -1: it has none there

    @classmethod
    def of(cls, jobs: Sequence[JobFacts], floor: Floor) -> "Roll":
        """`jobs`: by id."""
        place = {model: at for at, model in enumerate(floor.models)}
        pool: dict[HostName | None, int] = {name: place[host.model] for name, host in floor.hosts.items()}
        homes = [job.hosts[0] if job.hosts else None for job in jobs]
        columns: tuple[Iterable[int], ...] = (
            [job.id for job in jobs],
            [job.gang for job in jobs],
            [NUMBERS[job.user] for job in jobs],
            [pool.get(home, -1) for home in homes],
        )
        return cls(*(np.array(column, dtype=np.int64) for column in columns))

    def changed(self, gone: Collection[JobId], came: "Roll") -> "Roll":
        """Without these, who are all there, and with those."""
        stays = np.ones(len(self.ids), dtype=np.bool_)
        stays[np.searchsorted(self.ids, np.array([*gone], dtype=np.int64))] = False
        rest = [column[stays] for column in self]
        at = np.searchsorted(rest[0], came.ids)
        return Roll(*(np.insert(column, at, new) for column, new in zip(rest, came, strict=True)))

    def places(self, jobs: Collection[JobId]) -> Ints:
        """Of these, who are all there."""
        return np.searchsorted(self.ids, np.fromiter(jobs, dtype=np.int64, count=len(jobs)))
