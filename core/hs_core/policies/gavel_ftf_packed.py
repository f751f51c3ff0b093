"""Gavel's finish-time fairness with two jobs on a GPU (OSDI'20, 3.1 and 4.2; its `finish_time_fairness_packed`): as `gavel-ftf`, where time may also go to pairs.

Departures: those of `gavel-max-min-packed`.
"""

from functools import partial

from hs_core.mechanism.fractions import Style, decide
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policies.gavel_ftf import allocate
from hs_core.policy import Needs, Policy

GAVEL_FTF_PACKED = once_a_round(
    Policy(
        name="gavel-ftf-packed",
        needs=Needs(every_quantum=True, lengths=True, sharing=True),
        decide=partial(decide, allocate=allocate, style=Style(packed=True)),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-ftf-packed",
        needs=Needs(every_quantum=True, work_conserving=False, lengths=True, sharing=True),
        decide=partial(decide, allocate=allocate, style=Style(compat=True, packed=True, reset_s=reset_s)),
    )
