"""Who waits in vain for device memory, as nobody who holds it can be moved out."""

from hs_core.host.board import Board
from hs_core.host.comings import leaves_now, lose, start_failed
from hs_core.host.hosted import HostedJob
from hs_core.host.walk import Walk, fills
from hs_core.reports import MEMORY_HELD, Tier

LONG_TURNS = 9  # that one of the host's own waits for memory that nobody leaves
PATIENCE_TURNS = 3  # that a job waits for its GPUs before a gang of several hosts leaves it one, or for their memory before it gives up


def give_up(board: Board, this: Walk) -> None:
    """Who is named and finds no device memory, turn after turn, is sent elsewhere, or back for a while, so that those who hold it are named and come to their end.
    To jobs of its own the host's stride gives turns anyway; who has waited for long in it may have room elsewhere.

    Of two gangs over the same hosts each may have come up on one of them, and hold the memory that the other needs: neither will ever stand at a
    step edge, and be moved out. The younger one begins anew.

    A swapped one whose place others keep leaves host memory through a checkpoint: then it finds no memory to be started, and is sent elsewhere.
    """
    for job in this.crowded_out:
        if job.waited_quanta > LONG_TURNS and not job.part and leaves_now(board, job):
            board.tell("let-go", f"leaves through a checkpoint: {job.held_up}, turn after turn", job)
            board.ask(job, Tier.CHECKPOINT)
    for job in this.lacking:
        if job.alive or job.ended or job.waited_quanta <= PATIENCE_TURNS:
            continue
        parts = [other for other in board.jobs.values() if other.part and other.resident and other is not job]
        half_up = [other for other in parts if not other.ready and not other.ended]
        named = job.id in board.turn.gangs or (not job.part and job.waited_quanta > LONG_TURNS)
        if named and (
            any(o.id < job.id for o in half_up) if half_up else not fills(board) or parts or not job.part
        ):
            job.waited_quanta = 0
            start_failed(board, job, f"the memory of its GPUs {MEMORY_HELD}")
            # Or once a process is gone.
            job.start_at_s = max(job.start_at_s, board.now_s + LONG_TURNS * board.quantum_s)
            continue
        for other in half_up:
            if other.id > job.id and _has_lingered(board, other):
                lose(board, other, f"job {job.id}, which is older, waits for its GPUs' memory")


def _has_lingered(board: Board, part: HostedJob) -> bool:
    return part.launched_s is not None and board.now_s - part.launched_s > PATIENCE_TURNS * board.quantum_s
