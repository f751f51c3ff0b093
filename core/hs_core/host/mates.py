"""Jobs of one turn on the same GPUs (`Turn.guests`): who may compute beside whom, and what each is charged."""

from collections.abc import Iterable, Iterator, Mapping

from hs_core.host.hosted import HostedJob
from hs_core.names import GpuId, JobId
from hs_core.reports import Phase
from hs_core.wanted import Turn


def mates(turn: Turn, job: JobId) -> dict[JobId, int]:
    """Those with whom it shares GPUs in this turn, and how many with each: its partners, or its guests."""
    found: dict[JobId, int] = {}
    for guest in turn.guests:
        for partner, gpus in zip(guest.beside, guest.gpus, strict=True):
            if job == guest.job:
                found[partner] = gpus
            elif job == partner:
                found[guest.job] = gpus
    return found


def are_mates(turn: Turn, one: JobId, other: JobId) -> bool:
    return any(
        (guest.job == one and other in guest.beside) or (guest.job == other and one in guest.beside)
        for guest in turn.guests
    )


def is_guest(turn: Turn, job: JobId) -> bool:
    return any(guest.job == job for guest in turn.guests)


def parting(job: HostedJob, other: HostedJob) -> bool:
    """Until now it ran beside the other one, which is on its way out: as long as that takes both are on these GPUs."""
    leaves = other.phase in (Phase.SUSPENDING, Phase.KILLING) and not other.stuck
    return leaves and job.phase is Phase.RUNNING and other.id in job.beside


def share_out(turn: Turn, jobs: Iterable[HostedJob], now_s: float) -> None:
    """Who computes on GPUs beside another is charged for its part of them, so that GPU-seconds add up."""
    charged = [job for job in jobs if job.charged_from_s is not None]
    if not turn.guests and not any(job.beside for job in charged):
        return
    users: dict[GpuId, list[JobId]] = {}
    for job in charged:
        for gpu in job.gpus:
            users.setdefault(gpu, []).append(job.id)
    for job, gpus, beside in _parts(charged, users):
        if (gpus, beside) != (job.charged_gpus, job.beside):
            job.share(now_s, gpus, beside)


def _parts(
    jobs: Iterable[HostedJob], users: Mapping[GpuId, list[JobId]]
) -> Iterator[tuple[HostedJob, float, tuple[JobId, ...]]]:
    for job in jobs:
        there = [users[gpu] for gpu in job.gpus]
        beside = sorted({other for group in there for other in group} - {job.id})
        yield job, sum(1 / len(group) for group in there), tuple(beside)
