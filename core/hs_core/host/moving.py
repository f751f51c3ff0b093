"""Which jobs move to other GPUs of their host, through a checkpoint: they stand in the way, or their own GPUs are never free."""

from collections.abc import Sequence

from hs_core.host.binding import choose
from hs_core.host.board import Board, tickets_of
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import is_guest
from hs_core.host.seating import astray
from hs_core.host.walk import Walk, able, fills, local
from hs_core.reports import Phase, Tier


def misplaced(board: Board, this: Walk) -> list[HostedJob]:
    """Gangs of the turn that go to the GPUs it names for them, before anybody is picked."""
    seated = [board.jobs[seat.job] for seat in board.turn.seats if seat.job in board.jobs]
    return astray(board, [job for job in seated if may_move(board, job)], this.claimed) if seated else []


def movers(board: Board, this: Walk, moving: Sequence[HostedJob]) -> list[HostedJob]:
    """Jobs to be moved to other GPUs of this host through a checkpoint, `moving` among them.

    First by pass, or as the controller lists them: those that would fit GPUs left idle, were they not bound to others. Then, one at a time, one that
    fell behind its due by several of its turns because its own GPUs carry more tickets than others.
    """
    under_way = [
        job
        for job in board.jobs.values()
        if job.asked is Tier.CHECKPOINT or (job.phase is Phase.CHECKPOINTED and job.alive)
    ]
    moving = list(moving)
    idle = len(this.free) - sum(j.gang for j in (*under_way, *moving))
    wished = this.order if fills(board) else [id_ for id_ in board.turn.gangs if id_ in board.jobs]
    for job in map(board.jobs.__getitem__, wished):
        if job in this.picks or job in moving:
            continue
        needed = job.gang - this.beside(job)
        if is_guest(board.turn, job.id) and needed > job.gang - this.meant(job):
            continue  # its partners have no GPUs for it yet
        if needed <= idle and movable(board, this, job):
            moving.append(job)
            idle -= needed
    if not moving and not under_way:
        moving += displaced(board, this)
    if not moving and not under_way and fills(board):
        late = [
            j
            for j in this.misfits
            if j not in this.picks and movable(board, this, j) and (bound_to_none(board, j) or lags(board, j))
        ]
        moving += late[:1]
    for job in moving:
        board.tell("moving", "moved to other GPUs through a checkpoint", job)
    return moving


def displaced(board: Board, this: Walk) -> list[HostedJob]:
    """There is room for one that cannot be moved if those on its GPUs are: these move in its place."""
    for job in list(this.misfits):
        if job in this.picks or not board.sliceable(job) or bound_to_none(board, job):
            continue
        holders = [other for other in this.picks if not set(other.gpus).isdisjoint(job.gpus)]
        left = set(this.free).union(*(other.gpus for other in holders)) - set(job.gpus)
        if not holders or sum(other.gang for other in holders) > len(left):
            continue
        if all(movable(board, this, other) and lands_beside(board, other, job) for other in holders):
            for other in holders:
                this.leave(other)
            if this.pick(job):
                return holders
            for other in holders:
                this.pick(other)
    return []


def lands_beside(board: Board, holder: HostedJob, job: HostedJob) -> bool:
    """Started anew it would not be bound to the same GPUs again."""
    load = board.load()
    for gpu in holder.gpus:
        if gpu in load and holder.id in board.queue:
            load[gpu] -= tickets_of(holder) / holder.gang
    gpus = choose(holder.gang, [g for g in board.gpus if board.usable(g)], list(board.gpus), load, {})
    return gpus is not None and set(gpus).isdisjoint(job.gpus)


def movable(board: Board, this: Walk, job: HostedJob) -> bool:
    """A part of a job over several hosts takes all of it along: they go on together in a later turn."""
    return may_move(board, job) and (
        any(gpu in this.claimed or not board.usable_by(job, gpu) for gpu in job.gpus)
        or is_guest(board.turn, job.id)
    )


def may_move(board: Board, job: HostedJob) -> bool:
    """It could be told to write a checkpoint now, and take a turn afterwards."""
    return (
        (local(board, job) or (job.id in board.turn.gangs and able(board, job)))
        and job.alive
        and job.ready
        and not job.wanted.leave
        and job.can_checkpoint
        and board.now_s >= job.checkpoint_after_s
        and job.phase in (Phase.HELD, Phase.SWAPPED, Phase.RUNNING)
        and board.sliceable(job)
    )


def bound_to_none(board: Board, job: HostedJob) -> bool:
    """It would wait for its GPUs for ever: sick, gone, drained."""
    return not all(board.usable_by(job, gpu) for gpu in job.gpus)


def lags(board: Board, job: HostedJob) -> bool:
    """Behind the virtual time by several of its strides."""
    stride = job.gang / tickets_of(job)
    return -board.queue.passes()[job.id] >= board.config.move_lag_strides * stride
