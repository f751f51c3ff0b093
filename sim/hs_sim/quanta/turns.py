"""The turns of servers, as they were told: which gangs run whole, and where a server's own stride has what is left."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from hs_core.lazy import lazy
from hs_core.mechanism.gang_turns import GangTurns
from hs_core.names import HostName, JobId
from hs_core.wanted import Turn
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.rows import Bools, Ints


class _Told:
    """Turns that were decided at one time, by row; left out: local. A value."""

    def __init__(self, fleet: Fleet, turns: Mapping[HostName, Turn]) -> None:
        self._fleet = fleet
        self._turns = turns
        # Where nothing but whole gangs is said, it need not be known server by server. None: more is said.
        self.gangs = turns if isinstance(turns, GangTurns) else None

    @lazy
    def rows(self) -> dict[int, Turn]:
        row_of = self._fleet.servers.row_of
        return {row_of[name]: turn for name, turn in self._turns.items() if turn.gangs or not turn.local}

    def and_(self, row: int, turn: Turn) -> "_Told":
        names = self._fleet.servers.names
        return _Told(self._fleet, {**{names[at]: one for at, one in self.rows.items()}, names[row]: turn})


class _Now:
    """What holds: on `late` rows what was told a quantum ahead, elsewhere what was told last."""

    def __init__(self, ahead: _Told, last: _Told, late: Bools) -> None:
        self._ahead, self._last, self._late = ahead, last, late

    @lazy
    def rows(self) -> dict[int, Turn]:
        late = self._late.tolist()
        now = {row: turn for row, turn in self._ahead.rows.items() if late[row]}
        now |= {row: turn for row, turn in self._last.rows.items() if not late[row]}
        return now


class Turns:
    """Where a gang over several servers has a part, or the policy wants it so, turns come one quantum ahead; elsewhere, and in `rounds`, they are for now."""

    def __init__(self, fleet: Fleet, *, rounds: bool) -> None:
        self._fleet = fleet
        self._rounds = rounds
        self._parts: Ints = np.zeros(len(fleet.servers), dtype=np.int64)  # of gangs over several servers …
        self._spanning = 0  # … and how many these are
        self._in_step: Bools = np.zeros(len(fleet.servers), dtype=np.bool_)  # as the plan has it
        self._nothing = _Told(fleet, GangTurns(()))
        self._planned = self._nothing  # as decided last
        self._ahead = self._nothing  # as decided before this quantum began
        self._now: _Told | _Now = self._nothing
        self._table: Sequence[tuple[JobId, tuple[HostName, ...]]] = ()  # of gangs, that was looked at last …
        self._table_jobs: Ints = np.empty(0, dtype=np.int64)
        self._at_home: Bools | None = None  # … and who of them lives where it says; None: not known any more
        self.local: Bools = np.ones(len(fleet.servers), dtype=np.bool_)
        self._whole: Sequence[HostName] | None = None  # all that are not local, where they were told as one
        self.gangs: Ints = np.empty(0, dtype=np.int64)  # jobs in the turn of every server of their home
        self.seats: dict[int, dict[int, tuple[int, ...]]] = {}  # by job and server, GPUs that it should have
        self.guests: dict[int, list[tuple[int, int, int]]] = {}  # of these: (server, partner, GPUs)

    @property
    def spanned(self) -> bool:
        """Some gang lives on several servers."""
        return self._spanning > 0

    def has_parts(self, row: int) -> bool:
        """Of gangs over several servers."""
        return bool(self._parts[row] > 0)

    def lives(self, job: int) -> None:
        """It has a home from now on. Where quanta become common by that, the turn that is on stands until the next."""
        home = self._fleet.home[job]
        if len(home) < 2 or not self._spans(job):
            return
        for row in home if not self._rounds else ():
            if not self._parts[row] and (turn := self._now.rows.get(row)) is not None:
                self._ahead = self._ahead.and_(row, turn)
        self._count(job, 1)

    def leaves(self, job: int) -> None:
        """It is about to lose the home that it has, if any."""
        self._count(job, -1)

    def _spans(self, job: int) -> bool:
        """A gang that needs several servers in step. Copies of a job do not: each runs as soon as it has its GPUs."""
        return bool(self._fleet.nodes[job] > 1)

    def ends(self, job: int) -> None:
        self.leaves(job)
        self.gangs = self.gangs[self.gangs != job]
        self.guests.pop(job, None)
        self.seats.pop(job, None)

    def _count(self, job: int, change: int) -> None:
        home = self._fleet.home[job]
        if len(home) > 1 and self._spans(job):
            self._parts[list(home)] += change
            self._spanning += change
            self._at_home = None

    def begin(self) -> None:
        """A quantum begins; what is planned for it, if anything, and `take` follow."""
        self._ahead = self._nothing if self._rounds else self._planned

    def keep_in_step(self, names: Collection[HostName]) -> None:
        """From the next plan on."""
        self._in_step[:] = False
        self._in_step[[self._fleet.servers.row_of[name] for name in names]] = True

    def plan(self, turns: Mapping[HostName, Turn]) -> None:
        """It was decided."""
        self._planned = _Told(self._fleet, turns)
        self.take()

    def leave_some(self, turns: Mapping[HostName, Turn]) -> bool:
        """GPUs to some server's own stride."""
        if isinstance(turns, GangTurns):
            return len(turns.whole) < len(self._fleet.servers)
        return len(turns) < len(self._fleet.servers) or any(turn.local for turn in turns.values())

    def take(self) -> None:
        """What holds now, with the homes that there are now."""
        late = (self._parts > 0) | self._in_step
        if self._rounds or not np.count_nonzero(late):
            self._now = self._planned
        else:
            self._now = _Now(self._ahead, self._planned, late)
        self.guests, self.seats = {}, {}
        # Whoever has a home on several servers is told ahead on all of them.
        told, last = (self._planned if self._rounds else self._ahead).gangs, self._planned.gangs
        if told is not None and last is not None:
            self.gangs = self._gangs_at_home(told)
            self._all_but(last.whole)
            return
        self._whole = None
        self.local[:] = True
        now = self._now.rows
        named: dict[JobId, None] = {}
        whole = []
        for row, turn in now.items():
            if not turn.local:
                whole.append(row)
            for job in turn.gangs:
                named[job] = None
            if turn.guests or turn.seats:
                self._beside(row, turn)
        self.local[whole] = False
        self.gangs = _ints([job - 1 for job in named if self._everywhere(job, now)])

    def _all_but(self, whole: Sequence[HostName]) -> None:
        """Share something out. From quantum to quantum it is told of the very same ones."""
        if whole is self._whole:
            return
        self._whole = whole
        self.local[:] = True
        self.local[[self._fleet.servers.row_of[name] for name in whole]] = False

    def _beside(self, row: int, turn: Turn) -> None:
        for guest in turn.guests:
            shares = [(row, job - 1, n) for job, n in zip(guest.beside, guest.gpus, strict=True)]
            self.guests.setdefault(guest.job - 1, []).extend(shares)
        for seat in turn.seats:
            self.seats.setdefault(seat.job - 1, {})[row] = seat.gpus

    def _gangs_at_home(self, turns: GangTurns) -> Ints:
        """Of those in their turn the ones that live where it says. Quantum after quantum they are of one table."""
        if turns.chosen is None:
            names = self._fleet.home_names
            return _ints(
                [
                    job - 1
                    for job, home in turns.table
                    if names[job - 1] == home or self._is_home(job - 1, home)
                ]
            )
        if self._at_home is None or turns.table is not self._table:
            self._table = turns.table
            self._table_jobs = _ints([job - 1 for job, _ in turns.table])
            at_home = [self._is_home(job - 1, home) for job, home in turns.table]
            self._at_home = np.array(at_home, dtype=np.bool_)
        return self._table_jobs[turns.chosen[self._at_home[turns.chosen]]]

    def _is_home(self, job: int, servers: tuple[HostName, ...]) -> bool:
        names = self._fleet.home_names[job]
        return names is servers or names == servers or set(names) == set(servers)

    def _everywhere(self, named: int, now: Mapping[int, Turn]) -> bool:
        home = self._fleet.home[named - 1]
        if len(home) == 1:
            return home[0] in now and named in now[home[0]].gangs
        return bool(home) and all(row in now and named in now[row].gangs for row in home)

    def whole(self) -> set[int]:
        """Servers whose turns leave nothing to their own stride."""
        return set() if self.local.all() else {row for row in self._now.rows if not self.local[row]}


def _ints(jobs: list[int]) -> Ints:
    return np.array(jobs, dtype=np.int64)
