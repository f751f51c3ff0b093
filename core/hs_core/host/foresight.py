"""What the next turn would find in its way: bindings, while who stands outside its turn can still be moved and be back when it begins.

The controller counts GPUs and does not know of bindings. Where a gang of the next turn, or who would run beside it, is bound to GPUs of another one that
runs then, and as many would idle, one of the two is started anew on these before that turn, beside who runs now, as who comes up for the first time is.
Moved at the edge (`moving`) it would cost its turn as much as a start takes, and that of a gang over several hosts on all of them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hs_core.host.binding import choose
from hs_core.host.board import Board, tickets_per_gpu
from hs_core.host.demand import load
from hs_core.host.hosted import HostedJob
from hs_core.host.movable import could_leave
from hs_core.host.moving import beside, under_way
from hs_core.host.room import spare_for_preload
from hs_core.names import GpuId, JobId
from hs_core.reports import Phase, Tier
from hs_core.wanted import Turn

BEHIND_QUANTA = 2  # so far one is allowed to be before it goes where others would have had their turn

Moves = Mapping[JobId, tuple[GpuId, ...]]


def look_ahead(board: Board) -> None:
    """Where the next turn is known. One that names GPUs (`seating`), or has two jobs on one, goes by other rules."""
    turn = board.agenda.known.get(board.agenda.quantum + 1) if board.agenda.synced else None
    if turn is None or turn.seats or turn.guests:
        return
    while moves := next(_moves(board, turn), None):
        for id_, gpus in moves.items():
            job = board.jobs[id_]
            job.aim, job.asked_s = gpus, board.now_s
            board.tell("moving", "moved to other GPUs through a checkpoint, ahead of its next turn", job)
            board.ask(job, Tier.CHECKPOINT)


@dataclass(slots=True)
class _Foreseen:
    """Whose GPUs are whose in the next quantum, were nothing done."""

    usable: list[GpuId]
    claimed: dict[GpuId, HostedJob] = field(default_factory=dict)

    @property
    def free(self) -> list[GpuId]:
        return [gpu for gpu in self.usable if gpu not in self.claimed]

    def claim(self, job: HostedJob, gpus: Collection[GpuId]) -> None:
        self.claimed.update(dict.fromkeys(gpus, job))


def _moves(board: Board, turn: Turn) -> Iterator[Moves]:
    """Who could go where in time, so that one more runs in the next quantum: first of the turn's gangs, then of the others by pass, as the edge will have it."""
    foreseen = _Foreseen([gpu for gpu in board.gpus if board.usable(gpu)])
    for job in board.in_order:
        if job.occupying and not board.sliceable(job):
            foreseen.claim(job, job.gpus)
    gangs = [board.jobs[gang] for gang in turn.gangs if gang in board.jobs]
    others = [board.jobs[id_] for id_ in board.queue.order() if turn.local and id_ not in turn.gangs]
    for line in (gangs, [job for job in others if not job.part]):
        for job, free in _take(board, foreseen, [job for job in line if _could_run(board, job)]):
            for movers, there in _ways(foreseen, job, free):
                aims = beside(board, movers, there)
                if aims and all(_is_back_in_time(board, mover, aims[mover.id]) for mover in movers):
                    yield aims


def _could_run(board: Board, job: HostedJob) -> bool:
    if job.wanted.paused or job.portion_done or job.wanted.leave or job.id not in board.queue:
        return False
    return board.sliceable(job) if job.alive else job.startable


def _take(
    board: Board, foreseen: _Foreseen, line: Sequence[HostedJob]
) -> list[tuple[HostedJob, list[GpuId]]]:
    """GPUs for each of them, first for those that are bound; the answer is who could have others than its own, and of which.

    Of those that are left in the end; who is several quanta behind its due, of those that are left when its turn to choose comes.
    """
    leaving, lags = under_way(board), board.queue.passes()
    misfits: list[tuple[HostedJob, list[GpuId]]] = []
    for job in line:
        if not job.alive or job in leaving:
            continue
        if set(job.gpus).issubset(foreseen.free):
            foreseen.claim(job, job.gpus)
        else:
            behind = -lags[job.id] * tickets_per_gpu(job)
            misfits.append((job, foreseen.free if behind >= BEHIND_QUANTA else []))
    for job in line:
        if job.alive and job not in leaving:
            continue
        gpus = job.aim if set(job.aim).issubset(foreseen.free) else ()
        if not gpus:
            gpus = choose(job.gang, foreseen.free, list(board.gpus), load(board, without=job.id), {}) or ()
            # Also of a part that leaves for the sake of another of its hosts: there it will be in nobody's way.
            job.aim = gpus if job.part else ()
        foreseen.claim(job, gpus)
    found = [(job, free or foreseen.free) for job, free in misfits]
    return [(job, free) for job, free in found if job.gang <= len(free)]


def _ways(
    foreseen: _Foreseen, job: HostedJob, free: Sequence[GpuId]
) -> Iterator[tuple[list[HostedJob], Collection[GpuId]]]:
    """Who would have to go, and to which GPUs: the job, or else those on its own."""
    yield [job], free
    if set(job.gpus).issubset(foreseen.usable):
        holders = list(dict.fromkeys(foreseen.claimed[gpu] for gpu in job.gpus if gpu in foreseen.claimed))
        yield holders, set(foreseen.free).union(*(other.gpus for other in holders)) - set(job.gpus)


def _is_back_in_time(board: Board, job: HostedJob, gpus: tuple[GpuId, ...]) -> bool:
    """Without a turn of its own before, and without pushing out anybody's memory."""
    stands = job.phase is Phase.HELD and not job.in_turn and could_leave(board, job)
    if not stands or job.start_s > board.next_edge_s - board.now_s:
        return False
    if not (job.part or board.turn.local):
        return False  # who is not of a gang over several hosts is not started ahead of turns that the controller alone gives
    others = [other for other in board.jobs.values() if other.gpus]
    return all(spare_for_preload(board, job, gpu, others, ()) for gpu in gpus)
