"""Gavel's max-min fairness with two jobs on a GPU (OSDI'20, 3.1 and 4.1; its `max_min_fairness_packed`): as `gavel-max-min`, where time may also go to pairs.

Departures. Gavel has every pair measured; here a pair that was not is taken to slow each other by `packing.UNMEASURED`, where their memory is known to fit. Time of pairs is by kinds of jobs
and laid out over few different pairs (`gavel.partners`), which is another optimum of the same program. Only gangs of one size share.
"""

from functools import partial

from hs_core.mechanism.fractions import Style, decide
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policies.gavel_max_min import allocate
from hs_core.policy import Needs, Policy

GAVEL_MAX_MIN_PACKED = once_a_round(
    Policy(
        name="gavel-max-min-packed",
        needs=Needs(every_quantum=True, sharing=True),
        decide=partial(decide, allocate=allocate, style=Style(packed=True)),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-max-min-packed",
        needs=Needs(every_quantum=True, work_conserving=False, sharing=True),
        decide=partial(decide, allocate=allocate, style=Style(compat=True, packed=True, reset_s=reset_s)),
    )
