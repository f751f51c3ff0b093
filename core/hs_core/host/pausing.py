"""Taking the turn from a job that its owner has paused."""

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.reports import Phase, Tier


def pause(board: Board, job: HostedJob) -> None:
    """Its turn ends. While nobody knows yet whether it stops at a step its GPUs stay its own: it may train on them."""
    if job.phase is Phase.RUNNING and not board.sliceable(job):
        board.tell("unsliceable", "paused by its owner, but it can't be stopped", job)
        return
    if job.phase is Phase.STARTING and job.hooked is None:
        return
    job.in_turn = False
    if job.phase is Phase.RUNNING:
        board.suspend(job, Tier.HOLD)
    elif job.phase is Phase.STARTING:
        job.free(board.now_s)  # like one started ahead of its turn
    elif not job.alive:
        job.gpus = ()
