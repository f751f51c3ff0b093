"""Those who run in a quantum: what is asked of them several times in it, and of those who leave at its end, is looked up once."""

from functools import cached_property

from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.rows import Bools, Floats, Ints

ASKED = ("owner", "user", "column", "charged", "gang")


class Crew:
    """A value, as long as `stands`."""

    def __init__(self, fleet: Fleet, jobs: Ints) -> None:
        self._fleet = fleet
        self._as_of = fleet.changes
        self.jobs = jobs

    def stands(self, jobs: Ints) -> bool:
        """It is of these, and they are where they were."""
        return jobs is self.jobs and self._as_of == self._fleet.changes

    @cached_property
    def owner(self) -> Ints:
        return self._fleet.owner[self.jobs]

    @cached_property
    def user(self) -> Ints:
        return self._fleet.user[self.jobs]

    @cached_property
    def column(self) -> Ints:
        return self._fleet.column[self.jobs]

    @cached_property
    def charged(self) -> Floats:
        return self._fleet.charged[self.jobs]

    @cached_property
    def gang(self) -> Ints:
        return self._fleet.gang[self.jobs]

    def only(self, which: Bools) -> "Crew":
        """Some of them."""
        some = Crew(self._fleet, self.jobs[which])
        some.__dict__.update({name: self.__dict__[name][which] for name in ASKED if name in self.__dict__})
        return some
