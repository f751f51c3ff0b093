"""Jobs of one host change places, several of them, where no single move would make its GPUs more evenly sought after.

Two jobs that are due all of a GPU, say, each beside gangs on a block of its own: one block for both, and the other for the gangs, gives everybody
its share; whichever moves first makes it worse.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from hs_core.host.binding import choose
from hs_core.host.board import Board, tickets_per_gpu
from hs_core.host.demand import HORIZON_QUANTA, shares
from hs_core.host.hosted import HostedJob
from hs_core.host.movable import could_leave
from hs_core.host.places import Places, Rearrangement
from hs_core.host.walk import Walk
from hs_core.names import GpuId, JobId

WORSE_QUANTA = 3.0  # by which a GPU has been promised beyond all of it, before others change places for that
LEAST_GAIN = 2.0  # quanta of GPUs, of each horizon
PAYS_WITHIN = 5  # horizons, in which so many starts are made good for
AGAIN_QUANTA = 2 * HORIZON_QUANTA  # after one nobody asks for the next before


def under_way(board: Board) -> bool:
    """Some are yet to change places. What has come or gone since makes it void."""
    plan = board.rearrangement
    if plan is None:
        return False
    if plan.tickets != _tickets(board) or not plan.places:
        board.rearrangement = None
        return False
    return True


def next_movers(board: Board, this: Walk) -> list[HostedJob]:
    """Those that have no turn now; the last ones also out of it."""
    plan = board.rearrangement
    assert plan is not None
    there = [board.jobs[id_] for id_ in plan.places if could_leave(board, board.jobs[id_])]
    movers = [job for job in there if job not in this.picks][: max(1, board.config.preload)]
    if not movers and len(there) == len(plan.places):
        movers = there[:1]
        this.leave(movers[0])
    for job in movers:
        job.aim = plan.places.pop(job.id)
    return movers


def begin(board: Board) -> None:
    """If it is worth its starts."""
    last_s = board.rearranged_s
    if last_s is not None and board.now_s - last_s < AGAIN_QUANTA * board.quantum_s:
        return
    if max(board.overdue.values(), default=0.0) < WORSE_QUANTA:
        return
    of = shares(board)
    jobs = {id_: board.jobs[id_] for id_ in of}
    kept = [job for job in jobs.values() if job.part or not could_leave(board, job)]
    free = [job for job in jobs.values() if job not in kept]
    host = list(board.gpus)
    base = _loads(host, {job.id: job.gpus for job in kept}, of)
    wanted = _even(board, free, host, base, of)
    if wanted is None:
        return
    now = {job.id: job.gpus for job in free}
    gain = _excess(host, base, now, of) - _excess(host, base, wanted, of)
    if gain < LEAST_GAIN:
        return
    places = _nearest(now, wanted, host, of, fixed=bool(kept))
    moves = {id_: gpus for id_, gpus in places.items() if set(gpus) != set(now[id_])}
    starts = sum(jobs[id_].gang * jobs[id_].start_s / board.quantum_s for id_ in moves)
    board.rearranged_s = board.now_s
    if starts <= PAYS_WITHIN * gain:
        board.rearrangement = Rearrangement(moves, _tickets(board))


def _tickets(board: Board) -> dict[JobId, Fraction]:
    return {id_: tickets_per_gpu(board.jobs[id_]) for id_ in board.queue.jobs}


def _even(
    board: Board,
    jobs: Sequence[HostedJob],
    host: Sequence[GpuId],
    base: Mapping[GpuId, Fraction],
    of: Mapping[JobId, Fraction],
) -> Places | None:
    """One after the other to where least is promised: first whoever is due most of each of its GPUs."""
    load, places = dict(base), Places()
    usable = [gpu for gpu in host if board.usable(gpu)]
    for job in sorted(jobs, key=lambda job: (-of[job.id], -job.gang, job.id)):
        gpus = choose(job.gang, usable, host, load, {})
        if gpus is None:
            return None
        places[job.id] = gpus
        for gpu in gpus:
            load[gpu] += of[job.id]
    return places


def _nearest(
    now: Mapping[JobId, tuple[GpuId, ...]],
    wanted: Places,
    host: Sequence[GpuId],
    of: Mapping[JobId, Fraction],
    *,
    fixed: bool,
) -> Places:
    """The same, in that of its mirror images in which most stay where they are. `fixed`: others stay in any case, so there is but one."""
    size = len(host)
    mirrors = range(size) if size & (size - 1) == 0 and not fixed else range(1)
    place = {gpu: at for at, gpu in enumerate(host)}

    def seen(gpus: tuple[GpuId, ...], mirror: int) -> tuple[GpuId, ...]:
        return tuple(host[at] for at in sorted(place[gpu] ^ mirror for gpu in gpus))

    images = [
        _swapped(now, {id_: seen(gpus, mirror) for id_, gpus in wanted.items()}, of) for mirror in mirrors
    ]
    return max(images, key=lambda image: sum(len(gpus) for id_, gpus in image.items() if gpus == now[id_]))


def _swapped(now: Mapping[JobId, tuple[GpuId, ...]], wanted: Places, of: Mapping[JobId, Fraction]) -> Places:
    """Those as wide and due as much may stand in for one another: who is where one of them is to be stays."""
    alike: dict[tuple[int, Fraction], list[JobId]] = defaultdict(list)
    for id_, gpus in wanted.items():
        alike[len(gpus), of[id_]].append(id_)
    found = Places()
    for jobs in alike.values():
        open_ = [wanted[id_] for id_ in jobs]
        others = []
        for id_ in jobs:
            if now[id_] in open_:
                open_.remove(now[id_])
                found[id_] = now[id_]
            else:
                others.append(id_)
        found.update(zip(others, open_, strict=True))
    return found


def _loads(
    host: Sequence[GpuId], places: Mapping[JobId, tuple[GpuId, ...]], of: Mapping[JobId, Fraction]
) -> dict[GpuId, Fraction]:
    load = dict.fromkeys(host, Fraction(0))
    for id_, gpus in places.items():
        for gpu in gpus:
            if gpu in load:
                load[gpu] += of[id_]
    return load


def _excess(
    host: Sequence[GpuId],
    base: Mapping[GpuId, Fraction],
    places: Mapping[JobId, tuple[GpuId, ...]],
    of: Mapping[JobId, Fraction],
) -> Fraction:
    """Quanta of each horizon that are promised on GPUs beyond all of them."""
    load = _loads(host, places, of)
    return sum((max(Fraction(0), base[gpu] + load[gpu] - HORIZON_QUANTA) for gpu in host), Fraction(0))
