"""Without a word from the controller: jobs that ask for it are ended after a while, so that they can be started elsewhere."""

from collections.abc import Iterator
from math import inf

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.model import OnPartition
from hs_core.reports import LOST, Exit


def fence_s(board: Board) -> float:
    """When the silence has lasted too long."""
    if board.fence_after_s <= 0 or not any(map(_asks, board.jobs.values())):
        return inf
    return board.heard_s + board.fence_after_s


def fence(board: Board) -> None:
    if board.fence_after_s <= 0 or board.now_s < board.heard_s + board.fence_after_s:
        return
    why = f"fenced: no word from the controller for {board.fence_after_s:g} s"
    for job in _fenced(board):
        job.exit_why = f"{LOST}: {why}"
        if job.alive:
            board.kill(job, why)
        else:
            board.exited(job, Exit(why=job.exit_why))


def _fenced(board: Board) -> Iterator[HostedJob]:
    return (job for job in board.in_order if _asks(job))


def _asks(job: HostedJob) -> bool:
    return job.wanted.spec.on_partition is OnPartition.FENCE and not job.ended
