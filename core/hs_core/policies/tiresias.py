"""Discretized two-dimensional LAS (Tiresias, NSDI'19, 3.2): two queues by GPU-time attained, first in, first out in each; the lower one waits.

Preemptive, consolidated; jobs that may be laid over any number of servers only if they are sensitive (3.3), which is measured. No promotion of the starved, as Hadar's comparison sets it (IPDPS'24, IV-B). The demotion threshold is that of Tiresias'
public simulator.
"""

from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict

DEMOTED_GPU_S = 3250.0  # attained GPU-seconds from which a job is in the second queue


def queue(job: JobFacts) -> int:
    return 0 if job.attained_gpu_s < DEMOTED_GPU_S else 1


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot, spreads=True)
    order = sorted(snapshot.jobs, key=lambda job: (queue(job), by_arrival(job)))
    seats.serve(order)
    why = {
        job.id: f"jobs that came earlier run first, as long as they had less than {DEMOTED_GPU_S:.0f} GPU-seconds"
        if queue(job) == 0
        else f"it had {job.attained_gpu_s:.0f} GPU-seconds, so jobs with less than {DEMOTED_GPU_S:.0f} run first, then others with more that came earlier"
        for job in order
    }
    return seats.verdict({}, why, order)


TIRESIAS = Policy(name="tiresias", needs=Needs(every_quantum=True), decide=decide)
