"""What jobs hold on their GPUs, as the driver says: also of those without a hook, and what a hook does not see, which is the context of the device."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from hs_core.events.host import DeviceMemorySeen, JobExited
from hs_core.host.board import Board, remember_most
from hs_core.host.hosted import HostedJob
from hs_core.host.sizes import capacity_bytes, lying_bytes
from hs_core.reports import OF_GPUS, Exit, Phase

GROWS_S = 10.0
"""In its first seconds in turns a process builds up what it will hold: taken for all of it, that would let others come beside it."""

LATELY_S = 30.0
"""Of two that run out of memory beside each other one is gone when the other's end is heard of; so may be one that was leaving as the other came."""

_STANDS = frozenset({Phase.RUNNING, Phase.SUSPENDING, Phase.HELD, Phase.FROZEN})


def seen(board: Board, event: DeviceMemorySeen) -> bool:
    """Something is known that was not."""
    news = False
    for id_, held_bytes in event.held_bytes.items():
        job = board.jobs.get(id_)
        if job is None or not job.alive:
            continue
        if job.phase is Phase.SWAPPED:
            news |= job.residue_bytes != held_bytes
            job.residue_bytes = held_bytes
        elif job.phase in _STANDS and _has_grown(board, job):
            news |= measured(board, job, held_bytes)
    return news


def _has_grown(board: Board, job: HostedJob) -> bool:
    return job.run_s - job.launched_run_s + job.seconds_in_turn(board.now_s) >= GROWS_S


def told(board: Board, job: HostedJob, held_bytes: int) -> None:
    """By its hook, after a step. None at all is news as well: others of its class are nobody to be afraid of."""
    if not measured(board, job, held_bytes) and job.wanted.job_class not in board.class_device_bytes:
        remember_most(board.class_device_bytes, job.wanted.job_class, 0)


def measured(board: Board, job: HostedJob, held_bytes: int) -> bool:
    """So much on each of its GPUs. False: it was seen to hold as much before."""
    if held_bytes <= job.device_memory_bytes:
        return False
    job.device_memory_bytes = held_bytes
    remember_most(board.class_device_bytes, job.wanted.job_class, held_bytes)
    return True


def judged(board: Board, job: HostedJob, event: JobExited) -> Exit:
    """Its exit. For want of memory that others held it is not to blame: from then on it is known to need so much.

    What it needs more than its GPUs have it would have lacked alone, and nobody knows how much emulated ones have.
    """
    needs_bytes, exit_ = event.needs_bytes, event.exit
    if not needs_bytes or exit_.ok or exit_.why or job.ended:
        return exit_
    if any(needs_bytes > capacity_bytes(board, gpu) for gpu in job.gpus):
        return exit_
    others = list(_beside(board, job))
    for other in others:
        other.crowds_s = board.now_s
    crowded = bool(others) or (job.crowds_s is not None and board.now_s - job.crowds_s < LATELY_S)
    if not (crowded or _were_others(board, job)):
        return exit_
    measured(board, job, needs_bytes)
    held = f", of which others held some ({_named(others)})" if others else ""
    return replace(exit_, why=f"{OF_GPUS}: it needed {needs_bytes / 2**30:.1f} GiB of each GPU{held}")


def _beside(board: Board, job: HostedJob) -> Iterator[HostedJob]:
    """Others of whom something lies on its GPUs."""
    for other in board.on(job.gpus):
        shared = [gpu for gpu in other.gpus if gpu in job.gpus]
        if other is not job and any(lying_bytes(board, other, gpu) for gpu in shared):
            yield other


def _were_others(board: Board, job: HostedJob) -> bool:
    """Of whom something lay there once it came up, or was let go, and until lately."""
    since_s = job.charged_from_s if job.resumed else job.launched_s
    gone_s = max((board.vacated_s.get(gpu, -inf) for gpu in job.gpus), default=-inf)
    return since_s is not None and gone_s > since_s and board.now_s - gone_s < LATELY_S


def _named(jobs: list[HostedJob]) -> str:
    ids = [str(job.id) for job in jobs]
    return f"job {ids[0]}" if len(ids) == 1 else f"jobs {', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}"
