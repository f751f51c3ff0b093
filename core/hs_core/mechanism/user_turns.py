"""Who runs on all servers of a model in a quantum, by one stride over its users (departure from Gandiva_fair, 3.1, which leaves small jobs to each server's own stride).

Each server that shares itself out rounds turns by itself: a user with jobs on six servers is up to six turns off what is due to it in a window of a
few quanta, though it is off nothing over a day. In a small cluster all are chosen together instead: the user that is the farthest behind its due
has one of its jobs run, of those that find their GPUs free the one that is the farthest behind on its own server; then who is so next, and so on, until nobody
finds any. GPUs that a process is bound to are counted as such: chosen by number alone, half of those who are to run would be bound to GPUs of one another.

What a user is behind are the GPU-quanta that are due to it (`mechanism.level`), less those that it was given, up to two turns of the widest job of the pool: who has no jobs where GPUs are
free for them gets less than its due, and would else take it from others all at once as soon as it has. What a job is behind goes by its tickets, as its server's own stride would have it: its part of
what all of its server were given. Each job has half of that part in any case: its user may be given all of its due by jobs elsewhere, for as long as they live.

What a server does with it is its own matter: who is chosen comes first, and whose process is not up yet, or is in another's way, has its GPUs taken by others by pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import chain
from math import fsum
from typing import NamedTuple

from hs_core.mechanism.gang_turns import GangTurns
from hs_core.mechanism.placing import Home
from hs_core.mechanism.split import Books, Few, Key, Own
from hs_core.mechanism.stride import DEBT
from hs_core.mechanism.world import At, World
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import JobFacts

MOST_JOBS, MOST_SERVERS = 256, 16
BANK = 2.0  # turns of the widest job of its pool that a user may be behind its due, or ahead of it
SURE = 0.5  # of what its server's own stride would give a job it has in any case, whatever its user is due
TIE = 9  # digits of what orders go by
NOTHING = 1e-9  # GPUs due to who has no share


class Member(NamedTuple):
    """A job of one server."""

    job: JobId
    at: At  # its user and pool
    server: HostName
    gpus: int
    tickets: float
    arrival_s: float
    forced: bool = False  # runs and cannot be suspended
    # GPUs of its server, by index, that its process has; empty: any will do.
    bound: frozenset[int] = frozenset()

    @property
    def user(self) -> UserName:
        return self.at[0]


class UserTurns:
    """Of pools in which turns are chosen so, quantum after quantum. Mutable."""

    def __init__(self, members: Iterable[Member], gpus: Mapping[HostName, int], books: Books) -> None:
        self._gpus = gpus  # of these servers
        self._pools: dict[str, list[Member]] = {}
        for member in members:
            self._pools.setdefault(member.at[1], []).append(member)
        self._tickets = {one.job: one.tickets for one in self._all()}
        # GPU-quanta: what users and jobs were given, less what is due to them; and of jobs the least that is.
        self._given = {one.at: _number(books.get(f"u:{one.user}/{one.at[1]}")) for one in self._all()}
        # Who comes is a turn behind: the first of its user's to have one.
        self._got = {one.job: _number(books.get(f"t:{one.job}", -one.gpus)) for one in self._all()}
        self._least = {one.job: _number(books.get(f"l:{one.job}")) for one in self._all()}
        self._chosen: list[Member] = []

    def _all(self) -> Iterable[Member]:
        return chain.from_iterable(self._pools.values())

    @property
    def jobs(self) -> list[JobId]:
        return [one.job for one in self._all()]

    def weigh(self, tickets: Mapping[Key, Fraction]) -> None:
        """These have so many from now on; others are passed over."""
        for key, now in tickets.items():
            if not isinstance(key, tuple) and key in self._tickets:
                self._tickets[key] = float(now)

    def play(self, due: Mapping[At, float]) -> list[tuple[JobId, tuple[HostName, ...]]]:
        """Chooses, and charges. `due`: GPUs, to users in pools."""
        self._chosen = []
        for members in self._pools.values():
            dues = {one.at: max(due.get(one.at, 0.0), NOTHING) for one in members}
            lacks = {at: -self._given[at] for at in dues}
            handed = self._choose(members, lacks, dues)
            part, most = handed / fsum(dues.values()), BANK * max(one.gpus for one in members)
            for at, mine in dues.items():
                self._given[at] = min(most, max(-most, -lacks[at] - part * mine))
        self._charge()
        return [(one.job, (one.server,)) for one in self._chosen]

    def _choose(self, members: Sequence[Member], lacks: dict[At, float], due: Mapping[At, float]) -> int:
        """First who runs anyway, then who has had less than is sure. GPUs that are handed out."""
        room, before = _Room(self._gpus), len(self._chosen)
        for one in members:
            if one.forced:
                self._take(one, room, lacks)
        others = [one for one in members if not one.forced]
        short = [one for one in others if self._least[one.job] <= -one.gpus]
        self._by_users(short, room, lacks, due)
        taken = {one.job for one in self._chosen[before:]}
        self._by_users([one for one in others if one.job not in taken], room, lacks, due)
        return sum(one.gpus for one in self._chosen[before:])

    def _by_users(
        self, members: Sequence[Member], room: "_Room", lacks: dict[At, float], due: Mapping[At, float]
    ) -> None:
        lines: dict[At, list[Member]] = {}
        for one in sorted(members, key=self._order, reverse=True):
            lines.setdefault(one.at, []).append(one)
        heap = [(_rounded(-lacks[at] / due[at]), at) for at in lines]
        heapify(heap)
        while heap:
            _, at = heappop(heap)
            line = lines[at]
            # Who finds no room now finds none later: GPUs only become fewer.
            while line:
                if self._take(line.pop(), room, lacks):
                    heappush(heap, (_rounded(-lacks[at] / due[at]), at))
                    break

    def _take(self, one: Member, room: "_Room", lacks: dict[At, float]) -> bool:
        if not room.take(one):
            return False
        self._chosen.append(one)
        lacks[one.at] -= one.gpus
        return True

    def _order(self, one: Member) -> tuple[float, float, JobId]:
        return _rounded(self._got[one.job] / one.gpus), one.arrival_s, one.job

    def _charge(self) -> None:
        chosen = {one.job for one in self._chosen}
        handed: dict[HostName, int] = {}
        total: dict[HostName, float] = {}
        for one in self._all():
            total[one.server] = total.get(one.server, 0.0) + self._tickets[one.job]
            if one.job in chosen:
                handed[one.server] = handed.get(one.server, 0) + one.gpus
        for one in self._all():
            due = handed.get(one.server, 0) * self._tickets[one.job] / total[one.server]
            had = one.gpus if one.job in chosen else 0
            most = DEBT * one.gpus
            self._got[one.job] = min(most, max(-most, self._got[one.job] + had - due))
            self._least[one.job] = min(0.0, max(-most, self._least[one.job] + had - SURE * due))

    def books(self) -> dict[str, str | float]:
        return {
            **{f"u:{user}/{model}": given for (user, model), given in self._given.items()},
            **{f"t:{job}": got for job, got in self._got.items()},
            **{f"l:{job}": least for job, least in self._least.items() if least},
        }


class _Room:
    """GPUs that are left, server by server. Mutable."""

    def __init__(self, gpus: Mapping[HostName, int]) -> None:
        self._left = dict(gpus)
        self._taken: dict[HostName, set[int]] = {}

    def take(self, one: Member) -> bool:
        """False: they are not free."""
        taken = self._taken.setdefault(one.server, set())
        if self._left[one.server] < one.gpus or not taken.isdisjoint(one.bound):
            return False
        self._left[one.server] -= one.gpus
        taken |= one.bound
        return True


def _number(kept: str | float | None) -> float:
    return float(kept or 0.0)


def _rounded(number: float) -> float:
    return round(number, TIE)


def servers_of(world: World) -> dict[HostName, int]:
    """Those on which turns are chosen so, and their GPUs: of pools of several servers in which jobs of several users wait for one another, and no gang lives on several."""
    if len(world.jobs) > MOST_JOBS or len(world.hosts) > MOST_SERVERS:
        return {}
    found: dict[HostName, int] = {}
    for model in world.models:
        names = world.floor.servers[model].names
        if len(names) < 2 or any(name in world.parts for name in names):
            continue
        gpus = {name: world.hosts[name].gpus for name in names}
        users = {user for (user, at), asked in world.gpus.items() if at == model and asked > 0}
        waits = any(asked > has for asked, has in zip(world.asked_in(model), gpus.values(), strict=True))
        if len(users) > 1 and waits:
            found |= gpus
    return found


def members_of(
    world: World, servers: Mapping[HostName, int], tickets: Mapping[JobId, Fraction]
) -> list[Member]:
    """Jobs that could run there in the next quantum."""
    return [
        Member(
            job=job.id,
            at=(job.user, world.hosts[home[0]].model),
            server=home[0],
            gpus=job.gang,
            tickets=float(tickets[job.id]),
            arrival_s=job.arrival_s,
            forced=not job.sliceable and job.id in world.snapshot.running,
            bound=frozenset(job.gpus[0]) if job.gpus else frozenset(),
        )
        for job in world.jobs
        if (home := world.homes.get(job.id)) and home[0] in servers and _is_able(world, job, home)
    ]


def _is_able(world: World, job: JobFacts, home: Home) -> bool:
    """Also where its process is on its way up: if it is not there in time others have its GPUs."""
    stays = job.going is None and job.hosts in ((), home)
    return stays and not job.held_up and job.id not in world.unable and world.hosts[home[0]].connected


def are_all(members: Sequence[Member], world: World, servers: Mapping[HostName, int]) -> bool:
    """Nobody lives there who takes no part yet."""
    return len(members) == sum(home[0] in servers for home in world.homes.values() if home)


class Both:
    """Gangs over several servers, as split stride has them, and pools whose turns go by users."""

    def __init__(self, split: Few, users: UserTurns, due: Mapping[At, float]) -> None:
        """`due`: GPUs, to users in pools."""
        self._split = split
        self._users = users
        self._due = due

    @property
    def gangs(self) -> list[JobId]:
        """That have a turn of their own."""
        return [*self._split.gangs, *self._users.jobs]

    @property
    def small(self) -> list[Own]:
        """Whose turns go together."""
        return self._split.small

    def weigh(self, tickets: Mapping[Key, Fraction]) -> None:
        self._split.weigh(tickets)
        self._users.weigh(tickets)

    def play(self) -> GangTurns:
        """One quantum: chooses, and charges."""
        chosen = [*self._split.play().gangs, *self._users.play(self._due)]
        return GangTurns(sorted(chosen, key=lambda gang: (min(gang[1]), gang[0])))

    def books(self) -> Books:
        return {**self._split.books(), **self._users.books()}
