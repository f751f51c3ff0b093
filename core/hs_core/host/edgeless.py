"""Jobs that never stand at a step edge: they compute from their launch on, also where that was ahead of their turn.

Nobody knows at a start whether it is one. So the newest of each class counts: after one that never stood, others of the class are started in their
turn only, and what it computed ahead of its own is charged to it once that is known.
"""

from hs_core.host.board import Board, remember
from hs_core.host.hosted import HostedJob
from hs_core.model import SuspendMode
from hs_core.reports import Phase


def starts_up(job: HostedJob) -> bool:
    """It may still come to its first step edge."""
    return job.alive and job.phase is Phase.STARTING and not job.ready


def waits_for_others(job: HostedJob) -> bool:
    """A part of a gang over several hosts that has not come to its first step edge: not all of the others may have been started."""
    return job.part and bool(job.hooked)


def stood(board: Board, job: HostedJob) -> None:
    """At a step edge."""
    remember(board.stopping_classes, job.wanted.job_class, None)
    board.edgeless_classes.pop(job.wanted.job_class, None)


def ended(board: Board, job: HostedJob, at_s: float) -> None:
    """While it started up."""
    job.charge_start(at_s)
    board.stopping_classes.pop(job.wanted.job_class, None)
    remember(board.edgeless_classes, job.wanted.job_class, None)


def goes_on(board: Board, job: HostedJob) -> None:
    """It has been waited for long enough. Where others of its class stood before it may only be slow; where none did, those on their way will not either:
    they are not left to train ahead of their turn."""
    job.charge_start(board.now_s)
    name = job.wanted.job_class
    if name in board.stopping_classes or name in board.edgeless_classes:
        return
    remember(board.edgeless_classes, name, None)
    for other in board.in_order:
        same = other is not job and other.wanted.job_class == name and other.mode is SuspendMode.AUTO
        if same and starts_up(other):
            other.start_deadline_s = board.now_s
