"""Which jobs move to other GPUs of their host, through a checkpoint: they stand in the way, or their own GPUs are never free."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from operator import itemgetter

from hs_core.host.binding import choose
from hs_core.host.board import Board
from hs_core.host.demand import demand, dues, load, owed
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import is_guest
from hs_core.host.seating import astray
from hs_core.host.walk import Walk, able, fills, local
from hs_core.names import GpuId
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
        if needed <= idle and movable(board, this, job) and worth_a_start(board, this, job):
            moving.append(job)
            idle -= needed
            if needed == job.gang:
                job.aim = choose(job.gang, this.free, list(board.gpus), load(board, without=job.id), {}) or ()
    if not moving and not under_way:
        moving += displaced(board, this)
    if not moving and not under_way and fills(board):
        moving += late(board, this)
    for job in moving:
        board.tell("moving", "moved to other GPUs through a checkpoint", job)
    return moving


def worth_a_start(board: Board, this: Walk, job: HostedJob) -> bool:
    """It has waited for as long as a start takes, or GPUs have been idle for twice as long.

    What the stride leaves over for a quantum is taken in the next: a start of many quanta would come too late for it.
    """
    if job.id in board.turn.gangs or job.waited_quanta * board.quantum_s >= job.start_s:
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
    gpus = _anew(board, holder)
    return gpus is not None and set(gpus).isdisjoint(job.gpus)


def _anew(board: Board, job: HostedJob) -> tuple[GpuId, ...] | None:
    """Where it would be started now, were all GPUs free."""
    usable = [gpu for gpu in board.gpus if board.usable(gpu)]
    return choose(job.gang, usable, list(board.gpus), demand(board, without=job.id), {})


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


def late(board: Board, this: Walk) -> list[HostedJob]:
    """One of those that had no turn because their own GPUs are taken: whose GPUs are out of use, or whose move evens out best what is sought after."""
    wishes = [job for job in this.misfits if job not in this.picks and movable(board, this, job)]
    for job in wishes:
        if bound_to_none(board, job):
            return [job]
    behind = owed(board) if wishes else {}
    late_ones = [
        job for job in wishes if max(behind[gpu] for gpu in job.gpus) >= board.config.move_owed_quanta
    ]
    return evening(board, late_ones) or relieving(board, late_ones, behind)


def evening(board: Board, jobs: Sequence[HostedJob]) -> list[HostedJob]:
    """The one whose move makes the tickets bound to each GPU most even, for good.

    The sum of their squares falls by 2 * relief * share with each such move, so that there are few of them.
    """
    usable = [gpu for gpu in board.gpus if board.usable(gpu)]
    found: list[tuple[Fraction, HostedJob, tuple[GpuId, ...]]] = []
    before = load(board) if jobs else {}
    for job in jobs:
        others = load(board, without=job.id)
        gpus = choose(job.gang, usable, list(board.gpus), others, {})
        if gpus is not None:
            share = sum(before[gpu] - others[gpu] for gpu in job.gpus)
            less = sum(before[gpu] for gpu in job.gpus) - sum(others[gpu] for gpu in gpus) - share
            if less >= board.config.move_evening_quanta * job.gang:
                found.append((Fraction(less, job.gang), job, gpus))
    if not found:
        return []
    _, job, job.aim = max(found, key=itemgetter(0))
    return [job]


def relieving(board: Board, jobs: Sequence[HostedJob], behind: Mapping[GpuId, Fraction]) -> list[HostedJob]:
    """Where tickets cannot be even for good: the one whose move best evens out what is due on each GPU now."""
    worthy: list[tuple[Fraction, HostedJob]] = []
    for job in jobs:
        starts = (
            1 + job.start_s / board.quantum_s
        )  # what a move costs: more where starts are long and quanta short
        if max(behind[gpu] for gpu in job.gpus) >= board.config.move_owed_quanta * starts:
            relief = relieved(board, job)
            if relief >= board.config.move_relief_quanta * starts:
                worthy.append((relief, job))
    return [max(worthy, key=itemgetter(0))[1]] if worthy else []


def relieved(board: Board, job: HostedJob) -> Fraction:
    """Quanta by which the GPUs where it would be started anew are less sought after, with it, than those that it leaves."""
    gpus = _anew(board, job)
    if gpus is None:
        return Fraction(0)
    before, others = demand(board), demand(board, without=job.id)
    due = dues(board).get(job.id, Fraction(0))
    return max(before[gpu] for gpu in job.gpus) - max(others[gpu] for gpu in gpus) - due
