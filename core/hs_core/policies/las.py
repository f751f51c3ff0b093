"""Least attained service (Tiresias, NSDI'19, 3.2), without its queues: the jobs that had the least GPU-time run, every quantum anew.

A job in its turn is taken as one quantum poorer than it is: of equal jobs none is put aside for a difference that
one quantum makes, so they alternate every few quanta and not in every one.
"""

from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot)

    def attained(job: JobFacts) -> float:
        return job.attained_gpu_s - (job.gang * snapshot.quantum_s if job.running else 0.0)

    order = sorted(snapshot.jobs, key=lambda job: (attained(job), by_arrival(job)))
    seats.serve(order)
    why = {
        job.id: f"jobs that had less GPU-time run first; it had {job.attained_gpu_s:.0f} GPU-seconds"
        for job in order
    }
    return seats.verdict({}, why, order)


LAS = Policy(name="las", needs=Needs(every_quantum=True), decide=decide)
