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
LEAST_RELIEF = 2.0  # quanta of each horizon, of the GPU of which most is due
PAYS_WITHIN = 5  # horizons, in which so many starts are made good for
AGAIN_QUANTA = 2 * HORIZON_QUANTA  # after one nobody asks for the next before


def under_way(board: Board) -> bool:
    """Some are yet to change places. What has come or gone since makes it void."""
    plan = board.rearrangement
    if plan is None:
        return False
    if plan.tickets != _tickets(board) or not plan.places or board.now_s >= plan.until_s:
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
    """If it is worth its starts. Where the controller says which GPUs whose are, they are that."""
    last_s = board.rearranged_s
    if last_s is not None and board.now_s - last_s < AGAIN_QUANTA * board.quantum_s:
        return
    if board.turn.guests or board.turn.seats or max(board.overdue.values(), default=0.0) < WORSE_QUANTA:
        return
    board.rearranged_s = board.now_s
    of = _due(board)
    kept = {id_: board.jobs[id_].gpus for id_ in of if not _may_go(board, id_)}
    now = {id_: board.jobs[id_].gpus for id_ in of if id_ not in kept}
    wanted = _even(board, kept, now, of)
    if wanted is None:
        return
    before, after = _loads(board, kept | now, of), _loads(board, kept | wanted, of)
    if max(before.values()) - max(after.values()) < LEAST_RELIEF:
        return
    mirrored = not kept and all(map(board.usable, board.gpus))
    places = _nearest(now, wanted, list(board.gpus), of, mirrored=mirrored)
    moves = {id_: gpus for id_, gpus in places.items() if set(gpus) != set(now[id_])}
    starts = sum(board.jobs[id_].gang * board.jobs[id_].start_s / board.quantum_s for id_ in moves)
    if starts <= PAYS_WITHIN * (_excess(before) - _excess(after)):
        until_s = board.now_s + AGAIN_QUANTA * board.quantum_s
        board.rearrangement = Rearrangement(moves, _tickets(board), until_s)


def _may_go(board: Board, id_: JobId) -> bool:
    job = board.jobs[id_]
    return not job.part and could_leave(board, job)


def _due(board: Board) -> dict[JobId, Fraction]:
    """Quanta of the horizon that are due to each job on each of its GPUs, of which together they are due all."""
    of = shares(board)
    everything = sum((quanta * board.jobs[id_].gang for id_, quanta in of.items()), Fraction(0))
    times = HORIZON_QUANTA * sum(map(board.usable, board.gpus)) / everything if everything else Fraction(0)
    return {id_: min(Fraction(HORIZON_QUANTA), quanta * times) for id_, quanta in of.items()}


def _tickets(board: Board) -> dict[JobId, Fraction]:
    return {id_: tickets_per_gpu(board.jobs[id_]) for id_ in board.queue.jobs}


def _even(board: Board, kept: Places, now: Places, of: Mapping[JobId, Fraction]) -> Places | None:
    """One after the other to where least is promised: first whoever is due most of each of its GPUs."""
    load, places, host = _loads(board, kept, of), Places(), list(board.gpus)
    usable = [gpu for gpu in host if board.usable(gpu)]
    for id_ in sorted(now, key=lambda id_: (-of[id_], -len(now[id_]), id_)):
        gpus = choose(len(now[id_]), usable, host, load, {})
        if gpus is None:
            return None
        places[id_] = gpus
        for gpu in gpus:
            load[gpu] += of[id_]
    return places


def _nearest(
    now: Mapping[JobId, tuple[GpuId, ...]],
    wanted: Places,
    host: Sequence[GpuId],
    of: Mapping[JobId, Fraction],
    *,
    mirrored: bool,
) -> Places:
    """The same, in that of its mirror images in which most stay where they are. Not `mirrored`: others stay in any case, or some GPUs are out of use, so there is but one."""
    size = len(host)
    mirrors = range(size) if mirrored and size & (size - 1) == 0 else range(1)
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


def _loads(board: Board, places: Places, of: Mapping[JobId, Fraction]) -> dict[GpuId, Fraction]:
    load = dict.fromkeys(board.gpus, Fraction(0))
    for id_, gpus in places.items():
        for gpu in gpus:
            if gpu in load:
                load[gpu] += of[id_]
    return load


def _excess(load: Mapping[GpuId, Fraction]) -> Fraction:
    """Quanta of each horizon that are due on GPUs beyond all of them."""
    return sum((max(Fraction(0), quanta - HORIZON_QUANTA) for quanta in load.values()), Fraction(0))
