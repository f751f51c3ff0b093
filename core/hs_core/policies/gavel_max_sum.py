"""Gavel's sum of throughputs, not normalized (OSDI'20, 4.2; `max_sum_throughput_perf`): jobs with quick steps first, and others may starve.

The program gives most jobs nothing. GPUs that its fractions leave idle go by steps a second per GPU: an interior-point solver, which Gavel uses, leaves
every job a trace of time that is the larger the less it would cost, with the same effect.
"""

from dataclasses import replace
from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavel.sums import max_sum
from hs_core.policy import Needs, Policy

TRACE = 1e-8  # of the time


def allocate(case: Case) -> Allocation:
    question = case.question
    found = max_sum(question)
    per_gpu = question.speed / question.gang[:, None]
    return replace(found, alone=found.alone + TRACE * per_gpu / max(per_gpu.max(initial=0.0), 1e-300))


GAVEL_MAX_SUM = Policy(
    name="gavel-max-sum",
    needs=Needs(every_quantum=True),
    decide=partial(decide, allocate=allocate, style=Style()),
)
COMPAT = Policy(
    name="gavel-max-sum",
    needs=Needs(every_quantum=True, work_conserving=False),
    decide=partial(decide, allocate=allocate, style=Style(compat=True)),
)
