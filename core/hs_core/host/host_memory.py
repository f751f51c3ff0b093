"""Host memory: a process that stands between two turns keeps its own, so only so many fit beside each other.

Nobody is started whose process would leave the host less than its reserve, as far as is known; who has to leave for it, see `letting_go`.
Of a class that nobody has seen yet a guess is made: the next one of it is known. Started in any case are: one that would be the only process
here, as waiting would not help it; one for whom others have not left though nobody runs at all; and a part of a gang over several hosts in
its turn, as its other hosts wait for it, with what they hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hs_core.events.host import HostMemorySeen
from hs_core.host.board import Board, remember_most
from hs_core.host.hosted import HostedJob
from hs_core.names import JobId
from hs_core.reports import FOR_MEMORY, NONE_LEFT, OF_HOST, OUT_OF_MEMORY, Exit, Phase

UNKNOWN_BYTES, UNKNOWN_PART = 1 << 30, 32
"""For each GPU of a gang, of a class of jobs of which nothing is known: a Python with torch and a device's context. Less on small hosts, such a part of
what there is: no job that is tried there holds much."""

PLENTY = 2
"""While the first one of such a class comes up and tells how much it is, another is only started where such a part of all memory is left."""

IDLE_QUANTA = 10
"""For so long nobody may be kept from starting on a host where nobody runs: those who hold its memory cannot leave, and it is not their turn. Turns that gangs over
several hosts have in between change nothing about that."""


def seen(board: Board, event: HostMemorySeen) -> list[HostedJob]:
    """Jobs that were never seen to hold so much."""
    grown = []
    board.free_bytes = event.available_bytes
    board.most_bytes = event.available_bytes + sum(event.held_bytes.values())
    for id_, held_bytes in event.held_bytes.items():
        job = board.jobs.get(id_)
        if job is None or not job.alive:
            continue
        job.host_bytes = held_bytes
        if job.phase is Phase.STARTING:
            continue  # it has not yet all that it will have
        job.weighed = True
        if held_bytes > job.host_peak_bytes:
            job.host_peak_bytes = held_bytes
            grown.append(job)
        remember_most(board.class_bytes, job.wanted.job_class, held_bytes // max(job.gang, 1))
    return grown


def judged(board: Board, job: HostedJob, exit_: Exit) -> Exit:
    """The kernel kills whoever is largest when a server has no memory left: of several that is no job's own failure."""
    if job.ended or exit_.why != OUT_OF_MEMORY + NONE_LEFT:
        return exit_
    if not any(other.alive for other in board.jobs.values() if other is not job):
        return exit_
    return replace(exit_, why=f"{OF_HOST}: {exit_.why.removeprefix('out of memory: ')}")


def starts(board: Board, jobs: Iterable[HostedJob]) -> dict[JobId, int]:
    """What those of these will take who are to be started, or were not seen yet since they stood at their first step edge."""
    if board.free_bytes is None:
        return {}
    return {job.id: to_come(board, job) for job in jobs if not (job.alive and job.weighed)}


def is_short(board: Board) -> bool:
    """So little is left that those who run might be killed for want of it."""
    return board.free_bytes is not None and board.free_bytes < board.config.host_memory_reserve_bytes // 2


def expected_bytes(board: Board, job: HostedJob) -> int:
    """What its process will hold: as much as an earlier one did here, else as those of its class, else as its user says, else a guess."""
    class_bytes = board.class_bytes.get(job.wanted.job_class, 0) * job.gang
    return job.host_peak_bytes or class_bytes or job.wanted.spec.memory_bytes or _guess(board) * job.gang


def _guess(board: Board) -> int:
    return min(UNKNOWN_BYTES, board.most_bytes // UNKNOWN_PART)


def needed_bytes(board: Board, job: HostedJob) -> int:
    """What it waits for: as much as is expected, or all that would be left were no other here."""
    most = max(0, board.most_bytes - board.config.host_memory_reserve_bytes)
    return min(expected_bytes(board, job), most)


def _known(board: Board, job: HostedJob) -> bool:
    name = job.wanted.job_class
    return bool(job.host_peak_bytes or board.class_bytes.get(name) or job.wanted.spec.memory_bytes)


def _is_tried(job: HostedJob, coming: dict[JobId, int], others: Mapping[JobId, HostedJob]) -> bool:
    """Another of its class is on its way to its first step edge."""
    return any(
        others[id_].wanted.job_class == job.wanted.job_class
        for id_ in coming.keys() & others.keys() - {job.id}
    )


def to_come(board: Board, job: HostedJob) -> int:
    """What it will take of what is left: of a process that is about to be started, or comes up."""
    if not job.alive:
        return expected_bytes(board, job)
    return max(0, expected_bytes(board, job) - job.host_bytes)


def left_for(board: Board, job: HostedJob, coming: dict[JobId, int]) -> int:
    """Bytes above the reserve when those `coming`, and those for whom room is being made, have theirs. `job` itself is not one of them."""
    assert board.free_bytes is not None
    promised = {id_: needed for id_, (needed, _) in board.room_for.items()} | coming
    promised.pop(job.id, None)
    return board.free_bytes - board.config.host_memory_reserve_bytes - sum(promised.values())


def has_memory(
    board: Board, job: HostedJob, coming: dict[JobId, int], others: Mapping[JobId, HostedJob]
) -> bool:
    """Its process can be started now. `others`: all that may have one."""
    if board.free_bytes is None or (job.part and job.id in board.turn_of(job).gangs):
        return True
    needed = needed_bytes(board, job)
    if not _known(board, job) and _is_tried(job, coming, others):
        needed = max(needed, board.most_bytes // PLENTY)
    if left_for(board, job, coming) >= needed:
        return True
    alone = all(other is job or not (other.alive or other.id in coming) for other in others.values())
    if alone or job.idle_quanta >= IDLE_QUANTA:
        return True
    board.refused.add(job.id)
    return False


def waits_text(board: Board, job: HostedJob) -> str:
    needed = expected_bytes(board, job) / 2**30
    return f"{FOR_MEMORY} of its server, of which it needs about {needed:.1f} GiB"
