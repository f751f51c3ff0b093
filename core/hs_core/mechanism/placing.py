"""Where jobs can live, what they weigh there where nothing moves, and the consolidated choice of a server."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from typing import NamedTuple

from hs_core.names import HostName, JobId, UserName
from hs_core.newest import Newest
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.shares import Demand, entitle, entitle_pools, job_tickets, pool_rank

Home = tuple[HostName, ...]
"""A job's servers, by node rank."""

ZERO = Fraction(0)
LEAST = Fraction(
    1, 1000
)  # tickets per GPU of a job whose server can't run it just now: present, and no claim on anything


by_arrival: Callable[[JobFacts], tuple[float, JobId]] = attrgetter("arrival_s", "id")


def fits(job: JobFacts, host: HostFacts) -> bool:
    """Whether the server could ever run the job, or its part of it, all of its GPUs free."""
    return (
        job.per_node <= host.gpus
        and (not job.gpu_types or host.model in job.gpu_types)
        and job.gpu_memory_bytes <= host.gpu_memory_bytes
    )


def is_cold(job: JobFacts, host: HostFacts) -> bool:
    """It reads data that nobody has read there yet."""
    return bool(job.dataset) and job.dataset not in host.datasets


def takes_new(host: HostFacts) -> bool:
    return host.connected and host.accepts


def pools(snapshot: Snapshot) -> list[tuple[str, int]]:
    return pools_of(snapshot.hosts)


def pools_of(hosts: Iterable[HostFacts]) -> list[tuple[str, int]]:
    """(model, GPUs) newest first. A server that is away counts: its jobs go on."""
    sizes: dict[str, int] = {}
    for host in hosts:
        sizes[host.model] = sizes.get(host.model, 0) + host.gpus
    return sorted(sizes.items(), key=lambda pool: pool_rank(pool[0]))


def settled_homes(snapshot: Snapshot) -> dict[JobId, Home]:
    """The homes that jobs have; not those of which a server is gone."""
    known = {host.name for host in snapshot.hosts}
    return {job.id: job.hosts for job in snapshot.jobs if job.hosts and known.issuperset(job.hosts)}


def is_lost(job: JobFacts, known: Container[HostName]) -> bool:
    """A server of its home is not in the snapshot and it may run there, so it is nobody's to place."""
    return (job.started or not job.movable) and any(name not in known for name in job.hosts)


def why_nowhere(job: JobFacts, hosts: Iterable[HostFacts], *, mixed: bool = False) -> str:
    """Why no servers (`mixed`: of several models) take the job, the first obstacle that too few of them are past; empty if they could."""
    hosts = list(hosts)
    if not hosts:
        return "no GPU server has joined the cluster"
    left = [host for host in hosts if not job.gpu_types or host.model in job.gpu_types]
    if not left:
        return f"no server has {' or '.join(job.gpu_types)} GPUs"
    largest = max(host.gpu_memory_bytes for host in left)
    left = [host for host in left if job.gpu_memory_bytes <= host.gpu_memory_bytes]
    if not left:
        return f"asks for {job.gpu_memory_bytes / 2**30:.1f} GiB of memory on each GPU; the largest has {largest / 2**30:.1f}"
    widest = max(host.gpus for host in left)
    if widest < job.per_node:
        return (
            f"asks for {job.per_node} GPUs on one server; the largest that it may use has {widest} in health"
        )
    left = [host for host in left if fits(job, host)]
    if (most := len(left) if mixed else _most_of_one_pool(left)) < job.nodes:
        models = "" if mixed else " of one model"
        return f"asks for {job.nodes} servers{models} with {job.per_node} GPUs each; there are {most}"
    here = [host for host in left if takes_new(host)]
    if (len(here) if mixed else _most_of_one_pool(here)) >= job.nodes:
        return ""
    if job.nodes == 1:
        return "every server that could take it is away or drained"
    return f"too many of the servers that could take it are away or drained: it needs {job.nodes} at once"


def _most_of_one_pool(hosts: Iterable[HostFacts]) -> int:
    return max(Counter(host.model for host in hosts).values(), default=0)


@dataclass(frozen=True, slots=True)
class Weights:
    tickets: Mapping[JobId, Fraction]  # jobTickets of every job that has a home
    entitled: Mapping[tuple[UserName, str], Fraction]  # (user, model) → GPUs


class _Asked(NamedTuple):
    pools: list[tuple[str, int]]
    gangs: list[tuple[JobId, int]]  # of jobs that have homes
    parts: list[tuple[JobId, UserName, str, int]]  # of those that can run there: (job, user, model, GPUs)
    tickets: dict[UserName, Fraction]


def weigh(snapshot: Snapshot, homes: Mapping[JobId, Home]) -> Weights:
    """Entitlements of the users whose jobs have homes, and the tickets that follow for each job.

    For policies that move nothing: a job that lives somewhere is demand for that pool only.
    """
    hosts = {host.name: host for host in snapshot.hosts}
    settled = [(job, homes[job.id]) for job in snapshot.jobs if job.id in homes]
    parts = [
        (job.id, job.user, model, job.per_node * nodes)
        for job, home in settled
        if runs_at(job, home, hosts)
        for model, nodes in _nodes_on(home, hosts)
    ]
    gangs = [(job.id, job.gang) for job, _ in settled]
    return _weights(_Asked(pools(snapshot), gangs, parts, dict(snapshot.tickets)))


def _weigh(asked: _Asked) -> Weights:
    wanted: dict[str, dict[UserName, int]] = {model: {} for model, _ in asked.pools}
    for _, user, model, gpus in asked.parts:
        wanted[model][user] = wanted[model].get(user, 0) + gpus
    entitled = {
        (user, model): share
        for model, capacity in asked.pools
        for user, share in entitle(capacity, wanted[model], asked.tickets).items()
        if share
    }
    tickets = job_tickets(entitled, asked.parts)
    return Weights({job: tickets.get(job) or LEAST * gang for job, gang in asked.gangs}, entitled)


_weights = Newest(_weigh)  # who moves within a pool weighs what it did


def _nodes_on(home: Home, hosts: Mapping[HostName, HostFacts]) -> Iterable[tuple[str, int]]:
    """(model, servers of it)."""
    if len(home) == 1:
        return ((hosts[home[0]].model, 1),)
    return Counter(hosts[name].model for name in home).items()


def runs_at(job: JobFacts, home: Home, hosts: Mapping[HostName, HostFacts]) -> bool:
    """Whether the servers have GPUs enough for it just now, all of them free."""
    if len(home) == 1:
        return job.per_node <= hosts[home[0]].gpus
    return all(job.per_node <= hosts[name].gpus for name in home)


def weigh_per_gpu(snapshot: Snapshot) -> dict[UserName, Fraction]:
    """Each user's tickets per GPU asked for, over all pools and all of its jobs that could run: what lotteries draw by."""
    entitled = _entitle_all(snapshot, settled_homes(snapshot))
    gpus: dict[UserName, int] = {}
    for job in snapshot.jobs:
        if _most_of_one_pool(host for host in snapshot.hosts if fits(job, host)) >= job.nodes:
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
            there = Counter(host.model for host in snapshot.hosts if takes_new(host) and fits(job, host))
            models = {model for model, servers in there.items() if servers >= job.nodes}
        if models:
            demands.append(Demand(job.user, frozenset(models), job.gang))
    return entitle_pools(pools(snapshot), demands, snapshot.tickets)


def best_fit(job: JobFacts, hosts: Iterable[HostFacts], free: Mapping[HostName, int]) -> Home:
    """Consolidated: the newest pool with room, there the servers that the job leaves fewest GPUs of, then those that have its data, then by name; () if none."""
    left: dict[str, list[HostFacts]] = {}
    for host in hosts:
        if takes_new(host) and fits(job, host) and free[host.name] >= job.per_node:
            left.setdefault(host.model, []).append(host)
    for model in sorted(left, key=pool_rank):
        if len(left[model]) >= job.nodes:
            tightest = sorted(left[model], key=lambda host: (free[host.name], is_cold(job, host), host.name))
            return tuple(host.name for host in tightest[: job.nodes])
    return ()
