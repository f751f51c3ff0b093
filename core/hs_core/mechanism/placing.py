"""Where jobs can live, and the consolidated choice of a server."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from operator import attrgetter

from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.shares import pool_rank
from hs_core.words import counted

Home = tuple[HostName, ...]
"""A job's servers, by node rank."""

by_arrival: Callable[[JobFacts], tuple[float, JobId]] = attrgetter("arrival_s", "id")


def fits(job: JobFacts, host: HostFacts) -> bool:
    """Whether the server could ever run the job, or its part of it, all of its GPUs free."""
    return host.name not in job.barred and _is_large_enough(job, host)


def _is_large_enough(job: JobFacts, host: HostFacts) -> bool:
    return (
        job.per_node <= host.gpus
        and (not job.gpu_types or host.model in job.gpu_types)
        and job.gpu_memory_bytes <= host.gpu_memory_bytes
    )


def is_cold(job: JobFacts, host: HostFacts) -> bool:
    """It reads data that nobody has read there yet."""
    return bool(job.dataset) and job.dataset not in host.datasets


def asked_gpus(job: JobFacts, *, at_home: bool = False) -> str:
    """For people: how many GPUs it asks for, and where; `at_home`: it can have them there only."""
    gpus = counted(job.per_node, "GPU")
    if at_home:
        return f"{gpus} of {'each of ' * (len(job.hosts) > 1)}{', '.join(job.hosts)}"
    return f"{gpus} on {'one server' if job.nodes == 1 else f'each of {job.nodes} servers'}"


def takes_new(host: HostFacts) -> bool:
    return host.connected and host.accepts and host.starts


def models_of(hosts: Iterable[HostFacts]) -> list[str]:
    """Newest first."""
    return sorted({host.model for host in hosts}, key=pool_rank)


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
        return f"asks for {counted(job.per_node, 'GPU')} on one server; the largest that it may use has {widest} in health"
    left = [host for host in left if _is_large_enough(job, host)]
    if (most := len(left) if mixed else most_of_one_pool(left)) < job.nodes:
        models = "" if mixed else " of one model"
        return (
            f"asks for {job.nodes} servers{models} with {counted(job.per_node, 'GPU')} each; there are {most}"
        )
    here = [host for host in left if takes_new(host) and host.name not in job.barred]
    if (len(here) if mixed else most_of_one_pool(here)) >= job.nodes:
        return ""
    if job.nodes == 1:
        return "every server that could take it is away, drained, or cannot start it now"
    return f"too many of the servers that could take it are away, drained, or cannot start it now: it needs {job.nodes} at once"


def most_of_one_pool(hosts: Iterable[HostFacts]) -> int:
    return max(Counter(host.model for host in hosts).values(), default=0)


def runs_at(job: JobFacts, home: Home, hosts: Mapping[HostName, HostFacts]) -> bool:
    """Whether the servers have GPUs enough for it just now, all of them free."""
    if len(home) == 1:
        return job.per_node <= hosts[home[0]].gpus
    return all(job.per_node <= hosts[name].gpus for name in home)


def room_needed(job: JobFacts, types: tuple[str, ...]) -> tuple[object, ...]:
    """By which servers have room for it or not, on GPUs of these models: of jobs that are alike in that one need be looked at."""
    return job.per_node, job.nodes, types, job.gpu_memory_bytes, job.barred


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
