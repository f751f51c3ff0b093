"""Where jobs can live, what they weigh there, and the two ways of choosing a server: by ticket load, and by best fit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush

from hs_core.model import HostName, JobId, UserName
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.shares import Demand, entitle_pools, job_tickets, pool_rank

ZERO = Fraction(0)
LEAST = Fraction(
    1, 1000
)  # tickets per GPU of a job whose server can't run it just now: present, and no claim on anything


def by_arrival(job: JobFacts) -> tuple[float, JobId]:
    return job.arrival_s, job.id


def fits(job: JobFacts, host: HostFacts) -> bool:
    """Whether the server could ever run the job, all of its GPUs free."""
    return (
        job.gang <= host.gpus
        and (not job.gpu_types or host.model in job.gpu_types)
        and job.gpu_memory_bytes <= host.gpu_memory_bytes
    )


def takes_new(host: HostFacts) -> bool:
    return host.connected and host.accepts


def pools(snapshot: Snapshot) -> list[tuple[str, int]]:
    """(model, GPUs) newest first. A server that is away counts: its jobs go on."""
    sizes: dict[str, int] = {}
    for host in snapshot.hosts:
        sizes[host.model] = sizes.get(host.model, 0) + host.gpus
    return sorted(sizes.items(), key=lambda pool: pool_rank(pool[0]))


def settled_homes(snapshot: Snapshot) -> dict[JobId, HostName]:
    """Homes stay, whatever became of the server: nothing moves yet, and an order to start the job there may be on its way."""
    known = {host.name for host in snapshot.hosts}
    return {job.id: job.host for job in snapshot.jobs if job.host is not None and job.host in known}


def is_lost(job: JobFacts, snapshot: Snapshot) -> bool:
    """Its home is a server that is not in the snapshot: it may run there, so it is nobody's to place."""
    return job.host is not None and all(job.host != host.name for host in snapshot.hosts)


def why_nowhere(job: JobFacts, hosts: Iterable[HostFacts]) -> str:
    """Why no server takes the job, the first obstacle that none of them is past; empty if one could."""
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
    if widest < job.gang:
        return f"asks for {job.gang} GPUs on one server; the largest that it may use has {widest} in health"
    left = [host for host in left if fits(job, host)]
    if not any(takes_new(host) for host in left):
        return "every server that could take it is away or drained"
    return ""


@dataclass(frozen=True, slots=True)
class Weights:
    tickets: Mapping[JobId, Fraction]  # jobTickets of every job that has a home
    entitled: Mapping[tuple[UserName, str], Fraction]  # (user, model) → GPUs


def weigh(snapshot: Snapshot, homes: Mapping[JobId, HostName]) -> Weights:
    """Entitlements of the users whose jobs have homes, and the tickets that follow for each job.

    A job that lives somewhere is demand for that pool only: nothing moves, so entitlement elsewhere would be of no use to it.
    """
    hosts = {host.name: host for host in snapshot.hosts}
    able = [job for job in snapshot.jobs if job.id in homes and job.gang <= hosts[homes[job.id]].gpus]
    demands = [Demand(job.user, frozenset({hosts[homes[job.id]].model}), job.gang) for job in able]
    entitled = entitle_pools(pools(snapshot), demands, snapshot.tickets)
    tickets = job_tickets(
        entitled, [(job.id, job.user, hosts[homes[job.id]].model, job.gang) for job in able]
    )
    least = {job.id: LEAST * job.gang for job in snapshot.jobs if job.id in homes}
    return Weights(least | {job: weight for job, weight in tickets.items() if weight > 0}, entitled)


def weigh_per_gpu(snapshot: Snapshot) -> dict[UserName, Fraction]:
    """Each user's tickets per GPU asked for, over all pools and all of its jobs that could run: what lotteries draw by."""
    entitled = _entitle_all(snapshot, settled_homes(snapshot))
    gpus: dict[UserName, int] = {}
    for job in snapshot.jobs:
        if any(fits(job, host) for host in snapshot.hosts):
            gpus[job.user] = gpus.get(job.user, 0) + job.gang
    totals: dict[UserName, Fraction] = {}
    for (user, _), share in entitled.items():
        totals[user] = totals.get(user, ZERO) + share
    return {user: max(totals.get(user, ZERO) / asked, LEAST) for user, asked in gpus.items()}


def _entitle_all(snapshot: Snapshot, homes: Mapping[JobId, HostName]) -> dict[tuple[UserName, str], Fraction]:
    """Entitlements with the jobs that still look for a home as demand for every pool they may go to."""
    hosts = {host.name: host for host in snapshot.hosts}
    demands = []
    for job in snapshot.jobs:
        if job.id in homes:
            models = {hosts[homes[job.id]].model} if job.gang <= hosts[homes[job.id]].gpus else set()
        elif is_lost(job, snapshot):
            models = set()
        else:
            models = {host.model for host in snapshot.hosts if takes_new(host) and fits(job, host)}
        if models:
            demands.append(Demand(job.user, frozenset(models), job.gang))
    return entitle_pools(pools(snapshot), demands, snapshot.tickets)


def place_by_load(snapshot: Snapshot) -> dict[JobId, HostName]:
    """Algorithm 2: homes that stay, and homes for the jobs that have none.

    The user with the fewest tickets in use comes first (here: GPUs that its placed jobs ask for, per ticket), of its jobs the one with
    the highest priority, then the earliest. Its pool is the newest where the user's entitlement is not used up yet (3.5,
    profiling), else the one with most tickets per GPU left; its server the one with the least ticketLoadPerGPU after adding, the
    fullest that still fits, the first by name.
    """
    homes = settled_homes(snapshot)
    board = _Loads(snapshot, homes)
    waiting: dict[UserName, list[JobFacts]] = {}
    for job in sorted(snapshot.jobs, key=lambda job: (job.priority, -job.arrival_s, -job.id)):
        if job.id not in homes and not is_lost(job, snapshot):
            waiting.setdefault(job.user, []).append(job)  # the next one last
    heap = [(board.in_use(user), user) for user in waiting]
    heapify(heap)
    while heap:
        _, user = heappop(heap)
        job = waiting[user].pop()
        if (name := board.choose(job)) is not None:
            homes[job.id] = name
            board.add(job, name)
        if waiting[user]:
            heappush(heap, (board.in_use(user), user))
    return homes


class _Loads:
    """ticketLoadPerGPU of every server while jobs are being placed."""

    def __init__(self, snapshot: Snapshot, homes: Mapping[JobId, HostName]) -> None:
        self._hosts = {host.name: host for host in snapshot.hosts}
        self._ranked = [model for model, _ in pools(snapshot)]
        self._weight = snapshot.tickets
        self._entitled = _entitle_all(snapshot, homes)
        self._gpus: dict[tuple[UserName, str], int] = {}  # that a user's jobs ask for, by pool
        self._of: dict[HostName, dict[UserName, int]] = {name: {} for name in self._hosts}
        for job in snapshot.jobs:
            if job.id in homes:
                self.add(job, homes[job.id])

    def add(self, job: JobFacts, name: HostName) -> None:
        at = (job.user, self._hosts[name].model)
        self._gpus[at] = self._gpus.get(at, 0) + job.gang
        self._of[name][job.user] = self._of[name].get(job.user, 0) + job.gang

    def in_use(self, user: UserName) -> Fraction:
        return sum(gpus for (of, _), gpus in self._gpus.items() if of == user) / self._weight[user]

    def choose(self, job: JobFacts) -> HostName | None:
        hosts = [host for host in self._hosts.values() if takes_new(host) and fits(job, host)]
        if not hosts:
            return None
        model = self._pool(job, {host.model for host in hosts})
        per_gpu = self._per_gpu(job, model)
        return min(
            (host for host in hosts if host.model == model), key=lambda host: self._key(job, host, per_gpu)
        ).name

    def _pool(self, job: JobFacts, models: set[str]) -> str:
        ranked = [model for model in self._ranked if model in models]
        for model in ranked:
            at = (job.user, model)
            if self._gpus.get(at, 0) + job.gang <= self._entitled.get(at, ZERO):
                return model
        return max(
            ranked,
            key=lambda model: (
                self._entitled.get((job.user, model), ZERO)
                / (self._gpus.get((job.user, model), 0) + job.gang)
            ),
        )

    def _per_gpu(self, job: JobFacts, model: str) -> dict[UserName, Fraction]:
        """Tickets per GPU in the pool once the job is in it."""
        found = {}
        for (user, of), gpus in self._gpus.items():
            if of == model:
                found[user] = self._entitled.get((user, of), ZERO) / (
                    gpus + (job.gang if user == job.user else 0)
                )
        found.setdefault(job.user, self._entitled.get((job.user, model), ZERO) / job.gang)
        return found

    def _key(
        self, job: JobFacts, host: HostFacts, per_gpu: Mapping[UserName, Fraction]
    ) -> tuple[Fraction, bool, int, HostName]:
        there = self._of[host.name]
        load = (
            sum((gpus * per_gpu[user] for user, gpus in there.items()), per_gpu[job.user] * job.gang)
            / host.gpus
        )
        left = host.gpus - sum(there.values()) - job.gang
        return load, left < 0, abs(left), host.name


def best_fit(job: JobFacts, hosts: Iterable[HostFacts], free: Mapping[HostName, int]) -> HostName | None:
    """Consolidated: the newest pool with room, there the server that the job leaves fewest GPUs of, then by name."""
    left = [host for host in hosts if takes_new(host) and fits(job, host) and free[host.name] >= job.gang]
    return (
        min(left, key=lambda host: (pool_rank(host.model), free[host.name], host.name)).name if left else None
    )
