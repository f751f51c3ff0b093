"""POP (SOSP'21): k random parts of the jobs, each solved on a k-th of the cluster, and joined: nearly the whole program's answer, far sooner."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hs_core.dice import Random
from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.question import Allocation, Ints, Question

NEW = -1


def deal(gang: Ints, parts: int, dice: Random, before: Ints | None = None) -> Ints:
    """J: a part (0 to parts - 1) for each job, about equally many GPUs asked for in each. `before`: where jobs were, NEW for the others;
    who was somewhere stays there, so that a new job does not stir up everybody's allocation.
    """
    if parts < 1:
        raise BrokenError(f"parts is {parts}; expected 1 or more")
    where = np.full(len(gang), NEW) if before is None else before.copy()
    if where.shape != gang.shape or (where >= parts).any():
        raise BrokenError(
            f"before has {where.shape} parts up to {where.max(initial=NEW)}; expected {gang.shape} below {parts}"
        )
    loads = np.bincount(where[where >= 0], gang[where >= 0], parts)
    new = [int(job) for job in np.flatnonzero(where < 0)]
    dice.shuffle(new)
    order = list(range(parts))
    dice.shuffle(order)  # of equal parts
    for job in new:
        part = min(order, key=lambda part: loads[part])
        where[job] = part
        loads[part] += gang[job]
    return where


def pop(
    question: Question,
    where: Ints,
    parts: int,
    solve: Callable[[Question, Ints], Allocation],
    *,
    value: Callable[[list[float]], float] = min,
) -> Allocation:
    """`solve` gets each part's question (all types, a k-th of their GPUs) and the positions of its jobs. Answers are joined as they are: together
    they keep within the cluster. `value` joins the parts' values: the least, unless told otherwise (max for finish-time fairness, sum).
    """
    jobs, types = question.speed.shape
    alone, pairs, paired = np.zeros((jobs, types)), [], []
    values, lps = [], 0
    for part in range(parts):
        here = np.flatnonzero(where == part)
        if not len(here):
            continue
        found = solve(question.part(here, 1.0 / parts), here)
        alone[here] = found.alone
        if len(found.pairs):
            pairs.append(here[found.pairs])
            paired.append(found.paired)
        values.append(found.value)
        lps += found.lps
    whole = Allocation(alone=alone, value=value(values) if values else 0.0, lps=lps)
    return replace(whole, pairs=np.concatenate(pairs), paired=np.concatenate(paired)) if pairs else whole
