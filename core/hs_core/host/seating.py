"""GPUs that the controller's turn names for its gangs (`Turn.seats`): a job is bound to them when it is started, ahead of that turn too, and goes
there through a checkpoint.

The controller's word on which GPUs are whose is older than the host's: where what it names cannot be had, the host chooses as ever.
"""

from collections.abc import Collection

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.names import GpuId, JobId
from hs_core.reports import Phase, Tier
from hs_core.wanted import Turn


def seat_of(board: Board, job: HostedJob, turn: Turn) -> tuple[GpuId, ...]:
    """() if the turn names none for it, or some that are not here."""
    gpus = next((seat.gpus for seat in turn.seats if seat.job == job.id), ())
    if len(gpus) != job.gang:
        return ()
    here = {gpu.index: gpu.id for gpu in board.gpus.values() if board.usable(gpu.id)}
    return tuple(here[at] for at in gpus) if here.keys() >= set(gpus) else ()


def others_seats(board: Board, job: HostedJob) -> set[GpuId]:
    """GPUs that the first turn that it is known to be in names for others that are here."""
    turn = board.turn_of(job)
    return {
        gpu
        for seat in turn.seats
        if seat.job != job.id and (other := board.jobs.get(seat.job)) is not None and not other.ended
        for gpu in seat_of(board, other, turn)
    }


def astray(board: Board, movable: Collection[HostedJob], taken: Collection[GpuId]) -> list[HostedJob]:
    """Those of `movable` that are bound to other GPUs than named and can go there: whoever is on these leaves them as well, or has no turn.

    `taken`: GPUs that stay whose they are.
    """
    wishes = {
        job.id: seat
        for job in movable
        if (seat := seat_of(board, job, board.turn)) and set(seat) != set(job.gpus)
    }
    staying = set(taken)
    for gang in board.turn.gangs:
        other = board.jobs.get(gang)
        if other is not None and other.alive and gang not in wishes:
            staying.update(other.gpus)
    while stuck := [id_ for id_, seat in wishes.items() if not staying.isdisjoint(seat)]:
        for id_ in stuck:
            del wishes[id_]
            staying.update(board.jobs[id_].gpus)
    return [job for job in movable if job.id in wishes]


def is_leaving(job: HostedJob) -> bool:
    """Its GPUs will be free without anything more being asked."""
    if job.stuck:
        return False
    return (
        job.asked is Tier.CHECKPOINT
        or job.phase in (Phase.SUSPENDING, Phase.KILLING)
        or (job.phase is Phase.CHECKPOINTED and job.alive)
    )


def awaited(board: Board, job: HostedJob, claimed: dict[GpuId, JobId]) -> list[JobId]:
    """Who is about to leave the GPUs that are named for it, where nothing else keeps it from them."""
    owners = {claimed[gpu] for gpu in seat_of(board, job, board.turn) if gpu in claimed}
    leave = all(id_ in board.jobs and is_leaving(board.jobs[id_]) for id_ in owners)
    return sorted(owners) if leave else []
