"""Homes for jobs that have none (Gandiva_fair, Algorithm 2).

The user with the fewest tickets in use comes first (GPUs that its placed jobs ask for, per ticket), of its jobs the one with the highest
priority, then the earliest. Where its class was measured on all pools it may use, its pool is the one with the highest effective rate,
rate times the part of the time that it would get there; else the newest in which the user's share is not used up yet (3.5,
profiling: so every pool gets measured), else the one in which it would run most of the time. Its servers are those with the
least ticketLoadPerGPU.

Departure: the part of the time (`mechanism.level`) is at most 1, and counts what other users leave. With the paper's tickets per GPU an
empty slow pool would look better than it is, and pools in which nobody has a whole job's share would stay empty.
"""

from fractions import Fraction
from heapq import heapify, heappop, heappush

from hs_core.mechanism.loads import Board
from hs_core.mechanism.placing import Home
from hs_core.mechanism.rates import Speeds
from hs_core.names import UserName
from hs_core.policy import JobFacts


def place(board: Board, speeds: Speeds) -> None:
    """Homes for `world.new`, as far as there are any."""
    world, tickets = board.world, board.world.snapshot.tickets
    if not world.new:
        return
    waiting: dict[UserName, list[JobFacts]] = {}
    for job in sorted(world.new, key=lambda job: (job.priority, -job.arrival_s, -job.id)):
        waiting.setdefault(job.user, []).append(job)  # the next one last
    in_use: dict[UserName, int] = {}
    for (user, _), gpus in world.gpus.items():
        in_use[user] = in_use.get(user, 0) + gpus
    heap = [(_per_ticket(in_use.get(user, 0), tickets[user]), user) for user in waiting]
    heapify(heap)
    while heap:
        _, user = heappop(heap)
        job = waiting[user].pop()
        if home := choose(board, speeds, job):
            world.homes[job.id] = home
            board.add(job, home)
            in_use[user] = in_use.get(user, 0) + job.gang
        if waiting[user]:
            heappush(heap, (_per_ticket(in_use.get(user, 0), tickets[user]), user))


def _per_ticket(gpus: int, tickets: Fraction) -> float:
    """Rounded once: what is equal stays equal."""
    return gpus * tickets.denominator / tickets.numerator


def choose(board: Board, speeds: Speeds, job: JobFacts) -> Home:
    models = board.world.usable(job)
    return board.find(job, pool_for(board, speeds, job, models)) if models else ()


def pool_for(board: Board, speeds: Speeds, job: JobFacts, models: tuple[str, ...]) -> str:
    """`models`: newest first."""
    if len(models) == 1:
        return models[0]
    gpus, entitled = board.world.gpus, board.entitled
    share = [entitled.get((job.user, model), 0.0) for model in models]
    parts = [board.part(job.user, model, job.gang) for model in models]
    open_ = [model for model, has in zip(models, share, strict=True) if has > 0]
    if open_ and speeds.measured(job.job_class, open_):
        rates = [
            (speeds.get(job.job_class, model) or 0.0) * p for model, p in zip(models, parts, strict=True)
        ]
        return _first_best(models, rates)
    for model, has in zip(models, share, strict=True):
        if gpus.get((job.user, model), 0) + job.gang <= has + 1e-9:
            return model
    return _first_best(models, parts)


def _first_best(models: tuple[str, ...], values: list[float]) -> str:
    best = max(values)
    return next(m for m, value in zip(models, values, strict=True) if value >= best * (1 - 1e-9))
