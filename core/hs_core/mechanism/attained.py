"""The order of least attained service (Tiresias, NSDI'19, 3.2), without its queues."""

from collections.abc import Sequence

from hs_core.mechanism.placing import by_arrival
from hs_core.names import JobId
from hs_core.policy import JobFacts, Snapshot


def least_attained_first(snapshot: Snapshot) -> list[JobFacts]:
    """By GPU-seconds had, then by arrival.

    A job in its turn is taken as one quantum poorer than it is: of equal jobs none is put aside for a difference that
    one quantum makes, so they alternate every few quanta and not in every one. So is one that was given its turn and has no process yet, which would lose it before it began.
    """

    def attained(job: JobFacts) -> float:
        has = job.id in snapshot.running or job.coming
        return job.attained_gpu_s - (job.gang * snapshot.quantum_s if has else 0.0)

    return sorted(snapshot.jobs, key=lambda job: (attained(job), by_arrival(job)))


def why_attained(jobs: Sequence[JobFacts]) -> dict[JobId, str]:
    """For people, who wait for their turn in that order."""
    return {
        job.id: f"jobs that had less GPU-time run first; it had {job.attained_gpu_s:.0f} GPU-seconds"
        for job in jobs
    }
