"""Who leaves host memory for a checkpoint because others that have turns need the room there for what they hold of a GPU.

Where the budget holds no more, who has to leave its GPU writes a checkpoint, and is started anew for its next turn; who can write none stays, and
nobody comes in its place. That is right where all come round one after the other: who has just had its turn is away for longest. But what lies
there of a job that has had no turn for much longer than those are away (it is paused, has few tickets, or is a gang that the controller does not
name) is in their way at each of their turns, and leaves once, while it stands.
"""

from collections.abc import Sequence
from math import inf

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.letting_go import FIRST_IN_LINE, can_leave, is_worth_it, until_turn
from hs_core.host.room import lacking_on_host, parked_by
from hs_core.names import JobId
from hs_core.reports import Phase, Tier

LONGER = 2.0  # times as long as who needs the room was away before its newest turn
UNKNOWN_QUANTA = 3.0  # that is taken to be where it has not come back yet
GANG_QUANTA = 10.0  # at least, for a part of a gang over several hosts: all of that is started anew


def write_out(board: Board) -> None:
    short = [job for job in board.jobs.values() if job.unparked and _has_turns(job)]
    if not short:
        return
    quanta = until_turn(board)
    lying = [job for job in board.jobs.values() if _may_go(board, job, quanta)]
    lying.sort(key=lambda job: -_stood_s(board, job))
    for job in sorted(short, key=lambda job: quanta.get(job.id, inf)) if lying else ():
        going = _enough(board, job, lying)
        for other in going:
            _send(board, other, job)
        lying = [other for other in lying if other not in going]


def has_stood_long(board: Board, part: HostedJob) -> bool:
    """A gang over several hosts that is written out is not worth a start before the controller names it: on none of its hosts."""
    return part.part and _stood_s(board, part) >= GANG_QUANTA * board.quantum_s


def is_near(board: Board, job: HostedJob) -> bool:
    """One that was written out would be back by its turn if it were started now: before, it would be in the way again."""
    if job.part:
        return board.is_named(job)
    within = FIRST_IN_LINE + job.start_s / board.quantum_s
    return board.is_named(job) or until_turn(board).get(job.id, inf) <= within


def _has_turns(job: HostedJob) -> bool:
    return not (job.ended or job.dropped or job.wanted.paused or job.wanted.leave)


def _may_go(board: Board, job: HostedJob, quanta: dict[JobId, float]) -> bool:
    """It lies there, and is not about to come back."""
    stands = job.phase is Phase.SWAPPED and not job.in_turn and can_leave(board, job)
    if not stands or board.is_named(job) or quanta.get(job.id, inf) < FIRST_IN_LINE:
        return False
    return has_stood_long(board, job) if job.part else is_worth_it(board, job)


def _stood_s(board: Board, job: HostedJob) -> float:
    return 0.0 if job.stood_from_s is None else board.now_s - job.stood_from_s


def _waits_s(board: Board, job: HostedJob) -> float:
    """For how long it is without its GPUs from one turn to the next."""
    last_s = UNKNOWN_QUANTA * board.quantum_s if job.stood_s is None else job.stood_s
    return last_s if job.in_turn else max(last_s, _stood_s(board, job))


def _enough(board: Board, job: HostedJob, lying: Sequence[HostedJob]) -> list[HostedJob]:
    """Those that have stood for longest, so many that it has room; none where even all of them hold too little, or where it would find room without that."""
    swapped = [other for other in board.jobs.values() if other.phase is Phase.SWAPPED]
    parked_bytes, free_bytes = lacking_on_host(board, job)
    going: list[HostedJob] = []
    left = [other for other in swapped if other.asked is Tier.CHECKPOINT]
    left += [other for other in lying if _stood_s(board, other) > LONGER * _waits_s(board, job)]
    for other in left:
        if parked_bytes <= 0 and free_bytes <= 0:
            return going
        parked_bytes -= parked_by(board, other)
        free_bytes -= other.host_bytes
        if other.asked is None:
            going.append(other)
    return going if parked_bytes <= 0 and free_bytes <= 0 else []


def _send(board: Board, job: HostedJob, whom: HostedJob) -> None:
    text = f"leaves through a checkpoint for job {whom.id}: {parked_by(board, job) / 2**30:.1f} GiB that it holds of GPUs lie in host memory"
    board.tell("let-go", text, job)
    job.shelved, job.asked_s = True, board.now_s
    board.ask(job, Tier.CHECKPOINT)
