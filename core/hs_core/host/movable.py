"""Which jobs could be moved to other GPUs of their host, through a checkpoint."""

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import is_guest
from hs_core.host.walk import Walk, able, local
from hs_core.reports import Phase


def movable(board: Board, this: Walk, job: HostedJob) -> bool:
    """A part of a job over several hosts takes all of it along: they go on together in a later turn."""
    return may_move(board, job) and (
        any(gpu in this.claimed or not board.usable_by(job, gpu) for gpu in job.gpus)
        or is_guest(board.turn, job.id)
    )


def may_move(board: Board, job: HostedJob) -> bool:
    """It could be told to write a checkpoint now, and take a turn afterwards."""
    has_turns = local(board, job) or (job.id in board.turn.gangs and able(board, job))
    return has_turns and could_leave(board, job)


def could_leave(board: Board, job: HostedJob) -> bool:
    """Through a checkpoint, for GPUs of this host."""
    return (
        job.alive
        and job.ready
        and job.asked is None
        and not job.wanted.leave
        and job.can_checkpoint
        and board.now_s >= job.checkpoint_after_s
        and job.phase in (Phase.HELD, Phase.SWAPPED, Phase.RUNNING)
        and board.sliceable(job)
    )


def bound_to_none(board: Board, job: HostedJob) -> bool:
    """It would wait for its GPUs for ever: sick, gone, drained."""
    return not all(board.usable_by(job, gpu) for gpu in job.gpus)


def has_waited(board: Board, job: HostedJob, start_s: float) -> bool:
    """By the end of this quantum it has missed turns for as long as such a start takes: it will have cost no more than twice what is least."""
    return (job.waited_quanta + 1) * board.quantum_s >= start_s
