"""Whose process leaves through a checkpoint because host memory is short: one whose turn is farther away than that of who waits to be started.

Where all come round one after the other that is who had its turn last, so that as many as possible still have their process when theirs comes.
Only who is near its turn is made room for: a checkpoint and a start are to be worth it.
"""

from collections.abc import Iterator, Sequence
from math import inf

from hs_core.host.board import Board
from hs_core.host.host_memory import is_short, left_for, needed_bytes, starts
from hs_core.host.hosted import HostedJob
from hs_core.host.walk import fills, has_turn
from hs_core.names import JobId
from hs_core.reports import Phase, Tier

FIRST_IN_LINE = 2.0  # quanta until its turn, by passes
PATIENCE_QUANTA = 3  # that one waits as the first in line; then those that run make room, too
IDLE_PATIENCE_QUANTA = 1  # the same where nobody runs: waiting helps no one


def let_go(board: Board) -> None:
    """After everything else: it goes by who was refused."""
    waiting = board.refused | {id_ for id_, (_, edge_s) in board.room_for.items() if edge_s == board.edge_s}
    since, board.room_for = board.room_for, {}
    if board.free_bytes is None or not (waiting or is_short(board)):
        return
    quanta = until_turn(board)
    standing = sorted(
        (j for j in board.jobs.values() if _may_go(board, j)), key=lambda j: (j.part, -quanta.get(j.id, inf))
    )
    nobody_runs = not any(job.occupying for job in board.jobs.values())
    leaving_bytes = sum(job.host_bytes for job in board.jobs.values() if _goes(job))
    coming = starts(board, (job for job in board.jobs.values() if job.alive or job.in_turn))
    for job in _near(board, waiting, quanta):
        if quanta.get(job.id, inf) < FIRST_IN_LINE and job.refused_edge_s != board.edge_s:
            job.refused_quanta, job.refused_edge_s = job.refused_quanta + 1, board.edge_s
            job.idle_quanta += nobody_runs
        missing = needed_bytes(board, job) - left_for(board, job, coming) - leaving_bytes
        going = _enough(board, job, standing, quanta, missing) if missing > 0 else []
        if going is None and not (fills(board) and _is_impatient(job) and _could_ever(board, job)):
            continue
        edge_s = board.edge_s if job.id in board.refused else since[job.id][1]
        board.room_for[job.id] = (needed_bytes(board, job), edge_s)
        if going is None:
            break  # nobody is started before it, so that those who run will have had enough
        for other in going:
            leaving_bytes += other.host_bytes
            _send(board, other, f"for job {job.id}")
            if other in standing:
                standing.remove(other)
    least = board.config.host_memory_reserve_bytes // 2
    for other in standing:
        if board.free_bytes + leaving_bytes >= least:
            break
        leaving_bytes += other.host_bytes
        _send(board, other, "as little is left")


def until_turn(board: Board) -> dict[JobId, float]:
    """Quanta until each job's turn, were all there: in the order of passes, and at once for gangs that the controller names.

    Parts of others over several hosts wait for its word, and are in nobody's way until then.
    """
    named = set(board.turn.gangs)
    coming = board.agenda.known.get(board.agenda.quantum + 1)
    if coming is not None:
        named.update(coming.gangs)
    usable = max(1, sum(map(board.usable, board.gpus)))
    found: dict[JobId, float] = {}
    ahead = 0
    for id_ in board.queue.order():
        job = board.jobs[id_]
        found[id_] = 0.0 if id_ in named else 1.0 + ahead / usable
        if job.part and id_ not in named:
            found[id_] = max(found[id_], FIRST_IN_LINE)
        else:
            ahead += job.gang
    return found


def _near(board: Board, waiting: set[JobId], quanta: dict[JobId, float]) -> Iterator[HostedJob]:
    """Who waits for memory and has its turn before a start would be through."""
    start_s = max((job.start_s for job in board.jobs.values()), default=0.0)
    within = 2.0 + start_s / board.quantum_s
    there = (board.jobs[id_] for id_ in waiting if id_ in board.jobs)
    for job in sorted(there, key=lambda job: (quanta.get(job.id, inf), job.order)):
        called = has_turn(board, job) or quanta.get(job.id) == 0.0
        if not job.alive and job.startable and called and quanta.get(job.id, inf) <= within:
            yield job


def _may_go(board: Board, job: HostedJob) -> bool:
    """It stands outside its turn and can write a checkpoint."""
    return can_leave(board, job) and job.phase in (Phase.HELD, Phase.SWAPPED) and not job.in_turn


def can_leave(board: Board, job: HostedJob) -> bool:
    return (
        job.alive
        and job.ready
        and job.asked is None
        and job.can_checkpoint
        and board.now_s >= job.checkpoint_after_s
        and not (job.portion_done or job.ended or job.wanted.leave)
    )


def _is_impatient(job: HostedJob) -> bool:
    return job.refused_quanta > PATIENCE_QUANTA or job.idle_quanta > IDLE_PATIENCE_QUANTA


def _could_ever(board: Board, job: HostedJob) -> bool:
    """Were all gone that can write a checkpoint."""
    left_bytes, stays = board.free_bytes or 0, False
    for other in board.jobs.values():
        if other.alive and other.can_checkpoint and other.ready and not other.stuck:
            left_bytes += other.host_bytes
        else:
            stays |= other.alive
    return not stays or left_bytes - board.config.host_memory_reserve_bytes >= needed_bytes(board, job)


def _ran_s(board: Board, job: HostedJob) -> float:
    """This process, in turns: a start is to be worth it."""
    return job.run_s + job.seconds_in_turn(board.now_s) - job.launched_run_s


def is_worth_it(board: Board, job: HostedJob) -> bool:
    return not job.part and (job.wanted.paused or _ran_s(board, job) >= 2 * job.start_s)


def _has_had_enough(board: Board, job: HostedJob) -> bool:
    """It is in a turn of the host's own stride, and others wait for memory alone."""
    return (
        job.phase is Phase.RUNNING
        and job.in_turn
        and job.id not in board.turn.gangs
        and _ran_s(board, job) >= max(PATIENCE_QUANTA * board.quantum_s, 2 * job.start_s)
        and board.sliceable(job)
        and can_leave(board, job)
    )


def _goes(job: HostedJob) -> bool:
    """Its memory will be free without anything more being asked."""
    return job.alive and (
        job.asked is Tier.CHECKPOINT
        or job.phase is Phase.CHECKPOINTED
        or (job.phase is Phase.KILLING and not job.stuck)
    )


def _enough(
    board: Board, job: HostedJob, standing: Sequence[HostedJob], quanta: dict[JobId, float], missing: int
) -> list[HostedJob] | None:
    """Those of later turns whose memory is enough for it, the last first; None: even all of them hold too little.

    A part of a gang over several hosts takes the others along: only for one that has waited long.
    """
    own = quanta.get(job.id, inf)
    could = [
        other
        for other in standing
        if quanta.get(other.id, inf) > own and (_is_impatient(job) or is_worth_it(board, other))
    ]
    if _is_impatient(job) and fills(board):
        running = [
            j for j in board.jobs.values() if _has_had_enough(board, j) and quanta.get(j.id, inf) > own
        ]
        could += sorted(running, key=lambda j: -quanta.get(j.id, inf))
    going: list[HostedJob] = []
    for other in could:
        going.append(other)
        missing -= other.host_bytes
        if missing <= 0:
            return going
    gone = {other.id for other in going}
    alone = all(_goes(other) or other.id in gone for other in board.jobs.values() if other.alive)
    return going if alone else None


def _send(board: Board, job: HostedJob, why: str) -> None:
    text = f"leaves through a checkpoint {why}: it holds {job.host_bytes / 2**30:.1f} GiB of host memory"
    board.tell("let-go", text, job)
    if job.phase is Phase.RUNNING:
        board.suspend(job, Tier.CHECKPOINT)
    else:
        job.asked_s = board.now_s
        board.ask(job, Tier.CHECKPOINT)
