"""The turns of servers, as they were told: which gangs run whole, and where a server's own stride has what is left."""

from collections.abc import Mapping
from itertools import chain

import numpy as np

from hs_core.events import Turn
from hs_core.model import HostName
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.rows import Bools, Ints


class Turns:
    """Where a gang over several servers has a part, turns come one quantum ahead; elsewhere, and in `rounds`, they are for now."""

    def __init__(self, fleet: Fleet, *, rounds: bool) -> None:
        self._fleet = fleet
        self._rounds = rounds
        self._planned: dict[int, Turn] = {}  # as decided last
        self._ahead: dict[int, Turn] = {}  # as decided before this quantum began
        self._parts: Ints = np.zeros(len(fleet.hosts), dtype=np.int64)  # of gangs over several servers
        self._now: dict[int, Turn] = {}  # by row; left out: local
        self.local: Bools = np.ones(len(fleet.hosts), dtype=np.bool_)
        self.gangs: tuple[int, ...] = ()  # jobs in the turn of every server of their home
        self.seats: dict[int, dict[int, tuple[int, ...]]] = {}  # by job and server, GPUs that it should have
        self.guests: dict[int, list[tuple[int, int, int]]] = {}  # of these: (server, partner, GPUs)

    @property
    def spanned(self) -> bool:
        """Some gang lives on several servers."""
        return bool(self._parts.any())

    def lives(self, job: int) -> None:
        """It has a home from now on. Where quanta become common by that, the turn that is on stands until the next."""
        for row in self._fleet.home[job] if len(self._fleet.home[job]) > 1 else ():
            if not self._parts[row] and row in self._now:
                self._ahead = {**self._ahead, row: self._now[row]}
        self._count(job, 1)

    def leaves(self, job: int) -> None:
        """It is about to lose the home that it has, if any."""
        self._count(job, -1)

    def ends(self, job: int) -> None:
        self.leaves(job)
        self.gangs = tuple(gang for gang in self.gangs if gang != job)
        self.guests.pop(job, None)
        self.seats.pop(job, None)

    def _count(self, job: int, change: int) -> None:
        home = self._fleet.home[job]
        if len(home) > 1:
            self._parts[list(home)] += change

    def begin(self) -> None:
        """A quantum begins; what is planned for it, if anything, and `take` follow."""
        self._ahead = {} if self._rounds else self._planned

    def plan(self, turns: Mapping[HostName, Turn]) -> None:
        """It was decided."""
        self._planned = {
            self._fleet.row_of[name]: turn for name, turn in turns.items() if turn.gangs or not turn.local
        }
        self.take()

    def take(self) -> None:
        """What holds now, with the homes that there are now."""
        late = ([False] * len(self._parts)) if self._rounds else (self._parts > 0).tolist()
        self._now = {row: turn for row, turn in self._ahead.items() if late[row]}
        self._now |= {row: turn for row, turn in self._planned.items() if not late[row]}
        named = dict.fromkeys(chain.from_iterable(turn.gangs for turn in self._now.values()))
        self.local[:] = True
        self.local[[row for row, turn in self._now.items() if not turn.local]] = False
        self.gangs = tuple(filter(self._everywhere, (job - 1 for job in named)))
        self.guests, self.seats = {}, {}
        for row, turn in self._now.items():
            for guest in turn.guests:
                shares = [(row, job - 1, n) for job, n in zip(guest.beside, guest.gpus, strict=True)]
                self.guests.setdefault(guest.job - 1, []).extend(shares)
            for seat in turn.seats:
                self.seats.setdefault(seat.job - 1, {})[row] = seat.gpus

    def _everywhere(self, job: int) -> bool:
        home = self._fleet.home[job]
        return bool(home) and all(row in self._now and job + 1 in self._now[row].gangs for row in home)

    def whole(self) -> set[int]:
        """Servers whose turns leave nothing to their own stride."""
        return {row for row in self._now if not self.local[row]}
