"""What jobs hold on their GPUs, as the driver says: also of those without a hook, and what a hook does not see, which is the context of the device."""

from hs_core.events.host import DeviceMemorySeen
from hs_core.host.board import Board, remember_most
from hs_core.host.hosted import HostedJob
from hs_core.reports import Phase

GROWS_S = 10.0
"""In its first seconds in turns a process builds up what it will hold: taken for all of it, that would let others come beside it."""

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
