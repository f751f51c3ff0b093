"""How sought after each GPU is. A process is bound to its GPUs: who shares one with many waits while others, alone on theirs, run on.

The queue's passes tell both: what those bound to a GPU are behind together can come from nothing but the binding (one's gain is another's
loss where they take turns), and one far ahead will give way, so that there is room beside it.
"""

from collections.abc import Mapping
from fractions import Fraction

from hs_core.host.board import Board, tickets_per_gpu
from hs_core.names import GpuId, JobId

HORIZON_QUANTA = 20
"""The window in which shares are judged: so far ahead GPUs are to be equally sought after."""


def dues(board: Board) -> dict[JobId, Fraction]:
    """Quanta due to each job that is bound to GPUs, on each of these, within the horizon.

    What it is behind counts in, what it is ahead does not. Up to one turn either way only says whose turn it is.
    """
    horizon = HORIZON_QUANTA * (board.advance or Fraction(1))
    found = {}
    for id_, lag in board.queue.passes().items():
        job = board.jobs[id_]
        if not job.gpus:
            continue
        per_gpu = tickets_per_gpu(job)
        settled = abs(lag) * per_gpu <= 1  # in strides
        found[id_] = max(Fraction(0), horizon - (0 if settled else lag)) * per_gpu
    return found


def demand(board: Board, *, without: JobId | None = None) -> dict[GpuId, Fraction]:
    """Quanta due within the horizon to those bound to each GPU."""
    return _bound(board, dues(board), without)


def shares(board: Board) -> dict[JobId, Fraction]:
    """Quanta of the horizon that the tickets of each job come to, on each of the GPUs that it is bound to: what is due to one that is neither ahead nor behind."""
    horizon = HORIZON_QUANTA * (board.advance or Fraction(1))
    jobs = ((id_, board.jobs[id_]) for id_ in board.queue.jobs)
    return {id_: horizon * tickets_per_gpu(job) for id_, job in jobs if job.gpus}


def load(board: Board, *, without: JobId | None = None) -> dict[GpuId, Fraction]:
    """Quanta of the horizon that the tickets of those bound to each GPU come to: it changes with who is there alone."""
    return _bound(board, shares(board), without)


def promised_beyond(board: Board) -> dict[GpuId, float]:
    """Quanta by which what the tickets of those bound to each GPU come to is more than all of it, in this quantum and those before in which somebody waited for that.

    Passes do not tell it where those on other GPUs are narrower: they fill what gangs cannot use, and are forgiven what they are ahead by it.
    Floats: a sum of fractions over months of other tickets each time would have ever more digits.
    """
    return {
        gpu: max(0.0, board.overdue.get(gpu, 0.0) + float(quanta / HORIZON_QUANTA - 1))
        for gpu, quanta in load(board).items()
    }


def _bound(board: Board, quanta: Mapping[JobId, Fraction], without: JobId | None) -> dict[GpuId, Fraction]:
    found = dict.fromkeys(board.gpus, Fraction(0))
    for id_, of in quanta.items():
        for gpu in board.jobs[id_].gpus if id_ != without else ():
            if gpu in found:
                found[gpu] += of
    return found


def owed(board: Board) -> dict[GpuId, Fraction]:
    """Quanta by which those bound to each GPU are behind together."""
    found = dict.fromkeys(board.gpus, Fraction(0))
    for id_, lag in board.queue.passes().items():
        job = board.jobs[id_]
        for gpu in job.gpus:
            if gpu in found:
                found[gpu] -= lag * tickets_per_gpu(job)
    return found
