"""Allocations of one sum or one deadline: the most steps a second (or a dollar), the shortest makespan."""

import numpy as np

from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.fair import least_rate
from hs_core.mechanism.gavel.kinds import classes
from hs_core.mechanism.gavel.program import Program, Rows
from hs_core.mechanism.gavel.question import Allocation, Floats, Question
from hs_core.solve import InfeasibleError, Method


def max_sum(
    question: Question,
    *,
    price: Floats | None = None,
    least: Floats | None = None,
    by_class: bool = True,
    method: Method | None = None,
) -> Allocation:
    """Maximizes the sum of steps/s over jobs and types, each divided by the type's `price` (T, per hour) where given: `value`.

    `least` (J, steps/s): what jobs must get at least, for their deadlines; raises InfeasibleError where they can't.
    Steps are not normalized (as in Gavel): jobs with quick steps win. Weights don't count.
    """
    groups = classes(question, *([] if least is None else [least]), by_class=by_class)
    program = Program(question, groups)
    worth = program.speed.copy()
    if price is not None:
        if price.shape != question.gpus.shape or not (price > 0).all():
            raise BrokenError(f"price is {price}; expected {len(question.gpus)} numbers above 0")
        worth /= price[program.on]
    own = None
    if least is not None:
        asks = least[groups.first]
        rate = program.rate(-np.ones(len(asks)))
        own = Rows(rate, -asks)
    if not len(program.of):
        if least is not None and (least > 0).any():
            raise InfeasibleError("jobs that can run nowhere have deadlines")
        return program.allocation(np.zeros(0), value=0.0, lps=0)
    found = program.solve(-worth, own, method=method)
    return program.allocation(found.x, value=-found.value, lps=found.lps)


def least_makespan(question: Question, steps_left: Floats, *, method: Method | None = None) -> Allocation:
    """Minimizes the time until the last job is done, were the fractions kept to the end; `value`: that time in seconds.

    One LP, for the longest of `steps_left / steps/s` is least where the least of `steps/s / steps_left` is largest. Gavel bisects between 100 and
    10^6 s to a factor of 1.05 and takes whichever allocation was feasible last.
    """
    if steps_left.shape != question.gang.shape or (steps_left < 0).any():
        raise BrokenError("steps_left must have a number of at least 0 for each job")
    fastest = np.where(question.can, question.speed, 0.0).max(axis=1, initial=0.0)
    alone = np.divide(steps_left, fastest, out=np.zeros(len(fastest)), where=fastest > 0)
    longest_s = (
        float(alone.max(initial=0.0)) or 1.0
    )  # the unit of time: to solvers one over a week is nothing
    unit = np.where(fastest > 0, steps_left, 0.0) / longest_s
    found = least_rate(question, unit, weighted=False, method=method)
    seconds = longest_s / found.value if found.value > 0 else 0.0
    return Allocation(alone=found.alone, pairs=found.pairs, paired=found.paired, value=seconds, lps=found.lps)
