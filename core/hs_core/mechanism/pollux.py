"""Pollux's search (OSDI'21, 4.2): which GPUs elastic jobs have, so that all get on well by their goodput.

The cluster's fitness is the generalized mean of speed-ups over a fair share (p = -1: close to the slowest's), searched by mutation, crossover and
tournament over matrices of jobs x servers. All dice are given: the same question, the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core.dice import Random
from hs_core.errors import BrokenError
from hs_core.mechanism.goodput import Elastic, Tuned, tune

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

RESTART_S = 30.0
POWER = -1.0
LEAST_SPEEDUP = 1e-2  # of a job without GPUs, so that the mean of one and of many starving jobs differ
_NO_ROOM = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A job and where it stands."""

    job: Elastic
    now: tuple[int, ...] = ()  # GPUs on each server; (): none
    age_s: float = 0.0
    restarts: int = 0
    held_gpus: int = 0  # the most it ever had; it may have at most twice as many at once
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    population: int = 40
    generations: int = 60
    patience: int = 15  # generations without a better one, after which it ends
    restart_s: float = RESTART_S
    power: float = POWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    gpus: Ints  # jobs x servers
    tuned: tuple[Tuned, ...]
    fitness: float
    speedup: Floats  # of each job over its fair share, restarts counted


def keeps(one: Candidate, restart_s: float) -> float:
    """The part of its goodput that is left if it is restarted once more, by how often it was in its life (paper, 4.2)."""
    total_s = one.age_s + restart_s
    return max(0.0, one.age_s - one.restarts * restart_s) / total_s if total_s > 0 else 1.0


def _now(jobs: Sequence[Candidate], servers: Ints) -> Ints:
    """What they have, jobs x servers."""
    none = (0,) * len(servers)
    return np.array([one.now or none for one in jobs], np.int64).reshape(len(jobs), len(servers))


class _Judge:
    """Speed-ups of jobs by (GPUs, servers), each looked up once."""

    def __init__(self, jobs: Sequence[Candidate], servers: Ints, search: Search) -> None:
        self.jobs, self.search = jobs, search
        total, largest = int(servers.sum()), int(servers.max())
        # By GPUs and servers they are on; filled as asked for.
        self.cap = max(one.job.most_gpus for one in jobs) + 1  # so many are too many for all
        self.known = np.full((len(jobs), self.cap + 1, min(self.cap, len(servers)) + 1), np.nan)
        fair = []
        for one in jobs:
            share = min(one.job.most_gpus, max(one.job.least_gpus, total // max(1, len(jobs))))
            fair.append(tune(one.job, share, -(-share // max(1, largest))).goodput)
        self.fair = np.array(fair)
        self.now = _now(jobs, servers)
        self.weight = np.array([one.weight for one in jobs])
        self.keeps = np.array([keeps(one, search.restart_s) for one in jobs])
        self.runs = self.now.sum(axis=1) > 0

    def speedups(self, gpus: Ints) -> Floats:
        """Of many allocations at once: ... x jobs x servers → ... x jobs."""
        counts = np.minimum(gpus.sum(axis=-1), self.cap)
        spans = np.minimum((gpus > 0).sum(axis=-1), self.cap)
        at = np.broadcast_to(np.arange(len(self.jobs)), counts.shape)
        speedup = self.known[at, counts, spans]
        unknown = np.isnan(speedup)
        if unknown.any():
            keys = np.unique(np.stack([at[unknown], counts[unknown], spans[unknown]]), axis=1)
            for job, count, span in keys.T.tolist():
                good = tune(self.jobs[job].job, count, span).goodput if count else 0.0
                self.known[job, count, span] = good / self.fair[job] if self.fair[job] > 0 else 0.0
            speedup = self.known[at, counts, spans]
        moved = self.runs & (gpus != self.now).any(axis=-1)
        found: Floats = np.where(moved, speedup * self.keeps, speedup)
        return found

    def fitness(self, gpus: Ints) -> Floats:
        p = self.search.power
        powers = np.maximum(self.speedups(gpus), LEAST_SPEEDUP) ** p
        mean: Floats = (powers @ self.weight / self.weight.sum()) ** (1 / p)
        return mean


def fitness(jobs: Sequence[Candidate], servers: Ints, gpus: Ints, search: Search | None = None) -> float:
    """Of an allocation (jobs x servers), restarts counted."""
    return float(_Judge(jobs, servers, search or Search()).fitness(gpus))


def optimize(jobs: Sequence[Candidate], servers: Ints, dice: Random, search: Search | None = None) -> Outcome:
    """`servers`: GPUs of each, all of one model. Never worse than what jobs have now, if that fits. At most one job over several servers on a server,
    for their synchronizing would disturb one another's.
    """
    search = search or Search()
    if not jobs or not len(servers) or servers.sum() == 0:
        return Outcome(
            gpus=np.zeros((len(jobs), len(servers)), np.int64),
            tuned=tuple(Tuned(goodput=0.0) for _ in jobs),
            fitness=0.0,
            speedup=np.zeros(len(jobs)),
        )
    for at, one in enumerate(jobs):
        if one.now and len(one.now) != len(servers):
            raise BrokenError(
                f"job {at} has GPUs on {len(one.now)} servers; expected a number for each of {len(servers)}"
            )
    judge = _Judge(jobs, servers, search)
    gene = np.random.Generator(np.random.PCG64(dice.getrandbits(64)))
    breed = _Breed(jobs, servers, judge.now, gene)
    seeds = np.stack([judge.now, breed.packed()])
    people = np.concatenate([seeds, breed.mutate(seeds[np.arange(search.population - 2) % 2])])
    people = breed.repair(people)
    scores = judge.fitness(people)
    still = 0
    for _ in range(search.generations):
        mothers, fathers = (breed.tournaments(people, scores) for _ in range(2))
        children = breed.repair(breed.mutate(breed.cross(mothers, fathers)))
        people = np.concatenate([people, children])
        scores = np.concatenate([scores, judge.fitness(children)])
        # The best survive; of equals the older.
        order = np.argsort(-scores, kind="stable")[: search.population]
        still = 0 if scores[order[0]] > scores[0] else still + 1
        people, scores = people[order], scores[order]
        if still >= search.patience:
            break
    best = people[0]
    spans = zip(jobs, best.sum(axis=1).tolist(), (best > 0).sum(axis=1).tolist(), strict=True)
    tuned = tuple(tune(one.job, count, span) if count else Tuned(goodput=0.0) for one, count, span in spans)
    return Outcome(gpus=best, tuned=tuned, fitness=float(scores[0]), speedup=judge.speedups(best))


class _Breed:
    """Allocations that come of others. `now`: what jobs have."""

    def __init__(
        self, jobs: Sequence[Candidate], servers: Ints, now: Ints, gene: np.random.Generator
    ) -> None:
        self.servers, self.now, self.gene = servers, now, gene
        self.least = np.array([one.job.least_gpus for one in jobs])
        grown = [max(one.job.least_gpus, 2 * max(1, one.held_gpus, sum(one.now))) for one in jobs]
        self.most = np.minimum([one.job.most_gpus for one in jobs], grown)
        self.spans = [one.job.servers for one in jobs]
        self.holds = self.now > 0
        self.are_spread = np.add.reduce(self.holds, 1) > 1
        self.ranks = np.arange(len(servers))

    def packed(self) -> Ints:
        """Everybody its least, a server at a time: a start for clusters where nobody runs."""
        gpus = np.zeros((len(self.least), len(self.servers)), np.int64)
        free = self.servers.copy()
        for job in np.argsort(self.least, kind="stable"):
            if self.spans[job] == 0:
                none = np.zeros((1, len(free)), np.int64)
                room = np.zeros((1, len(free)), bool)
                gpus[job] = self._laid(none, self.least[job : job + 1], free[None, :], room, int(job))[0]
                free -= gpus[job]
                continue
            spans = self.spans[job]
            each = self.least[job] // spans
            fits = np.flatnonzero(free >= each)
            if len(fits) >= spans:
                at = fits[np.argsort(free[fits], kind="stable")[:spans]]
                gpus[job, at] = each
                free[at] -= each
        return gpus

    def mutate(self, people: Ints) -> Ints:
        many, jobs, servers = people.shape
        changed = self.gene.random(people.shape) < 1 / max(2, servers)
        changed &= self.gene.random((many, jobs, 1)) < max(0.1, 2 / jobs)
        fresh = self.gene.integers(0, self.servers + 1, people.shape)
        mutants: Ints = np.where(changed, fresh, people)
        return mutants

    def cross(self, mothers: Ints, fathers: Ints) -> Ints:
        children: Ints = np.where(self.gene.random((*mothers.shape[:2], 1)) < 0.5, mothers, fathers)
        return children

    def tournaments(self, people: Ints, scores: Floats) -> Ints:
        one, other = self.gene.integers(0, len(people), (2, len(people)))
        winners: Ints = people[np.where(scores[one] >= scores[other], one, other)]
        return winners

    def repair(self, people: Ints) -> Ints:
        """Makes each one that can be: servers full at most, one spread job on each, everybody between its least and most, or nothing.

        Jobs take their part in a random order, and who has nothing then gets its least on the fullest server with room for it.
        """
        people = people.copy()
        order = self.gene.permutation(people.shape[1]).tolist()
        free = np.repeat(self.servers[None, :], len(people), axis=0)
        spread = np.zeros(free.shape, bool)
        for job in order:
            self._limit(people, free, spread, job)
        for job in order:
            if self.spans[job] == 0:
                self._least_over_any(people, free, spread, job)
            elif self.spans[job] == 1:
                self._least_on_one(people, free, job)
        return people

    def _limit(self, people: Ints, free: Ints, spread: Bools, job: int) -> None:
        """To what can be, beside what those before it have taken."""
        spans = self.spans[job]
        if spans == 0:
            rows = self._over_any(people[:, job], free, spread, job)
        else:
            rows = self._spanning(people[:, job], free, job)
            if spans > 1:
                wide = np.add.reduce(rows > 0, 1) > 1
                rows = np.where(wide[:, None] & spread, 0, rows)
            rows = _at_most(rows, int(self.most[job]))
            rows[np.add.reduce(rows, 1) < self.least[job]] = 0
        if spans != 1:
            spread |= _spread(rows)
        people[:, job] = rows
        free -= rows

    def _spanning(self, rows: Ints, free: Ints, job: int) -> Ints:
        """What of these fits, on as many servers as the job must have."""
        spans = self.spans[job]
        # The wish decides, and where it is the same the fuller server that has room.
        each = int(self.least[job]) // spans
        able = free >= each
        wish = np.where(able, np.minimum(rows, free), -1)
        order = np.lexsort((free, -wish), axis=1)[:, :spans]
        chosen = np.zeros(rows.shape, bool)
        chosen[np.arange(len(rows))[:, None], order] = True
        if spans == 1:
            return np.where(chosen & able, np.minimum(rows, free), 0)
        whole = (chosen & able).sum(axis=1) == spans
        wished = (rows > 0).any(axis=1)
        return np.where(chosen & (whole & wished)[:, None], each, 0)

    def _over_any(self, rows: Ints, free: Ints, spread: Bools, job: int) -> Ints:
        """As many GPUs as these, as far as there is room, in equal parts over as few servers as can be; as it runs now where it is left so."""
        asked = np.minimum(np.add.reduce(rows, 1), self.most[job])
        found = self._laid(rows, asked, free, spread, job)
        now, holds = self.now[job], self.holds[job]
        if holds.any():
            stays = np.logical_and.reduce((rows == now) & (now <= free), 1) & (now.sum() <= self.most[job])
            if self.are_spread[job]:
                stays &= ~np.logical_or.reduce(holds & spread, 1)
            found = np.where(stays[:, None], now, found)
        return found

    def _least_over_any(self, people: Ints, free: Ints, spread: Bools, job: int) -> None:
        without = np.add.reduce(people[:, job], 1) == 0
        if not without.any():
            return
        asked = np.where(without, self.least[job], 0)
        rows = self._laid(np.zeros(free.shape, np.int64), asked, free, spread, job)
        people[:, job] += rows
        free -= rows
        spread |= _spread(rows)

    def _least_on_one(self, people: Ints, free: Ints, job: int) -> None:
        least = int(self.least[job])
        without = np.add.reduce(people[:, job], 1) == 0
        if not without.any():
            return
        room = np.where(free >= least, free, _NO_ROOM)
        at = room.argmin(axis=1)
        takes = np.flatnonzero(without & (np.minimum.reduce(room, 1) < _NO_ROOM))
        people[takes, job, at[takes]] = least
        free[takes, at[takes]] -= least

    def _laid(self, wish: Ints, asked: Ints, free: Ints, spread: Bools, job: int) -> Ints:
        """So many GPUs or fewer in equal parts over as few servers as can be: those that are wished for, then the fullest.

        Not over more than would do if parts need not be equal; of these numbers of servers the one that gives it most. Over several it is nowhere
        where another such job is. Nothing where there is less than its least.
        """
        fewest = min(int(np.maximum.reduce(asked, initial=0)), free.shape[1])
        if not fewest:
            return np.zeros(free.shape, np.int64)
        alone = np.where(spread, 0, free)  # for who is on several servers
        most = np.arange(1, fewest + 1)
        ordered = alone.copy()
        ordered.sort(axis=1)
        room = ordered[:, : -fewest - 1 : -1]  # of the n-th fullest: what n servers have at least
        room[:, 0] = np.maximum.reduce(free, 1)
        enough = np.cumsum(room, axis=1) - room >= asked[:, None]
        each = np.where(enough, 0, np.minimum(asked[:, None] // most, room))
        over = (each * most).argmax(axis=1)  # of equals the fewest servers
        each = each[np.arange(len(each)), over]
        each = np.where(each * (over + 1) >= max(1, int(self.least[job])), each, 0)[:, None]
        able = np.where((over == 0)[:, None], free, alone) >= np.maximum(each, 1)
        order = np.lexsort((free, -np.where(able, np.minimum(wish, free), -1)), axis=1)
        rank = np.empty_like(order)
        rank[np.arange(len(order))[:, None], order] = self.ranks
        return np.where(able & (rank <= over[:, None]), each, 0)


def _spread(rows: Ints) -> Bools:
    """Where those are that are on several servers."""
    there = rows > 0
    over: Bools = there & (np.add.reduce(there, 1) > 1)[:, None]
    return over


def _at_most(rows: Ints, most: int) -> Ints:
    """Rows with more than `most` give back, where they have the fewest first."""
    over = np.add.reduce(rows, 1) - most
    if (over <= 0).all():
        return rows
    order = np.argsort(rows, axis=1, kind="stable")
    ranked = np.take_along_axis(rows, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked
    back = np.clip(over[:, None] - before, 0, ranked)
    kept = rows.copy()
    np.put_along_axis(kept, order, ranked - back, axis=1)
    return kept
