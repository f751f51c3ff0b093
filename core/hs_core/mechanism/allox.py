"""AlloX (EuroSys'20): which job of one GPU goes to which type of device and how far from the end of its queue, for the least mean completion time.

A job that is k-th from the end of its device makes k jobs wait for it, itself included: it costs k times its time there. Devices of a type are
alike, so a place is (type, k) with as many seats as the type has devices: a transportation problem with a handful of sinks, instead of an
assignment with a column for each device and position. How old jobs are does not matter: it adds the same to every assignment.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError
from hs_core.solve import transport

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
    device: Ints  # which of the type's
    first: NDArray[np.bool_]  # it begins now
    total_s: float  # sum over jobs of the time until it is done
    bound_s: float  # no assignment has less: equal to total_s, but for rounding


def allox(left_s: Floats, devices: Ints, free_in_s: Floats | None = None) -> Queues:
    """`left_s`: J x T, seconds that the rest of the job takes on that type; infinite: it can't run there. `devices`: T, of each type.

    `free_in_s`: T, seconds until the type's devices are free; none given: now. Devices that are busy are types of their own. What takes longer
    than `LONGEST_S` counts as that long, also in the sums.
    """
    jobs, types = left_s.shape if left_s.ndim == 2 else (0, -1)
    if devices.shape != (types,) or (devices < 0).any():
        raise BrokenError(f"devices is {devices}; expected a number of at least 0 for each of {types} types")
    if np.isnan(left_s).any() or (left_s < 0).any():
        raise BrokenError(
            "left_s has values below 0 or not numbers; expected seconds, infinite where a job can't run"
        )
    wait_s = np.zeros(types) if free_in_s is None else free_in_s
    if wait_s.shape != (types,) or not (np.isfinite(wait_s).all() and (wait_s >= 0).all()):
        raise BrokenError(f"free_in_s is {wait_s}; expected seconds of at least 0 for each of {types} types")
    runs = (np.isfinite(left_s) & (devices > 0)).any(axis=1)
    on, place = np.full(jobs, -1), np.full(jobs, -1)
    total = bound = 0.0
    if runs.any():
        able_s = _countable(np.where(devices > 0, left_s, np.inf)[runs])
        on[runs], place[runs], total, bound = _seats(able_s, devices, np.minimum(wait_s, LONGEST_S))
    device, first = _lay_out(on, place, types)
    return Queues(on=on, place=place, device=device, first=first, total_s=total, bound_s=bound)


def _countable(left_s: Floats) -> Floats:
    """Jobs that are too long are shortened on all types alike."""
    longest: Floats = np.maximum(1.0, left_s.min(axis=1, keepdims=True) / LONGEST_S)
    return left_s / longest


def _seats(left_s: Floats, devices: Ints, wait_s: Floats) -> tuple[Ints, Ints, float, float]:
    jobs = len(left_s)
    open_ = devices > 0
    deepest = np.where(
        open_, -(-jobs // np.maximum(1, devices)), 0
    )  # a queue longer than all jobs need is never used
    depth = np.minimum(deepest, int(np.ceil(ROOM * jobs / devices.sum())))
    while True:
        of = np.repeat(np.arange(len(devices)), depth)
        k = np.concatenate([np.arange(1, deep + 1) for deep in depth])
        costs = left_s[:, of] * k + wait_s[of]
        seat = transport(costs, devices[of])
        if seat is None:  # not enough seats where these jobs can run
            depth = np.minimum(deepest, depth * 2)
            continue
        price, worth = _prices(costs, seat, devices[of])
        # A place deeper than any so far would be free of charge: is it cheaper for somebody?
        scale = float(np.abs(worth).max(initial=1.0))
        next_ = np.where(open_ & (depth < deepest), left_s * (depth + 1) + wait_s, np.inf)
        short = (next_ < (worth - SLACK * scale)[:, None]).any(axis=0)
        if not short.any():
            rows = np.arange(jobs)
            total = float(costs[rows, seat].sum())
            bound = float(worth.sum() - (price * devices[of]).sum())
            return of[seat], k[seat], total, bound
        depth = np.where(short, np.minimum(deepest, depth * 2), depth)


def _prices(costs: Floats, seat: Ints, seats: Ints) -> tuple[Floats, Floats]:
    """Of the places (at least 0, 0 where a seat is empty) and what each job is worth: the proof that nothing is cheaper.

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
    far = 2.0 * places * float(own.max(initial=1.0))
    price = np.where(taken < seats, 0.0, far)
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


def _lay_out(on: Ints, place: Ints, types: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Devices of a type take the jobs of each place in order; who is the furthest from the end begins."""
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
