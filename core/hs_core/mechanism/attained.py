"""The order of least attained service (Tiresias, NSDI'19, 3.2), without its queues."""

from collections.abc import Mapping, Sequence

from hs_core.mechanism.later import Later
from hs_core.mechanism.placing import by_arrival
from hs_core.names import JobId
from hs_core.policy import JobFacts, Snapshot


def attained(snapshot: Snapshot) -> dict[JobId, float]:
    """GPU-seconds that each job had.

    A job in its turn is taken as one quantum poorer than it is: of equal jobs none is put aside for a difference that
    one quantum makes, so they alternate every few quanta and not in every one. So is one that was given its turn and has no process yet, which would lose it before it began.
    """
    return {
        job.id: job.attained_gpu_s
        - (job.gang * snapshot.quantum_s if job.id in snapshot.running or job.coming else 0.0)
        for job in snapshot.jobs
    }


def least_attained_first(snapshot: Snapshot, had: Mapping[JobId, float] | None = None) -> list[JobFacts]:
    """By GPU-seconds had, then by arrival. `had`: of each; None: as it is now (`attained`)."""
    gpu_s = attained(snapshot) if had is None else had
    return sorted(snapshot.jobs, key=lambda job: (gpu_s[job.id], by_arrival(job)))


def why_attained(jobs: Sequence[JobFacts]) -> Mapping[JobId, str]:
    """For people, who wait for their turn in that order."""
    return Later(
        lambda: {
            job.id: "jobs that had less GPU-time run first, and who runs goes on until it had a quantum more;"
            f" it had {job.attained_gpu_s:.0f} GPU-seconds"
            for job in jobs
        }
    )
