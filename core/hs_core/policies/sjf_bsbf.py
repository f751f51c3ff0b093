"""SJF-BSBF: shortest job first with best sharing benefit first (Luo et al., "Scheduling Deep Learning Jobs in Multi-Tenant GPU Clusters via Wise
Resource Sharing", 2024): a job that finds too few free GPUs starts beside running ones where both end sooner on average than one after the other,
with gradient accumulation where memory is short.

Departures. Lengths are steps as users say them over measured rates; a class that was not measured starts first, alone. How much two jobs slow each
other is measured while they share, per pair of classes and GPU model and not per sub-batch, and assumed before (`sharing.UNMEASURED`). That
accumulating costs a little more time (equation 7) is known only where a job's step times are, which no user says: it is left out of the choice. GPUs of
a gang lie on as many servers of one model as its user said. A job whose memory is not known shares nothing.
"""

from hs_core.mechanism.guests import Round, best_first, gains_beside_nobody
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    return Round(snapshot, memory).decide(best_first, gains_beside_nobody)


SJF_BSBF = Policy(name="sjf-bsbf", needs=Needs(preemptive=False, lengths=True, sharing=True), decide=decide)
