"""What must hold on a host after every event."""

from collections.abc import Iterator

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.room import parked_bytes
from hs_core.model import Phase, Tier

WITHOUT_PROCESS = frozenset({Phase.WAITING, Phase.CHECKPOINTED, Phase.EXITED})
OFF_THE_GPU = frozenset({Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.CHECKPOINTED})


def broken_laws(board: Board) -> list[str]:
    return [law for job in board.jobs.values() for law in _of_job(board, job)] + list(_of_gpus(board))


def _of_job(board: Board, job: HostedJob) -> Iterator[str]:
    name = f"job {job.id} ({job.phase})"
    if job.alive and job.phase in (Phase.WAITING, Phase.EXITED):
        yield f"{name} has a process"
    if not job.alive and job.phase not in WITHOUT_PROCESS:
        yield f"{name} has no process"
    if (job.alive or (job.in_turn and job.gpus)) and len(set(job.gpus)) != job.gang:
        yield f"{name} is bound to {job.gpus}, its gang is {job.gang}"
    if not job.alive and not job.in_turn and job.gpus:
        yield f"{name} keeps {job.gpus} without a process or a turn"
    if job.occupying and not job.alive:
        yield f"{name} is charged without a process"
    if job.occupying and job.phase in OFF_THE_GPU:
        yield f"{name} is charged though it stands"
    if job.phase in (Phase.RUNNING, Phase.SUSPENDING) and not job.occupying:
        yield f"{name} runs uncharged"
    if (job.phase is Phase.SUSPENDING) != (job.asked is not None and job.phase not in OFF_THE_GPU):
        yield f"{name} was asked {job.asked}"
    if job.in_turn and (job.id not in board.queue or job.phase in (Phase.SUSPENDING, Phase.KILLING)):
        yield f"{name} is in its turn"
    if job.phase is Phase.RUNNING and not job.in_turn and not job.dropped:
        yield f"{name} runs out of its turn"
    if min(job.gpu_s, job.run_s, job.suspend_s, job.resume_s, job.lost_gpu_s) < 0:
        yield f"{name} has a negative counter"
    if job.ended and job.id in board.queue:
        yield f"{name} is in the stride queue"


def _of_gpus(board: Board) -> Iterator[str]:
    for gpu in board.gpus:
        turns = [j for j in board.jobs.values() if gpu in j.gpus and j.in_turn]
        movable = [j.id for j in turns if not board.immovable(j) or j.phase is Phase.STARTING]
        if len(movable) > 1 or (movable and len(turns) > 1):
            yield f"{gpu} is promised to jobs {[j.id for j in turns]}"
    if any(j.phase is Phase.SWAPPED or j.asked is Tier.SWAP for j in board.jobs.values()):
        measured = parked_bytes(board)
        if measured > max(board.config.host_memory_budget_bytes, 0) and not _grew(board):
            yield f"{measured} bytes are parked in host memory, {board.config.host_memory_budget_bytes} are allowed"


def _grew(board: Board) -> bool:
    """A job turned out larger than it had said: nothing was promised for that."""
    return any(
        j.device_memory_bytes > j.wanted.spec.gpu_memory_bytes or j.parked_bytes for j in board.jobs.values()
    )
