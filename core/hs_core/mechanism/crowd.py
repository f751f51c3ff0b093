"""Split stride (`mechanism.split`) over thousands of gangs and servers at once: the same walk, the same charges, over arrays.

The walk by (lag, order) is made in rounds: in each, who comes before all others that want one of its servers has its turn, and who no longer fits
is out. Books are floats here: what they are off by is far below the grain of a quantum, and below what tells two lags apart, as long as nobody among those
that share servers has more than a million times as many tickets as another.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain, repeat
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError
from hs_core.mechanism.gang_turns import GangTurns
from hs_core.mechanism.phases import gaps
from hs_core.mechanism.split import TIE, Books, Few, Gang, Key, Kind, Server, name_of
from hs_core.mechanism.stride import DEBT
from hs_core.names import JobId

FEW = 256  # gangs and servers: up to so many take turns exactly

_arrival, _name = attrgetter("arrival_s", "job"), attrgetter("name")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Crowd:
    """Gangs and aggregates of servers' small jobs as one row of entities: aggregates by name and width, then gangs by arrival."""

    def __init__(self, gangs: Sequence[Gang], servers: Sequence[Server], books: Books) -> None:
        able = sorted([gang for gang in gangs if gang.able], key=_arrival)
        if poor := [gang for gang in able if gang.tickets.numerator <= 0]:
            raise BrokenError(f"job {poor[0].job} has {poor[0].tickets} tickets; expected more than 0")
        used = set(chain.from_iterable(gang.servers for gang in able))
        there = sorted([server for server in servers if server.name in used], key=_name)
        own = [
            (server, small)
            for server in there
            for small in server.small
            if small.tickets.numerator > 0 and server.wants(small)
        ]
        index = {server.name: at for at, server in enumerate(there)}
        self._names = [server.name for server in there]
        self._whose: list[Key] = [
            *((server.name, small.width) for server, small in own),
            *(gang.job for gang in able),
        ]
        self._keys = list(map(name_of, self._whose))
        self._small = len(own)  # entities before are aggregates
        self._width = _ints([small.width for _, small in own])
        self._stuck = _ints([min(server.gpus, small.stuck) for server, small in own])
        self._free = _ints([server.gpus - server.stuck for server in there])
        homes = [gang.servers for gang in able]
        self._nodes = _ints([*repeat(1, len(own)), *map(len, homes)])
        self._entity = np.repeat(np.arange(len(self._nodes)), self._nodes)  # by part: whose …
        names = chain((server.name for server, _ in own), chain.from_iterable(homes))
        self._server = _ints(list(map(index.__getitem__, names)))  # … and where
        # Gangs as `GangTurns` has them.
        self._by_server = self._in_order([gang.job for gang in able])
        self._gangs = [(able[at].job, able[at].servers) for at in self._by_server.tolist()]
        wants = [server.wants(small) for server, small in own]
        self._gpus = _ints([*wants, *(gang.per_node for gang in able)])  # on each of its servers
        needs = self._gpus.copy()
        needs[: self._small] = np.maximum(0, needs[: self._small] - self._stuck)
        self._needs = needs
        self._wants = needs[self._entity]  # by part: GPUs that it takes there
        self._contest = self._who_fits()
        has = [*(small.tickets for _, small in own), *(gang.tickets for gang in able)]
        self._last = np.array([True] * len(own) + [not gang.forced for gang in able], dtype=np.bool_)
        self._could = self._who_could()
        self._group = self._components()
        self._by_group = np.argsort(self._group, kind="stable")
        self._firsts = _firsts(self._group[self._by_group])  # of each, in that order
        self._stride = self._gpus * self._nodes  # times tickets
        self._strides = np.bincount(self._group, weights=self._stride)
        # As `float` does, at half its cost.
        self.weigh_all(np.array([one.numerator / one.denominator for one in has], dtype=np.float64))
        self._got = np.array([_number(books.get(key)) for key in self._keys], dtype=np.float64)
        self._spread(able, [at for at, key in enumerate(self._keys[self._small :]) if key not in books])
        self._kept = {
            key: books[key] for gang in gangs if not gang.able and (key := name_of(gang.job)) in books
        }

    def _who_could(self) -> Bools:
        """Run in a quantum, had they come first."""
        forced = np.where(self._last[self._entity], 0, self._wants)
        held = np.bincount(self._server, weights=forced, minlength=len(self._free))
        could = np.ones(len(self._nodes), dtype=np.bool_)
        could[self._entity[self._wants > (self._free - held)[self._server]]] = False
        return could

    def _components(self) -> Ints:
        """Entities that share servers, directly or not, by one number."""
        label = np.arange(len(self._names))
        while True:
            mine = np.full(len(self._nodes), len(label))
            np.minimum.at(mine, self._entity, label[self._server])
            after = label.copy()
            np.minimum.at(after, self._server, mine[self._entity])
            after = after[after]
            if np.array_equal(after, label):
                return np.unique(mine, return_inverse=True)[1]
            label = after

    def _in_order(self, jobs: Sequence[JobId]) -> Ints:
        """Gangs by the first of their servers by name, then by id."""
        if not jobs:
            return _ints([])
        parts = np.cumsum(self._nodes) - self._nodes
        firsts = np.minimum.reduceat(self._server, parts[self._small :])
        return np.lexsort((_ints(jobs), firsts))

    def _spread(self, gangs: Sequence[Gang], came: Sequence[int]) -> None:
        """Newcomers among gangs over one stride, as `split` has it."""
        if not came:
            return
        groups, new = self._group[self._small :].tolist(), set(came)
        kin: dict[tuple[int, Kind], list[int]] = {(groups[at], gangs[at].kind): [] for at in came}
        users = {gangs[at].user for at in came}
        for at in [at for at, gang in enumerate(gangs) if gang.user in users]:
            if (mine := kin.get((groups[at], gangs[at].kind))) is not None:
                mine.append(at)
        for (_, (_, nodes, per_node)), alike in kin.items():
            late, stride = [at for at in alike if at in new], float(nodes * per_node)
            taken = [self._got[self._small + at] / stride % 1.0 for at in alike if at not in new]
            for at, phase in zip(late, gaps(taken, len(late), 1.0), strict=True):
                self._got[self._small + at] = phase * stride

    def weigh(self, tickets: Mapping[Key, Fraction]) -> None:
        """These have so many from now on; those that take no turns here are passed over."""
        has = self._tickets.copy()
        for at, key in enumerate(self._whose):
            if (now := tickets.get(key)) is not None:
                has[at] = float(now)
        self.weigh_all(has)

    @property
    def whose(self) -> Sequence[Key]:
        """Turns these are."""
        return self._whose

    def weigh_all(self, tickets: Floats) -> None:
        """By `whose`, from now on."""
        self._tickets = tickets
        total = np.bincount(self._group, weights=tickets).astype(np.float64, copy=False)
        mean = np.divide(self._strides, total, out=np.zeros_like(total), where=total > 0)
        self._total = total  # by component …
        self._mean: Floats = mean[self._group]  # … and a stride of its, by entity
        self._most_ahead: Floats = DEBT * np.maximum(self._stride / tickets, self._mean)

    def play(self) -> GangTurns:
        """One quantum: chooses, and charges."""
        if not self._gangs:
            return GangTurns(())
        lags = self._clamped()
        order = _order(np.rint(lags / self._mean * 10.0**TIE))
        if not self._last.all():
            order = order[np.argsort(self._last[order], kind="stable")]
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        runs, left = self._walk(rank, order)
        given = np.where(runs, self._stride, 0)
        self._give_what_is_left(given, ~runs[: self._small], rank, order, left)
        self._charge(given.astype(np.float64), lags)
        return self._turns(runs)

    def books(self) -> Books:
        return {**dict(zip(self._keys, self._got.tolist(), strict=True)), **self._kept}

    def _clamped(self) -> Floats:
        """Lags. Virtual time stays among the passes of those who are here: departures leave no debt to newcomers, nor credit."""
        lags = self._got / self._tickets
        grouped = lags[self._by_group]
        most, least = np.maximum.reduceat(grouped, self._firsts), np.minimum.reduceat(grouped, self._firsts)
        shift = np.where(least > 0, least, np.where(most < 0, most, 0.0))
        if not shift.any():
            return lags
        self._got = self._got - shift[self._group] * self._tickets
        return self._got / self._tickets

    def _give_what_is_left(self, given: Ints, waits: Bools, rank: Ints, order: Ints, left: Ints) -> None:
        """To small jobs whose turn it is not (`waits`), on each server by `rank`: `order` is who has which."""
        given[: self._small][waits] = self._stuck[waits]
        short = np.flatnonzero(waits & (left > 0)[self._server[: self._small]])
        # With the rank in one number with it each differs from all others, and such are sorted several times as fast.
        bits = len(rank).bit_length()
        both = np.sort((self._server[short] << bits) | rank[short])
        short, servers = order[both & ((1 << bits) - 1)], both >> bits
        place = np.arange(short.size)
        firsts = _firsts(servers)
        place -= np.repeat(firsts, np.diff(firsts, append=place.size))
        for at in range(int(place.max(initial=-1)) + 1):  # widths that a server's jobs have are few
            now, where = short[place == at], servers[place == at]
            width = self._width[now]
            more = np.minimum(self._needs[now], left[where]) // width * width
            left[where] -= more
            given[now] = self._stuck[now] + more

    def _who_fits(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Parts of those that find room on servers that nobody has yet, server by server: whose, where, how many GPUs; and where each server's begin."""
        never = np.zeros(len(self._nodes), dtype=np.bool_)
        never[self._entity[self._free[self._server] < self._wants]] = True
        parts = np.argsort(self._server, kind="stable")
        parts = parts[~never[self._entity[parts]]]
        server = self._server[parts]
        return self._entity[parts], server, self._wants[parts], _firsts(server)

    def _walk(self, rank: Ints, order: Ints) -> tuple[Bools, Ints]:
        """Who has its turn, and the GPUs that are left on each server."""
        free, runs = self._free.copy(), np.zeros(len(rank), dtype=np.bool_)
        entity, server, wants, firsts = self._contest
        turn = rank[entity]
        while entity.size:
            who = order[np.minimum.reduceat(turn, firsts)]
            now = np.bincount(who, minlength=len(rank))[who] == self._nodes[who]  # first everywhere
            who = who[now]
            free[server[firsts[now]]] -= self._needs[who]
            runs[who] = True
            fits = np.flatnonzero(free[server] >= wants)
            whose = entity[fits]
            everywhere = np.bincount(whose, minlength=len(rank))[whose] == self._nodes[whose]
            stays = fits[everywhere & ~runs[whose]]
            entity, server, wants, turn = entity[stays], server[stays], wants[stays], turn[stays]
            firsts = _firsts(server)
        return runs, free

    def _charge(self, given: Floats, lags: Floats) -> None:
        """Each is charged what it was given, less its part of what all of its component were given. `lags`: before that."""
        total = self._total
        handed = np.bincount(self._group, weights=given)
        part = np.divide(handed, total, out=np.zeros_like(total), where=total > 0)
        self._got = self._got + given - self._tickets * part[self._group]
        self._bound(lags, part)

    def _bound(self, lags: Floats, part: Floats) -> None:
        """As `split` has it. `lags`: before this quantum, in which virtual time went on by so much."""
        could, total = self._could, self._total
        last = np.minimum.reduceat(np.where(could, lags, np.inf)[self._by_group], self._firsts)
        now = np.minimum(self._got, ((last - part)[self._group] + self._most_ahead) * self._tickets)
        now = np.where(could, now, np.maximum(now, -self._stride))
        beyond = self._got - now
        if not beyond.any():
            return
        back = np.bincount(self._group, weights=beyond, minlength=total.size)
        back = np.divide(back, total, out=np.zeros_like(total), where=total > 0)
        self._got = now + back[self._group] * self._tickets

    def _turns(self, runs: Bools) -> GangTurns:
        return GangTurns(self._gangs, np.flatnonzero(runs[self._small + self._by_server]))


def table(gangs: Sequence[Gang], servers: Sequence[Server], books: Books) -> Few | Crowd:
    """Those who take turns; `books` are what the last one had."""
    return (Few if len(gangs) + len(servers) <= FEW else Crowd)(gangs, servers, books)


def _order(numbers: Floats) -> Ints:
    """Of these, which are whole: the places of the least first; of equal ones by place."""
    bits = len(numbers).bit_length()
    if np.abs(numbers).max(initial=0.0) >= 2.0 ** (62 - bits):
        return np.argsort(numbers, kind="stable")
    # With its place in one number with it each differs from all others, and such are sorted several times as fast.
    both = np.sort((numbers.astype(np.int64) << bits) | np.arange(len(numbers)))
    places: Ints = both & ((1 << bits) - 1)
    return places


def _firsts(numbers: Ints) -> Ints:
    """The places where others begin than before; equal ones lie together."""
    others = np.ones(numbers.size, dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=others[1:])
    return np.flatnonzero(others)


def _ints(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)


def _number(kept: str | float | None) -> float:
    if kept is None:
        return 0.0
    return kept if isinstance(kept, float) else float(Fraction(kept))
