"""Without a word from the controller: jobs that ask for it are ended after a while, so that they can be started elsewhere."""

from math import inf

from hs_core.host.board import Board
from hs_core.reports import LOST, Exit, Phase


def fence_s(board: Board) -> float:
    """When the silence has lasted too long."""
    due_s = board.heard_s + board.fence_after_s
    if board.fence_after_s <= 0:
        return inf
    waits = any(job.fences and (not job.ended or board.now_s < due_s) for job in board.jobs.values())
    return due_s if waits else inf


def fence(board: Board) -> None:
    if board.fence_after_s <= 0 or board.now_s < board.heard_s + board.fence_after_s:
        return
    why = f"fenced: no word from the controller for {board.fence_after_s:g} s"
    for job in board.in_order:
        if not job.fences:
            continue
        if job.phase is Phase.KILLING:
            board.hasten(job)
            continue
        job.exit_why = f"{LOST}: {why}"
        if job.alive:
            board.kill(job, why)
        else:
            board.exited(job, Exit(why=job.exit_why))
