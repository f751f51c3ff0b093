"""Who of the jobs with gangs of one size has which of the places that they got: the cheapest way, exactly.

A program that stops at a gap, or counts in whole numbers, does not tell jobs apart whose costs differ by less. Equal jobs do differ by
as little (what they are owed, beside thousands of rounds that each takes), and the same ones would wait for ever.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING = 8 * float(np.finfo(np.float64).eps)  # of the largest cost of a cycle: less is no gain


def exchanged(costs: Floats, gpus: Ints, choice: Ints) -> Ints:
    """(J,) the choice of least cost with as many gangs of each size on each type as in `choice`; -1: it waits.

    Cycles of negative cost are looked for among types, not jobs: from each the job that goes cheapest to the next. Where there is none, no
    exchange of places, among however many jobs, costs less (Klein, 1967).
    """
    made = choice.copy()
    costs = np.column_stack([costs, np.zeros(len(costs))])  # to wait costs nothing
    for gang in np.unique(gpus[choice >= 0]).tolist():
        jobs = np.flatnonzero(gpus == gang)
        made[jobs] = _least(costs[jobs], made[jobs])
    return made


def _least(costs: Floats, choice: Ints) -> Ints:
    places = costs.shape[1]
    at = np.where(choice < 0, places - 1, choice)
    goes = np.full((places, places), np.inf)  # what it costs that one goes from a place to another …
    who = np.zeros((places, places), np.int64)  # … and who does

    def look(place: int) -> None:
        here = np.flatnonzero(at == place)
        goes[place] = np.inf
        if here.size:
            more = costs[here] - costs[here, place][:, None]
            cheapest = more.argmin(axis=0)
            goes[place], who[place] = more[cheapest, np.arange(places)], here[cheapest]
            goes[place, place] = np.inf

    for place in range(places):
        look(place)
    while cycle := _negative_cycle(goes):
        steps = [*zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
        jobs = [int(who[a, b]) for a, b in steps]
        touched = [abs(float(costs[job, b])) for job, step in zip(jobs, steps, strict=True) for b in step]
        gain = -sum(float(goes[a, b]) for a, b in steps)
        if gain <= ROUNDING * max(touched):
            break
        for job, (_, b) in zip(jobs, steps, strict=True):
            at[job] = b
        for place in cycle:
            look(place)
    return np.where(at == places - 1, -1, at)


def _negative_cycle(goes: Floats) -> list[int]:
    """The cheapest of two places, if it costs less than nothing; else one of more (Bellman and Ford); empty: there is none."""
    pairs = goes + goes.T
    a, b = np.unravel_index(int(pairs.argmin()), pairs.shape)
    if pairs[a, b] < 0:
        return [int(a), int(b)]
    count = len(goes)
    cost, before, last = np.zeros(count), np.zeros(count, np.int64), -1
    for _ in range(count):
        over = cost[:, None] + goes
        nearest = over.argmin(axis=0)
        found = over[nearest, np.arange(count)]
        less = found < cost
        if not less.any():
            return []
        before[less], cost[less] = nearest[less], found[less]
        last = int(np.flatnonzero(less)[0])
    for _ in range(count):  # back from there one comes onto the cycle
        last = int(before[last])
    cycle, place = [last], int(before[last])
    while place != last:
        cycle.append(place)
        place = int(before[place])
    return cycle[::-1]
