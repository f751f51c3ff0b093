"""Newcomers of one width together, where jobs of several widths come at once (Gandiva_fair, 3.3).

A turn of a narrow job beside a gang that takes the whole server is one of as many GPUs: those left over go to narrow jobs out of turn, which
then wait for as long. On a server of their own they come one by one. So of those that come at once the widest are laid out first, on as few servers as their tickets
fill, and the others beside them; where jobs need the servers for no longer by it than they did, each with least load when it came.

Departure: the paper goes by load alone, job by job. Who comes alone still does.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import fsum

from hs_core.mechanism.floor import shape_of
from hs_core.mechanism.loads import Board, Pool
from hs_core.mechanism.placing import Home
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts

SLACK = 1e-9


def lay_by_width(board: Board) -> None:
    """Other homes for those of `world.new` that have one, within their pool. Where gangs are over several servers it is theirs that matter."""
    world = board.world
    if not world.new or world.parts:
        return
    of: dict[str, list[JobFacts]] = defaultdict(list)
    for job in world.new:
        if home := world.homes.get(job.id):
            of[world.hosts[home[0]].model].append(job)
    for model, jobs in of.items():
        if len({job.gang for job in jobs}) > 1 and board.crowded(model):
            _lay(board, board.pool(model), jobs)


def _lay(board: Board, pool: Pool, jobs: Sequence[JobFacts]) -> None:
    left = _room(board, pool, jobs)
    by_width: dict[int, list[JobFacts]] = defaultdict(list)
    for job in jobs:
        by_width[job.gang].append(job)
    homes: list[tuple[JobFacts, int]] = []
    for width in sorted(by_width, reverse=True):
        found = _homes(pool, by_width[width], left)
        if len(found) < len(by_width[width]):  # some of them only where wider ones are
            return
        for job, at in found:
            left[at] -= _weight(pool, job)
        homes += found
    now = {job.id: (pool.names[at],) for job, at in homes}
    before = {job.id: board.world.homes[job.id] for job, _ in homes}
    touched = sorted({name for home in (*now.values(), *before.values()) for name in home})
    squares = _squares(board, pool, touched)
    _settle(board, jobs, now)
    if _squares(board, pool, touched) > squares + SLACK:
        _settle(board, jobs, before)


def _settle(board: Board, jobs: Iterable[JobFacts], homes: Mapping[JobId, Home]) -> None:
    for job in jobs:
        old, to = board.world.homes[job.id], homes[job.id]
        if old != to:
            board.remove(job, old)
            board.world.homes[job.id] = to
            board.add(job, to)


def _squares(board: Board, pool: Pool, names: Iterable[HostName]) -> float:
    """Of the time that jobs need on these servers, by which they are evened out (`mechanism.evening`)."""
    return fsum(board.time_load(name) ** 2 * float(pool.width[pool.index[name]]) for name in names)


def _homes(pool: Pool, alike: Sequence[JobFacts], left: Mapping[int, float]) -> list[tuple[JobFacts, int]]:
    """For these, one after the other, that of their servers which then lacks most, as far as they fit one."""
    quota = _quota(left, sum([_weight(pool, job) for job in alike]))
    heap = [(-has / pool.width[at], at) for at, has in quota.items()]
    heapify(heap)
    homes: list[tuple[JobFacts, int]] = []
    for job in _in_turns(alike):
        fits = pool.fits(shape_of(job))
        others: list[tuple[float, int]] = []
        while heap and not fits[heap[0][1]]:
            others.append(heappop(heap))
        if heap:
            full, at = heap[0]
            heapreplace(heap, (full + _weight(pool, job) / pool.width[at], at))
            homes.append((job, at))
        for other in others:
            heappush(heap, other)
    return homes


def _weight(pool: Pool, job: JobFacts) -> float:
    return job.gang * pool.per_gpu[job.user]


def _room(board: Board, pool: Pool, jobs: Sequence[JobFacts]) -> dict[int, float]:
    """Tickets that each server lacks to carry as much as the others, were these jobs not there."""
    carried = pool.tickets.copy()
    for job in jobs:
        carried[pool.index[board.world.homes[job.id][0]]] -= _weight(pool, job)
    mean = pool.mean(float(pool.tickets.sum()))
    return dict(enumerate((mean * pool.gpus - carried).tolist()))


def _quota(left: Mapping[int, float], tickets: float) -> dict[int, float]:
    """Of servers with room left, as few as take these tickets: those begun by wider ones, then the emptiest."""
    order = sorted((at for at in left if left[at] > SLACK), key=lambda at: (-left[at], at))
    most = max(left.values())
    begun = [at for at in order if left[at] < most - SLACK]
    quota: dict[int, float] = {}
    for at in [*begun, *order]:
        if tickets <= SLACK and quota:
            break
        if at not in quota:
            quota[at] = min(left[at], max(tickets, 0.0))
            tickets -= quota[at]
    return quota


def _in_turns(jobs: Sequence[JobFacts]) -> list[JobFacts]:
    """Those of all users, in proportion to how many each has."""
    of: dict[str, list[JobFacts]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: job.id):
        of[job.user].append(job)
    places = [
        ((at + 0.5) / len(own), user, job.id, job) for user, own in of.items() for at, job in enumerate(own)
    ]
    places.sort(key=lambda place: place[:3])
    return [job for *_, job in places]
