"""AlloX (EuroSys'20): which job of one GPU goes to which type of device and how far from the end of its queue, for the least mean completion time.

A job that is k-th from the end of its device makes k jobs wait for it, itself included: it costs k times its time there. Devices of a type are
alike but for when they are free, which costs the same whoever goes there: so a place is (type, k), and its seats cost those times, the earliest
first. A transportation problem with a handful of sinks, instead of an assignment with a column for each device and position. How old jobs are does
not matter: it adds the same to every assignment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError
from hs_core.solve import Sinks, transport

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROOM = 1.5  # seats for a job to begin with; more are added where the certificate asks
SLACK = 1e-9  # relative: costs closer than this are equal
ROUNDING = 1e-13
"""Of the largest price: a way that is shorter by less is no shorter. Else ways round and round through places that cost the same would become shorter for ever."""
LONGEST_S = 1e9
"""Seconds on its fastest type that a job counts as taking, and that a device is waited for, at most: beside larger costs (`--steps` without end) those of all
others are the same to a solver that counts in whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """J jobs; -1 where a job can run nowhere."""

    on: Ints  # type of each job
    place: Ints  # from the end of its device's queue: 1 is the last
    device: Ints  # which of the type's: 0 is free the earliest
    first: NDArray[np.bool_]  # it begins as soon as its device is free
    total_s: float  # sum over jobs of the time until it is done
    bound_s: float  # no assignment has less: equal to total_s, but for rounding


def allox(left_s: Floats, free_in_s: Sequence[Floats]) -> Queues:
    """`left_s`: J x T, seconds that the rest of the job takes on that type; infinite: it can't run there. `free_in_s`: of each type, seconds until each of its devices is free.

    What takes longer than `LONGEST_S` counts as that long, also in the sums.
    """
    jobs, types = left_s.shape if left_s.ndim == 2 else (0, -1)
    if len(free_in_s) != types:
        raise BrokenError(f"free_in_s has {len(free_in_s)} types; expected devices of each of {types} types")
    if np.isnan(left_s).any() or (left_s < 0).any():
        raise BrokenError(
            "left_s has values below 0 or not numbers; expected seconds, infinite where a job can't run"
        )
    for wait_s in free_in_s:
        if not (np.isfinite(wait_s).all() and (wait_s >= 0).all()):
            raise BrokenError(f"free_in_s is {wait_s}; expected seconds of at least 0 for each device")
    waits_s = [np.sort(np.minimum(wait_s, LONGEST_S)) for wait_s in free_in_s]
    open_ = np.array([len(wait_s) > 0 for wait_s in waits_s], dtype=bool)
    runs = (np.isfinite(left_s) & open_).any(axis=1)
    on, place = np.full(jobs, -1), np.full(jobs, -1)
    total = bound = 0.0
    if runs.any():
        able_s = _countable(np.where(open_, left_s, np.inf)[runs])
        on[runs], place[runs], total, bound = _seated(able_s, waits_s)
    device, first = _lay_out(on, place, types)
    return Queues(on=on, place=place, device=device, first=first, total_s=total, bound_s=bound)


def _countable(left_s: Floats) -> Floats:
    """Jobs that are too long are shortened on all types alike."""
    longest: Floats = np.maximum(1.0, left_s.min(axis=1, keepdims=True) / LONGEST_S)
    return left_s / longest


def _seated(left_s: Floats, waits_s: Sequence[Floats]) -> tuple[Ints, Ints, float, float]:
    """`waits_s`: of each type, ascending."""
    jobs = len(left_s)
    earliest = np.array([wait_s[0] if len(wait_s) else np.inf for wait_s in waits_s])
    at_once = [np.count_nonzero(wait_s == wait_s[:1]) for wait_s in waits_s]
    # A queue longer than all jobs need, on those devices that are free the earliest, is never used.
    deepest = np.array([-(-jobs // many) if many else 0 for many in at_once])
    depth = np.minimum(deepest, _likely(left_s, np.array(list(map(len, waits_s)))))
    while True:
        of = np.repeat(np.arange(len(waits_s)), depth)
        k = np.concatenate([np.arange(1, deep + 1) for deep in depth])
        costs = left_s[:, of] * k
        sinks = _sinks(of, waits_s)
        seat = transport(costs, sinks)
        if seat is None:  # not enough seats where these jobs can run
            depth = np.minimum(deepest, depth * 2)
            continue
        price, worth = _prices(costs, seat, sinks)
        # A place deeper than any so far would be free of charge: is it cheaper for somebody?
        scale = float(np.abs(worth).max(initial=1.0))
        next_ = np.where(depth < deepest, left_s * (depth + 1) + earliest, np.inf)
        short = (next_ < (worth - SLACK * scale)[:, None]).any(axis=0)
        if not short.any():
            total = float(costs[np.arange(jobs), seat].sum())
            total += sum(float(waits_s[of[at]][:many].sum()) for at, many in enumerate(np.bincount(seat)))
            bound = float(
                worth.sum() - (sinks.many * np.maximum(0.0, price[sinks.column] - sinks.extra)).sum()
            )
            return of[seat], k[seat], total, bound
        depth = np.where(short, np.minimum(deepest, depth * 2), depth)


def _likely(left_s: Floats, devices: Ints) -> Ints:
    """How deep queues become where devices take as many jobs as they are fast, and somewhat more: each time that this is too little, all is solved again."""
    best: Floats = left_s.min(axis=1, keepdims=True)
    speed = np.divide(best, left_s, out=np.ones(left_s.shape), where=left_s > 0).mean(axis=0)
    depth: Ints = np.ceil(ROOM * len(left_s) * speed / (speed @ devices)).astype(np.int64)
    return np.maximum(1, depth)


def _sinks(of: Ints, waits_s: Sequence[Floats]) -> Sinks:
    """Of each place (`of` these types) one on each of the type's devices, those that are free at the same time together."""
    alike = [np.unique(wait_s, return_counts=True) for wait_s in waits_s]
    return Sinks(
        column=np.repeat(np.arange(len(of)), [len(alike[type_][0]) for type_ in of]),
        many=np.concatenate([alike[type_][1] for type_ in of]),
        extra=np.concatenate([alike[type_][0] for type_ in of]),
    )


def _prices(costs: Floats, seat: Ints, sinks: Sinks) -> tuple[Floats, Floats]:
    """Of the places and what each job is worth: the proof that nothing is cheaper.

    Moving somebody from place a to b costs the least of the differences; the prices are shortest ways over such moves.
    """
    places = costs.shape[1]
    rows = np.arange(len(costs))
    own = costs[rows, seat]
    step = np.full((places, places), np.inf)
    for a in range(places):
        there = seat == a
        if there.any():
            step[a] = (costs[there] - own[there, None]).min(axis=0)
    taken = np.bincount(seat, minlength=places)
    # The price of a place is what it costs to free a seat there, by moves that end at an empty one. Where none is in reach any large price does.
    far = 2.0 * places * (float(own.max(initial=1.0)) + float(sinks.extra.max(initial=0.0)))
    price = _next_seat(taken, sinks, far)
    used = np.flatnonzero(taken > 0)  # nobody moves away from the others
    to = np.ascontiguousarray(step[used].T)
    changed = np.arange(places)  # became cheaper: ways over the others are as long as they were
    for _ in range(places):  # each round lengthens the ways by a move
        before = price[used]
        shorter = np.minimum(before, (to[changed] + price[changed, None]).min(axis=0))
        price[used] = shorter
        changed = used[shorter < before - ROUNDING * far]
        if not len(changed):
            break
    price = np.maximum(0.0, price)
    worth: Floats = (costs + price[None, :]).min(axis=1)
    return price, worth


def _next_seat(taken: Ints, sinks: Sinks, far: float) -> Floats:
    """What one more costs in each place; `far` where all are taken."""
    before = np.cumsum(sinks.many) - sinks.many  # of all columns
    first = np.searchsorted(sinks.column, np.arange(len(taken)))
    filled = before - before[first][sinks.column] + sinks.many <= taken[sinks.column]
    price = np.full(len(taken), far)
    np.minimum.at(price, sinks.column[~filled], sinks.extra[~filled])
    return price


def _lay_out(on: Ints, place: Ints, types: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Devices of a type take the jobs of each place in order, those that are free the earliest first; who is the furthest from the end begins."""
    device, first = np.full(len(on), -1), np.zeros(len(on), bool)
    for type_ in range(types):
        here = np.flatnonzero(on == type_)
        deepest: dict[int, int] = {}  # device → job
        for k in np.unique(place[here]):
            queue = here[place[here] == k]
            device[queue] = np.arange(len(queue))
            deepest |= dict(enumerate(queue.tolist()))
        first[list(deepest.values())] = True
    return device, first
