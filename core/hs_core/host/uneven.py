"""Which job goes to other GPUs of its host because those that it is bound to are more sought after: those on them fall behind together."""

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from operator import itemgetter

from hs_core.host import rearranging
from hs_core.host.binding import astride, choose
from hs_core.host.board import Board
from hs_core.host.demand import HORIZON_QUANTA, demand, dues, load, owed, promised_beyond
from hs_core.host.hosted import HostedJob
from hs_core.host.movable import bound_to_none, has_waited, movable
from hs_core.host.walk import Walk, apart
from hs_core.names import GpuId


def late(board: Board, this: Walk) -> list[HostedJob]:
    """One of those that had no turn because their own GPUs are taken: whose GPUs are out of use, or whose move evens out best what is sought after."""
    if rearranging.under_way(board):
        return rearranging.next_movers(board, this)
    wishes = [job for job in this.misfits if job not in this.picks and movable(board, this, job)]
    for job in wishes:
        if bound_to_none(board, job):
            return [job]
    wishes = [job for job in wishes if not job.part or has_waited(board, job, job.start_s)]
    if not wishes:
        return []
    behind = owed(board)
    board.overdue = overdue = promised_beyond(board)
    least = board.config.move_owed_quanta
    late_ones = [job for job in wishes if max(behind[gpu] for gpu in job.gpus) >= least]
    crowded = [job for job in wishes if max(overdue[gpu] for gpu in job.gpus) >= least]
    found = evening(board, late_ones) or relieving(board, late_ones, behind) or evening(board, crowded)
    if not found:
        rearranging.begin(board)
    return found


def evening(board: Board, jobs: Sequence[HostedJob]) -> list[HostedJob]:
    """The one whose move makes the tickets bound to each GPU most even, for good; a gang astride blocks also where they stay as even as they were.

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
            least = 0 if _straightens(board, job, gpus) else board.config.move_evening_quanta * job.gang
            if less >= least:
                found.append((Fraction(less, job.gang), job, gpus))
    if not found:
        return []
    _, job, job.aim = max(found, key=itemgetter(0))
    return [job]


def _straightens(board: Board, job: HostedJob, gpus: Collection[GpuId]) -> bool:
    """It would stand on a whole block, and has stood astride for as long as shares are judged by: idle GPUs may have called it there, and would again."""
    host = list(board.gpus)
    if job.launched_s is None or board.now_s - job.launched_s < HORIZON_QUANTA * board.quantum_s:
        return False
    return astride(job.gpus, host) and not astride(gpus, host)


def relieving(board: Board, jobs: Sequence[HostedJob], behind: Mapping[GpuId, Fraction]) -> list[HostedJob]:
    """Where tickets cannot be even for good: the one whose move best evens out what is due on each GPU now."""
    worthy: list[tuple[Fraction, HostedJob]] = []
    for job in jobs:
        starts = 1 + job.start_s / board.quantum_s  # what a move costs
        if max(behind[gpu] for gpu in job.gpus) >= board.config.move_owed_quanta * starts:
            relief = relieved(board, job)
            if relief >= board.config.move_relief_quanta * starts:
                worthy.append((relief, job))
    return [max(worthy, key=itemgetter(0))[1]] if worthy else []


def relieved(board: Board, job: HostedJob) -> Fraction:
    """Quanta by which the GPUs where it would be started anew are less sought after, with it, than those that it leaves."""
    gpus = started_anew(board, job)
    if gpus is None:
        return Fraction(0)
    before, others = demand(board), demand(board, without=job.id)
    due = dues(board).get(job.id, Fraction(0))
    return max(before[gpu] for gpu in job.gpus) - max(others[gpu] for gpu in gpus) - due


def started_anew(board: Board, job: HostedJob) -> tuple[GpuId, ...] | None:
    """Where it would be started now, were all GPUs free."""
    usable = [gpu for gpu in board.gpus if board.usable(gpu)]
    host, others = list(board.gpus), demand(board, without=job.id)
    tried = (choose(job.gang, some, host, others, {}) for some in (*apart(board, job, usable), usable))
    return next((found for found in tried if found), None)
