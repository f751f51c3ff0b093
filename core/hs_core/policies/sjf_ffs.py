"""SJF-FFS: shortest job first with first-fit sharing, the baseline of SJF-BSBF (section VI): a job that finds too few free GPUs starts beside the
first running ones where memory suffices, whether or not anybody gains by it.

Departures: those of `sjf-bsbf`.
"""

from hs_core.mechanism.guests import Round, first_fit, fits_beside_nobody
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    return Round(snapshot, memory).decide(first_fit, fits_beside_nobody)


SJF_FFS = Policy(name="sjf-ffs", needs=Needs(preemptive=False, lengths=True, sharing=True), decide=decide)
