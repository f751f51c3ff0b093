"""What is really so, whatever the machines believe: who trains where, how far, and what was written for good.

What must never happen is refused here, at the moment when it would.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hs_core.model import GpuId, HostName, JobId, JobSpec, OnPartition
from hs_sim.model import SimJob


class LawBrokenError(Exception):
    """Something happened that must never happen."""


@dataclass(slots=True, kw_only=True)
class JobTruth:
    """One job over all of its incarnations."""

    sim: SimJob
    spec: JobSpec
    id: JobId | None = None  # in the system, once it was accepted
    started_s: float | None = None
    ended_s: float | None = None
    gpu_s: dict[str, float] = field(default_factory=dict)  # occupied, by GPU model
    suspends: int = 0
    migrations: int = 0
    restarts: int = 0
    lost_gpu_s: float = 0.0
    steps: int = 0  # furthest that counts: at its end all
    launches: int = 0
    last_home: tuple[HostName, ...] = ()
    last_epoch: int = 0
    acknowledged: int = -1  # newest step of a checkpoint that the controller's journal knows
    busy: int = 0  # incarnations that train now


class Truth:
    def __init__(self) -> None:
        self.jobs: dict[int, JobTruth] = {}  # by SimJob.id
        self.by_id: dict[JobId, JobTruth] = {}
        self.users: dict[GpuId, tuple[JobId, int]] = {}  # who computes on it
        self.last: list[str] = []

    def occupy(self, gpus: tuple[GpuId, ...], owner: tuple[JobId, int], now_s: float) -> None:
        for gpu in gpus:
            other = self.users.get(gpu)
            if other is not None and other != owner:
                raise LawBrokenError(
                    f"at {now_s:.3f}: {gpu} is used by job {other[0]} (epoch {other[1]}) and given to "
                    f"job {owner[0]} (epoch {owner[1]})"
                )
            self.users[gpu] = owner

    def free(self, gpus: tuple[GpuId, ...], owner: tuple[JobId, int]) -> None:
        for gpu in gpus:
            if self.users.get(gpu) == owner:
                del self.users[gpu]

    def trains(self, job: JobTruth, epoch: int, now_s: float) -> None:
        job.busy += 1
        if job.busy > 1:
            raise LawBrokenError(f"at {now_s:.3f}: job {job.id} trains twice; one of them is epoch {epoch}")

    def stands(self, job: JobTruth) -> None:
        job.busy -= 1

    def restored(self, job: JobTruth, step: int, within_reach: int, now_s: float) -> None:
        """`within_reach`: newest step of a checkpoint that the controller could have it fetched from."""
        if job.spec.on_partition is OnPartition.FENCE:
            # Who asks to be started elsewhere asks not to wait for a server that is cut off.
            job.acknowledged = min(job.acknowledged, max(step, within_reach))
        if step < job.acknowledged:
            raise LawBrokenError(
                f"at {now_s:.3f}: job {job.id} goes on at step {step}; step {job.acknowledged} was acknowledged as safe"
            )

    def acknowledge(self, steps: Mapping[JobId, int]) -> None:
        for job, step in steps.items():
            known = self.by_id.get(job)
            if known is not None:
                known.acknowledged = max(known.acknowledged, step)
