"""What time Gavel's policies give, with pairs on a GPU or without, by what they optimize (OSDI'20, 4)."""

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.finish import Lives, finish_time_fair
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavel.sums import least_makespan, max_sum


def fairest(case: Case) -> Allocation:
    """The least normalized throughput per ticket is as large as can be (4.1)."""
    return max_min(case.question, method=case.method)


def fairest_finish(case: Case) -> Allocation:
    """The largest ratio of a job's time to completion to that in a cluster of its own is as small as can be (4.2)."""
    return finish_time_fair(
        case.question,
        Lives(age_s=case.rows.age_s, steps_left=case.rows.steps_left, alone_s=case.alone_s),
        method=case.method,
    )


def earliest_end(case: Case) -> Allocation:
    """All jobs that are here end as early as can be (4.2)."""
    return least_makespan(case.question, case.rows.steps_left, method=case.method)


def most_steps(case: Case) -> Allocation:
    """Mini-batches a second, not normalized (4.2)."""
    return max_sum(case.question, method=case.method)
