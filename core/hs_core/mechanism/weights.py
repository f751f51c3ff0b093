"""What jobs weigh where nothing moves: entitlements pool by pool, and the tickets that follow."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from hs_core.mechanism.floor import Shape, floor, shape_of
from hs_core.mechanism.placing import (
    Home,
    fits,
    is_lost,
    most_of_one_pool,
    runs_at,
    settled_homes,
)
from hs_core.names import HostName, JobId, UserName
from hs_core.newest import Newest
from hs_core.policy import Snapshot
from hs_core.shares import Demand, Entitled, entitle, entitle_pools, job_tickets

ZERO = Fraction(0)
LEAST = Fraction(
    1, 1000
)  # tickets per GPU of a job whose server can't run it just now: present, and no claim on anything


Part = tuple[JobId, UserName, str, int]
"""(job, user, model, GPUs)"""


@dataclass(frozen=True)
class Weights:
    asked: "_Asked"
    entitled: Entitled  # (user, model) → GPUs

    @cached_property
    def tickets(self) -> Mapping[JobId, Fraction]:
        """jobTickets of every job that has a home."""
        return _tickets(self.asked.gangs, self.asked.parts, self.entitled)


def _tickets(
    gangs: Iterable[tuple[JobId, int]], parts: Sequence[Part], entitled: Entitled
) -> Mapping[JobId, Fraction]:
    tickets = job_tickets(entitled, parts)
    return {
        job: found if (found := tickets.get(job, ZERO)).numerator else LEAST * gang for job, gang in gangs
    }


class _Asked(NamedTuple):
    pools: list[tuple[str, int]]
    gangs: list[tuple[JobId, int]]  # of jobs that have homes
    parts: list[Part]  # of those that can run there
    tickets: dict[UserName, Fraction]


def pools(snapshot: Snapshot, homes: Mapping[JobId, Home]) -> list[tuple[str, int]]:
    """As `Floor.pools`, of jobs with these homes. They are looked through only where a server takes no new ones."""
    there, asked = floor(snapshot.hosts), Counter[HostName]()
    if there.closed:
        for job in snapshot.jobs:
            for name in homes.get(job.id, ()):
                asked[name] += job.per_node
    return there.pools(asked.__getitem__)


def weigh(snapshot: Snapshot, homes: Mapping[JobId, Home]) -> Weights:
    """Entitlements of the users whose jobs have homes, and the tickets that follow for each job.

    For policies that move nothing: a job that lives somewhere is demand for that pool only.
    """
    hosts = floor(snapshot.hosts).hosts
    gangs, parts = [], []
    for job in snapshot.jobs:
        if (home := homes.get(job.id)) is None:
            continue
        gangs.append((job.id, job.gang))
        if len(home) == 1:
            host, per_node = hosts[home[0]], job.per_node
            if per_node <= host.gpus:
                parts.append((job.id, job.user, host.model, per_node))
            continue
        if not runs_at(job, home, hosts):
            continue
        for model, nodes in Counter(hosts[name].model for name in home).items():
            parts.append((job.id, job.user, model, job.per_node * nodes))
    return _weights(_Asked(pools(snapshot, homes), gangs, parts, dict(snapshot.tickets)))


def tickets_of(parts: Sequence[Part], entitled: Entitled) -> Mapping[JobId, Fraction]:
    """Of jobs that can all run where they live, each in one pool."""
    return _tickets([(job, gpus) for job, _, _, gpus in parts], parts, entitled)


def entitle_in(
    model: str, capacity: int, wanted: Mapping[UserName, int], tickets: Mapping[UserName, Fraction]
) -> Entitled:
    """Entitlements in one pool to users whose jobs there ask for so many GPUs."""
    shares = entitle(capacity, wanted, tickets)
    return {(user, model): share for user, share in shares.items() if share.numerator}


def _weigh(asked: _Asked) -> Weights:
    wanted: dict[str, dict[UserName, int]] = {model: {} for model, _ in asked.pools}
    for _, user, model, gpus in asked.parts:
        wanted[model][user] = wanted[model].get(user, 0) + gpus
    entitled: dict[tuple[UserName, str], Fraction] = {}
    for model, capacity in asked.pools:
        entitled.update(entitle_in(model, capacity, wanted[model], asked.tickets))
    return Weights(asked, entitled)


_weights = Newest(_weigh)  # who moves within a pool weighs what it did


def weigh_per_gpu(snapshot: Snapshot) -> dict[UserName, Fraction]:
    """Each user's tickets per GPU asked for, over all pools and all of its jobs that could run: what lotteries draw by."""
    homes, hosts = settled_homes(snapshot), {host.name: host for host in snapshot.hosts}
    entitled = _entitle_all(snapshot, homes)
    gpus: dict[UserName, int] = {}
    holds: dict[Shape, bool] = {}
    for job in snapshot.jobs:
        shape = shape_of(job)
        if shape not in holds:
            holds[shape] = most_of_one_pool(host for host in snapshot.hosts if fits(job, host)) >= job.nodes
        # Another policy may have given it a home that spans pools, none of which would hold it.
        if holds[shape] or (job.id in homes and runs_at(job, homes[job.id], hosts)):
            gpus[job.user] = gpus.get(job.user, 0) + job.gang
    totals: dict[UserName, Fraction] = {}
    for (user, _), share in entitled.items():
        totals[user] = totals.get(user, ZERO) + share
    return {user: max(totals.get(user, ZERO) / asked, LEAST) for user, asked in gpus.items()}


def _entitle_all(snapshot: Snapshot, homes: Mapping[JobId, Home]) -> dict[tuple[UserName, str], Fraction]:
    """Entitlements with the jobs that still look for a home as demand for every pool they may go to."""
    hosts = {host.name: host for host in snapshot.hosts}
    demands = []
    for job in snapshot.jobs:
        if job.id in homes:
            models = {hosts[homes[job.id][0]].model} if runs_at(job, homes[job.id], hosts) else set()
        elif is_lost(job, hosts):
            models = set()
        else:
            models = set(floor(snapshot.hosts).usable(job))
        if models:
            demands.append(Demand(job.user, frozenset(models), job.gang))
    return entitle_pools(pools(snapshot, homes), demands, snapshot.tickets)
