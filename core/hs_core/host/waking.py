"""Jobs that are to leave and that the freezer holds amid a step: of one that stands so no checkpoint can be written.

Each is let go for as long as it takes to get to a step edge and to save: before all others where a quantum begins, and at once where its GPUs idle.
Parts of a gang over several hosts go together: the controller names them, first of all, in the next quantum of all of its hosts (`cluster.directs`).
"""

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.movable import could_leave
from hs_core.host.walk import Walk, able
from hs_core.reports import Phase


def wake(board: Board, this: Walk) -> list[HostedJob]:
    """Pick them; whoever is bound to their GPUs comes after them in the same quantum."""
    woken = []
    for job in board.in_order:
        if not _is_caught(board, job) or job.part or not able(board, job) or job in this.picks:
            continue
        if this.claimed.keys().isdisjoint(job.gpus) and board.all_healthy(job.gpus):
            job.held_up = ""
            this.claim(job)
            this.picks.append(job)
            woken.append(job)
    return woken


def cut_short(board: Board) -> None:
    """Where switching is slow quanta are longer than is wanted: one that waits so for its edge has it after as long as is wanted."""
    if board.quantum_s > board.wanted_quantum_s and any(
        _is_caught(board, job) and not job.part and able(board, job) and not why_not(board, job)
        for job in board.jobs.values()
    ):
        board.quantum_s = max(board.wanted_quantum_s, board.now_s - board.edge_s)


def why_not(board: Board, job: HostedJob) -> str:
    """Why one cannot be let go however long it waits; empty: it can, or there is nothing that keeps it."""
    if not _is_caught(board, job):
        return ""
    names = board.names(job.gpus)
    out = [gpu for gpu in job.gpus if not board.all_healthy([gpu])]
    if out:
        return (
            f"it is frozen amid a step, and {board.names(out)} {'is' if len(out) == 1 else 'are'} out of use"
        )
    stays = next((o for o in board.rivals(job) if o.occupying and not board.sliceable(o)), None)
    return f"it is frozen amid a step, and job {stays.id} does not leave {names}" if stays is not None else ""


def leaves_drained(board: Board, job: HostedJob) -> bool:
    """Its turn on a GPU that is to be free is over, and it would be frozen there again, as when it was to stand last."""
    drained = not board.drained.isdisjoint(job.gpus) and board.all_healthy(job.gpus)
    return drained and job.hold_fails > 0 and could_leave(board, job)


def _is_caught(board: Board, job: HostedJob) -> bool:
    frozen = job.phase is Phase.FROZEN and job.asked is None
    return (
        job.wanted.leave
        and frozen
        and job.ready
        and job.can_checkpoint
        and board.now_s >= job.checkpoint_after_s
    )
