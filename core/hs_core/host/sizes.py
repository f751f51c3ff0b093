"""What a job holds of each of its GPUs, as far as is known.

That is what its user says, its hook has measured, or the driver says of its processes, the largest. A swapped one still holds its device's context. Of one
that nobody has measured what others of its class held counts; of the first of its class that it may take all that a GPU has, from its first step on, and
half before that, which is when scripts build their models.
"""

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.names import GpuId
from hs_core.reports import Phase


def capacity_bytes(board: Board, gpu: GpuId) -> int:
    return board.gpus[gpu].memory_bytes if gpu in board.gpus else 0


def size_bytes(board: Board, job: HostedJob) -> int:
    """On each of its GPUs, as far as is known; 0: it is not."""
    return board.class_device_bytes.get(job.wanted.job_class, 0) if job.untried else job.memory_bytes


def is_unknown(board: Board, job: HostedJob) -> bool:
    return job.untried and job.wanted.job_class not in board.class_device_bytes


def most_bytes(board: Board, job: HostedJob, gpu: GpuId) -> int:
    """What it holds, or will once it trains: all there is, if nobody knows anything of it."""
    return capacity_bytes(board, gpu) if is_unknown(board, job) else size_bytes(board, job)


def lying_bytes(board: Board, job: HostedJob, gpu: GpuId) -> int:
    """What of it may lie there now."""
    if job.phase is Phase.SWAPPED:
        return job.residue_bytes
    if is_unknown(board, job) and not (job.in_turn or job.resumed):
        return capacity_bytes(board, gpu) // 2
    return most_bytes(board, job, gpu)


def least_bytes(board: Board, job: HostedJob, gpu: GpuId) -> int:
    """What it needs there, as far as is known; to be started, half if nobody knows anything of it."""
    starts = not job.alive or job.phase is Phase.STARTING
    return capacity_bytes(board, gpu) // 2 if starts and is_unknown(board, job) else size_bytes(board, job)
