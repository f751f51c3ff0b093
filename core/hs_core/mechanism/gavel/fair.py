"""Max-min fairness over time, in one LP or filled to the brim, flat or by entities (Gavel, OSDI'20, 4.1 to 4.3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.kinds import Classes, classes
from hs_core.mechanism.gavel.program import Found, Program, Rows
from hs_core.mechanism.gavel.question import Allocation, Bools, Floats, Ints, Question, proportional_speed
from hs_core.solve import Entries, Method

TIGHT = 1e-7  # a part of the price above this is one
USUAL = 1e-4, 1e4  # between which solvers take the largest time that a class asks for as it is
LIGHT = 1e-7  # of the largest weight, or time; a lighter one rises when heavier ones can't any more: to solvers it is nothing beside them


def max_min(question: Question, *, by_class: bool = True, method: Method | None = None) -> Allocation:
    """Maximizes the least `gang * steps/s / (weight * proportional steps/s)`: `value`.

    Jobs that can run nowhere get nothing and count for nothing. One LP; over classes of jobs, which changes nothing but its size.
    `method`, here as everywhere: the fastest, unless Method.CENTRE is asked for; that gives equals equal time and spreads what is not needed for
    the optimum over all that can use it, as the solvers of Gavel's published figures do.
    """
    normal = _normal(question)
    return least_rate(question, normal, by_class=by_class, method=method)


def _normal(question: Question) -> Floats:
    """J: steps/s of a job for one unit of its fairness, at weight 1; 0: it can run nowhere."""
    normal: Floats = proportional_speed(question) / question.gang
    return normal


def least_rate(
    question: Question,
    unit: Floats,
    *,
    weighted: bool = True,
    by_class: bool = True,
    method: Method | None = None,
) -> Allocation:
    """Maximizes t: every job gets `t * unit` steps/s (J; times its weight, if `weighted`). Jobs whose unit is 0 get what is left: nothing."""
    groups = classes(question, unit, by_class=by_class)
    program = Program(question, groups)
    demand = unit[groups.first] * (question.weight[groups.first] if weighted else 1.0)
    if not (demand > 0).any() or not len(program.of):
        return program.allocation(np.zeros(len(program.of)), value=0.0, lps=0)
    found = raise_least(program, demand, method=method)
    return program.allocation(found.x, value=float(found.extra[0]), lps=found.lps)


def raise_least(program: Program, demand: Floats, *, method: Method | None = None) -> Found:
    """Maximizes t (`extra[0]`): a job of each class gets `t * demand` steps/s. Prices are of the classes; those that demand something share 1."""
    demand = tellable(program, demand)
    most = float(_time(program, demand).max(initial=0.0))
    # In other units a solver takes another one of several optima: so only where it would refuse these.
    unit = 1.0 if USUAL[0] <= most <= USUAL[1] or not most else most
    found = program.solve(_only_last(program), _at_least(program, demand / unit), method=method)
    return replace(found, extra=found.extra / unit)


def tellable(program: Program, demand: Floats) -> Floats:
    """Steps/s that classes ask for, but what is next to no time beside the largest is `LIGHT` of that: solvers refuse numbers so far apart."""
    most = float(_time(program, demand).max(initial=0.0))
    return np.where(demand > 0, np.maximum(demand, LIGHT * most * _fastest(program, demand)), demand)


def _time(program: Program, demand: Floats) -> Floats:
    """The part of the time in which each class would have to run where it is fastest."""
    fastest = _fastest(program, demand)
    time: Floats = np.divide(demand, fastest, out=np.zeros(len(demand)), where=fastest > 0)
    return time


def _fastest(program: Program, demand: Floats) -> Floats:
    found = np.zeros(len(demand))
    np.maximum.at(found, program.of, program.speed)
    return found


def _only_last(program: Program) -> Floats:
    costs = np.zeros(len(program.of) + 1)
    costs[-1] = -1.0
    return costs


def _at_least(program: Program, demand: Floats) -> Rows:
    """t - (steps/s of a job) / demand <= 0, for every class that demands something."""
    asks = demand > 0
    scale = np.divide(1.0, demand, out=np.zeros_like(demand), where=asks)
    rate = program.rate(-scale, extra=1)
    of = np.flatnonzero(asks)
    matrix = Entries(
        np.concatenate([rate.row, of]),
        np.concatenate([rate.col, np.full(len(of), len(program.of))]),
        np.concatenate([rate.value, np.ones(len(of))]),
        rate.shape,
    )
    return Rows(matrix, np.zeros(len(demand)))


def water_fill(question: Question, *, by_class: bool = True, method: Method | None = None) -> Allocation:
    """Max-min fair to the end: the least is as large as can be, then the second least, and so on. No job can get more but at the cost of
    one that has, for its weight, no more than it. `value`: the least. As many LPs as there are levels.
    """
    groups = classes(question, by_class=by_class)
    program = Program(question, groups)
    weight = question.weight[groups.first]
    return _fill(question, program, groups, lambda live: np.where(live, weight, 0.0), method)


class Inside(StrEnum):
    """How an entity divides what it has among its jobs."""

    FAIR = "fair"  # by the jobs' weights
    FIFO = "fifo"  # all to its first job until that can take no more, then the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A team, or a user: it has a weight of its own, however many jobs it runs."""

    weight: float
    inside: Inside = Inside.FAIR


def hierarchical(
    question: Question,
    entity: Ints,
    entities: Sequence[Entity],
    *,
    by_class: bool = True,
    method: Method | None = None,
) -> Allocation:
    """Water-filling between entities by their weights, and within each as it likes (4.3). `entity`: of each job (J); in a FIFO
    entity jobs come in the order of the question. An entity whose jobs can all take no more leaves the rest to others.
    """
    if entity.shape != question.gang.shape:
        raise BrokenError(
            f"entity has shape {entity.shape}; expected one for each of {len(question.gang)} jobs"
        )
    if len(entity) and not 0 <= entity.min() <= entity.max() < len(entities):
        raise BrokenError(f"entity names {entity.max()}; expected 0 to {len(entities) - 1}")
    for at, one in enumerate(entities):
        if not (np.isfinite(one.weight) and one.weight > 0):
            raise BrokenError(f"entity {at} has weight {one.weight}; expected a number above 0")
    fifo = np.array([one.inside is Inside.FIFO for one in entities])[entity]
    rank = np.where(fifo, np.arange(len(entity)), -1).astype(float)
    groups = classes(question, entity.astype(float), rank, by_class=by_class)
    program = Program(question, groups)
    of, queued, weight = entity[groups.first], fifo[groups.first], question.weight[groups.first]
    share = np.array([one.weight for one in entities])

    def weights(live: Bools) -> Floats:
        sizes = np.bincount(of, np.where(live, weight * groups.count, 0.0), len(entities))
        fair = share[of] * weight / np.where(sizes > 0, sizes, 1.0)[of]
        # Of a queue the first that is live has all of its entity's weight; its class is itself alone.
        heads = np.zeros(len(live), bool)
        waiting = np.flatnonzero(live & queued)
        heads[waiting[np.unique(of[waiting], return_index=True)[1]]] = True
        return np.where(queued, np.where(heads, share[of], 0.0), np.where(live, fair, 0.0))

    return _fill(question, program, groups, weights, method)


def _fill(
    question: Question,
    program: Program,
    groups: Classes,
    weights: Callable[[Bools], Floats],
    method: Method | None,
) -> Allocation:
    """Raises everybody's level at the speed of its weight until some can't go on; those stay there, and the rest goes on.

    Who can't: a job with a price (it costs the others), by duality. At least one has, each time.
    """
    normal = _normal(question)[groups.first]
    live = normal > 0
    scale = np.divide(1.0, normal, out=np.zeros_like(normal), where=live)
    level, kept = np.zeros(len(normal)), np.zeros(len(normal))
    x, least, lps = np.zeros(len(program.of)), 0.0, 0
    while live.any() and len(program.of):
        speed = np.where(live, weights(live), 0.0)
        fastest = float(speed.max())
        speed = np.where(speed > LIGHT * fastest, speed / fastest, 0.0)
        found = program.solve(_only_last(program), _rising(program, scale, kept, speed), method=method)
        x, rise, lps = found.x, float(found.extra[0]), lps + found.lps
        least = least if lps > found.lps else rise / fastest
        level = level + rise * speed
        # What was reached is kept but for rounding, so that no step makes the next one infeasible.
        kept = np.maximum(0.0, np.minimum(level * (1 - 1e-9), program.reached(x) * scale))
        bound = found.prices * speed > TIGHT  # they sum to 1
        live = live & ~bound
        assert bound.any(), f"{rise=}: nobody holds the level down, yet it does not rise"
    return program.allocation(x, value=least, lps=lps)


def _rising(program: Program, scale: Floats, kept: Floats, speed: Floats) -> Rows:
    """kept + t * speed - (steps/s of a job) * scale <= 0; jobs that can run nowhere keep nothing."""
    rate = program.rate(-scale, extra=1)
    of = np.flatnonzero(speed > 0)
    matrix = Entries(
        np.concatenate([rate.row, of]),
        np.concatenate([rate.col, np.full(len(of), len(program.of))]),
        np.concatenate([rate.value, speed[of]]),
        rate.shape,
    )
    return Rows(matrix, -kept)
