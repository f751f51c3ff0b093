"""Those who run in a quantum: what is asked of them several times in it, and of those who leave at its end, is looked up once."""

import numpy as np

from hs_core.lazy import lazy
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.rows import Bools, Floats, Ints

ASKED = ("owner", "user", "charged", "gang")


class Crew:
    """A value, as long as `stands`."""

    def __init__(self, fleet: Fleet, jobs: Ints) -> None:
        self._fleet = fleet
        self._as_of = fleet.changes
        self.jobs = jobs

    def stands(self, jobs: Ints) -> bool:
        """It is of these, and they are where they were."""
        return jobs is self.jobs and self._as_of == self._fleet.changes

    @lazy
    def owner(self) -> Ints:
        return self._fleet.owner[self.jobs]

    @lazy
    def user(self) -> Ints:
        users: Ints = self.owner // len(self._fleet.servers.models)
        return users

    @lazy
    def first(self) -> Ints:
        """The first of the servers of each."""
        rows: Ints = self._fleet.rows_of[0, self.jobs].astype(np.int64)
        return rows

    @lazy
    def wide(self) -> Ints:
        """Which of them are on several, by place."""
        return self._fleet.wide[self.jobs].nonzero()[0]

    @lazy
    def charged(self) -> Floats:
        return self._fleet.charged[self.jobs]

    @lazy
    def gang(self) -> Ints:
        return self._fleet.gang[self.jobs]

    def only(self, which: Bools) -> "Crew":
        """Some of them, who begin or leave: where they are is asked of both."""
        some = Crew(self._fleet, self.jobs[which])
        some.first = self.first[which]
        some.__dict__.update({name: self.__dict__[name][which] for name in ASKED if name in self.__dict__})
        return some
