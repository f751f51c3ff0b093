"""What must hold on a host after every event."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hs_core.events.host import HostCommand, Launch, Suspend
from hs_core.host.blame import Incarnation
from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import are_mates
from hs_core.host.room import coming_back, over_bytes, parked_by
from hs_core.names import GpuId
from hs_core.reports import Phase, Tier

WITHOUT_PROCESS = frozenset({Phase.WAITING, Phase.CHECKPOINTED, Phase.EXITED})
OFF_THE_GPU = frozenset({Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.CHECKPOINTED})


@dataclass(frozen=True, slots=True)
class Broken:
    what: str
    jobs: tuple[Incarnation, ...] = ()  # of whom it does not hold


def broken_laws(
    board: Board, touched: Collection[HostedJob], orders: Collection[HostCommand]
) -> list[Broken]:
    """`touched`: jobs that may stand otherwise than when all was well; `orders`: given just now."""
    broken = []
    for job in touched:
        if not _stands_well(board, job):
            who = ((job.id, job.wanted.epoch),)
            broken += [Broken(f"job {job.id} ({job.phase}) {law}", who) for law in _of_job(board, job)]
    if len(touched) > 1:
        broken += _of_gpus(board)
    return [*broken, *_of_orders(board, orders), *_of_host_memory(board, orders)]


def _stands_well(board: Board, job: HostedJob) -> bool:
    """Beyond doubt, as nearly all do; `_of_job` says what may be wrong with the others."""
    phase = job.phase
    if phase is not Phase.RUNNING and phase is not Phase.HELD:
        return False
    if job.launched_s is None or len(job.gpus) != job.gang or len(set(job.gpus)) != job.gang:
        return False
    runs = phase is Phase.RUNNING
    if runs != (job.charged_from_s is not None) or (runs and job.asked is not None):
        return False
    if job.gpu_s < 0 or job.run_s < 0 or job.suspend_s < 0 or job.resume_s < 0 or job.lost_gpu_s < 0:
        return False
    if not job.in_turn:
        return not runs
    return job.id in board.queue.jobs and not job.part


def _of_job(board: Board, job: HostedJob) -> Iterator[str]:
    phase, occupying, alive, asked = job.phase, job.occupying, job.launched_s is not None, job.asked
    if not alive:
        yield from _of_none_alive(job)
    elif phase is Phase.WAITING or phase is Phase.EXITED:
        yield "has a process"
    if (alive or (job.in_turn and job.gpus)) and len(set(job.gpus)) != job.gang:
        yield f"is bound to {job.gpus}, its gang is {job.gang}"
    stands = phase in OFF_THE_GPU
    if occupying and stands:
        yield "is charged though it stands"
    if not occupying and (phase is Phase.RUNNING or phase is Phase.SUSPENDING):
        yield "runs uncharged"
    if (phase is Phase.SUSPENDING) != (asked is not None and not stands):
        yield f"was asked {asked}"
    if job.in_turn:
        yield from _of_its_turn(board, job)
    elif phase is Phase.RUNNING and not job.dropped:
        yield "runs out of its turn"
    if job.gpu_s < 0 or job.run_s < 0 or job.suspend_s < 0 or job.resume_s < 0 or job.lost_gpu_s < 0:
        yield "has a negative counter"
    if (phase is Phase.EXITED or phase is Phase.KILLING) and job.id in board.queue:
        yield "is in the stride queue"


def _of_none_alive(job: HostedJob) -> Iterator[str]:
    if job.phase not in WITHOUT_PROCESS:
        yield "has no process"
    if job.gpus and not job.in_turn:
        yield f"keeps {job.gpus} without a process or a turn"
    if job.occupying:
        yield "is charged without a process"
    if job.next is not None:
        yield f"is gone, and incarnation {job.next.epoch} waits for that"


def _of_its_turn(board: Board, job: HostedJob) -> Iterator[str]:
    if job.phase is Phase.SUSPENDING or job.phase is Phase.KILLING or job.id not in board.queue.jobs:
        yield "is in its turn"
    if board.is_out_of_turn(job) and not board.immovable(job):
        yield "is a part of several and in a turn that is not its own"


def _of_orders(board: Board, orders: Collection[HostCommand]) -> Iterator[Broken]:
    for order in orders:
        if not isinstance(order, Launch):
            continue
        wanted = order.wanted
        who = ((wanted.job, wanted.epoch),)
        for law in _of_launch(order, board.jobs[wanted.job]):
            yield Broken(f"job {wanted.job} is started {law}", who)


def _of_launch(order: Launch, job: HostedJob) -> Iterator[str]:
    wanted = order.wanted
    if wanted.leave:
        yield "while it is to leave"
    if wanted.spans and not wanted.rendezvous:
        yield "before its nodes know where to meet"
    if wanted.source is not None and order.generation < 0 and not wanted.source.may_be_none:
        yield "without what it is to go on from"
    if job.wanted.epoch != wanted.epoch:
        yield f"as incarnation {wanted.epoch}, it is {job.wanted.epoch}"


def _of_gpus(board: Board) -> Iterator[Broken]:
    turns: dict[GpuId, list[HostedJob]] = {}
    for job in board.jobs.values():
        if job.in_turn:
            for gpu in job.gpus:
                turns.setdefault(gpu, []).append(job)
    for gpu, jobs in turns.items():
        if len(jobs) == 1 or gpu not in board.gpus:
            continue
        if len(jobs) == 2 and are_mates(board.turn, jobs[0].id, jobs[1].id):
            continue
        if any(not board.immovable(j) or j.phase is Phase.STARTING for j in jobs):
            who = tuple((j.id, j.wanted.epoch) for j in jobs)
            yield Broken(f"{gpu} is promised to jobs {[j.id for j in jobs]}", who)


def _of_host_memory(board: Board, orders: Collection[HostCommand]) -> Iterator[Broken]:
    """Where somebody is told to move there. What is there already, and how much, are words of jobs, who may say what they like whenever they like."""
    if not any(isinstance(order, Suspend) and order.tier is Tier.SWAP for order in orders):
        return
    leaving_bytes = max((parked_by(board, job) for job in coming_back(board)), default=0)
    if over_bytes(board) > leaving_bytes and not _grew(board):
        yield Broken(
            f"{over_bytes(board)} bytes more are parked in host memory than may be, {leaving_bytes} of them by who comes back"
        )


def _grew(board: Board) -> bool:
    """A job turned out larger than it had said: nothing was promised for that."""
    return any(
        j.device_memory_bytes > j.wanted.spec.gpu_memory_bytes or j.parked_bytes for j in board.jobs.values()
    )
