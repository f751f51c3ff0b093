"""Which jobs move to other GPUs of their host, through a checkpoint: they stand in the way, or their own GPUs, or the memory of these, are never free."""

from collections.abc import Collection, Sequence

from hs_core.host.binding import choose
from hs_core.host.board import Board
from hs_core.host.demand import load
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import is_guest
from hs_core.host.movable import bound_to_none, has_waited, may_move, movable
from hs_core.host.seating import astray
from hs_core.host.uneven import late
from hs_core.host.walk import Walk, fills
from hs_core.names import GpuId, JobId
from hs_core.reports import Phase, Tier


def misplaced(board: Board, this: Walk) -> list[HostedJob]:
    """Gangs of the turn that go to the GPUs it names for them, before anybody is picked."""
    seated = [board.jobs[seat.job] for seat in board.turn.seats if seat.job in board.jobs]
    return astray(board, [job for job in seated if may_move(board, job)], this.claimed) if seated else []


def movers(board: Board, this: Walk, moving: Sequence[HostedJob]) -> list[HostedJob]:
    """Jobs to be moved to other GPUs of this host through a checkpoint, `moving` among them.

    First by pass, or as the controller lists them: those that would fit GPUs left idle, were they not bound to others. Then, one at a time, one
    of those whose GPUs owe them several quanta because they are more sought after than others.
    """
    leaving, moving = under_way(board), list(moving)
    idle = len(this.free) - sum(j.gang for j in (*leaving, *moving))
    wished = this.order if fills(board) else [id_ for id_ in board.turn.gangs if id_ in board.jobs]
    for job in map(board.jobs.__getitem__, wished):
        if job in this.picks or job in moving:
            continue
        needed = job.gang - this.beside(job)
        if is_guest(board.turn, job.id) and needed > job.gang - this.meant(job):
            continue  # its partners have no GPUs for it yet
        if needed <= idle and movable(board, this, job) and worth_a_start(board, this, job):
            moving.append(job)
            idle -= needed
            if needed == job.gang:
                job.aim = choose(job.gang, this.free, list(board.gpus), load(board, without=job.id), {}) or ()
    if not moving and not leaving:
        moving += displaced(board, this) or crowded_out(board, this)
    if not moving and not leaving and fills(board):
        moving += late(board, this)
    for job in moving:
        job.left = job.gpus
        board.tell("moving", "moved to other GPUs through a checkpoint", job)
    return moving


def under_way(board: Board) -> list[HostedJob]:
    """On the way to other GPUs: asked for a checkpoint, or written it and not gone yet."""
    return [
        job
        for job in board.jobs.values()
        if job.asked is Tier.CHECKPOINT or (job.phase is Phase.CHECKPOINTED and job.alive)
    ]


def worth_a_start(board: Board, this: Walk, job: HostedJob) -> bool:
    """It has waited for as long as a start takes, or GPUs have been idle for twice as long.

    What the stride leaves over for a quantum is taken in the next: a start of many quanta would come too late for it. Of a gang over several
    hosts all parts are started anew: it may be that its own GPUs are free in its next turn.
    """
    if job.id in board.turn.gangs:
        return not job.part or bound_to_none(board, job) or has_waited(board, job, job.start_s)
    if job.waited_quanta * board.quantum_s >= job.start_s:
        return True
    idle = [gpu for gpu in this.free if board.now_s - board.idle_since_s[gpu] >= 2 * job.start_s]
    return len(idle) >= job.gang - this.beside(job)


def displaced(board: Board, this: Walk) -> list[HostedJob]:
    """There is room for one that cannot be moved if those on its GPUs are: these move in its place."""
    for job in list(this.misfits):
        if job in this.picks or not board.sliceable(job) or bound_to_none(board, job):
            continue
        holders = [other for other in this.picks if not set(other.gpus).isdisjoint(job.gpus)]
        left = set(this.free).union(*(other.gpus for other in holders)) - set(job.gpus)
        aims = beside(board, holders, left)
        if not aims or not all(movable(board, this, other) for other in holders):
            continue
        if any(other.part and not _worth_a_gang(board, this, job, other) for other in holders):
            continue
        for other in holders:
            this.leave(other)
        if this.pick(job):
            for other in holders:
                other.aim = aims[other.id]
            return holders
        for other in holders:
            this.pick(other)
    return []


def crowded_out(board: Board, this: Walk) -> list[HostedJob]:
    """One that was swapped and finds its place taken for good, and would have room on other GPUs."""
    for job in this.crowded_out:
        if may_move(board, job) and has_waited(board, job, job.start_s) and (gpus := this.could_have(job)):
            job.aim = gpus
            return [job]
    return []


def _worth_a_gang(board: Board, this: Walk, job: HostedJob, part: HostedJob) -> bool:
    """That all of a gang over several hosts is started anew: this one cannot go to idle GPUs itself, and has waited for as long as that takes."""
    goes = job.gang <= len(this.free) and movable(board, this, job)
    return not goes and has_waited(board, job, part.start_s)


def beside(
    board: Board, holders: Sequence[HostedJob], left: Collection[GpuId]
) -> dict[JobId, tuple[GpuId, ...]]:
    """GPUs for each of them, of these; none where they do not suffice. They are to be aimed at: started anew where it fits best, one might be bound as before."""
    aims: dict[JobId, tuple[GpuId, ...]] = {}
    for job in holders:
        gpus = choose(job.gang, left, list(board.gpus), load(board, without=job.id), {})
        if gpus is None:
            return {}
        aims[job.id] = gpus
        left = set(left).difference(gpus)
    return aims
