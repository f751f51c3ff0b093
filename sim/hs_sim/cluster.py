"""Clusters: from a word to pools, from pools to servers by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NoReturn

from hs_core.digits import whole
from hs_core.errors import Kind, RefusedError
from hs_core.names import HostName
from hs_core.shares import NEWEST_FIRST
from hs_sim.model import ClusterSpec, Experiment, Pool, SimJob, Workload
from hs_sim.reading import Sieve

LAST_S = 1e9  # some 30 years: whoever means more says when to stop
_CANONICAL = {model.casefold(): model for model in NEWEST_FIRST}
MOST_GPUS = 10**6  # of a pool
_EXPECTED = f"expected pools as MODEL:GPUS, then perhaps @GPUS_PER_SERVER, /GIB_OF_A_GPU and after that /GIB_OF_A_SERVER (numbers from 1 to {MOST_GPUS}), such as v100:12,p100:24,k80:64@8/12/256"


def canonical(model: str) -> str:
    """A model as the system writes it: v100 → V100. One nobody has heard of stays as it is."""
    return _CANONICAL.get(model.casefold(), model)


def parse_cluster(text: str, gpus_per_server: int = 4, memory_gib: float = 32.0) -> ClusterSpec:
    """`v100:12,p100:24,k80:64`: GPUs of each model, on servers of so many each, with so much memory; `k80:64@8/12/256` says both for one, and how much host memory its servers have."""
    if not 1 <= gpus_per_server <= 1024:
        raise RefusedError(f"--gpus-per-server: {gpus_per_server}; expected 1 to 1024")
    pools: list[Pool] = []
    for word in text.split(","):
        model, colon, text_of = word.strip().partition(":")
        sizes, slash, memories = text_of.partition("/")
        memory, more, of_host = memories.partition("/")
        count, at, each = sizes.partition("@")
        said = not at or _is_count(each)
        told = (not slash or _is_count(memory)) and (not more or _is_count(of_host))
        if not (colon and model and _is_count(count) and said and told):
            raise RefusedError(f"--cluster: {word.strip()!r}; {_EXPECTED}")
        model, gpus, per_server = canonical(model), int(count), int(each) if at else gpus_per_server
        if gpus % per_server:
            raise RefusedError(
                f"--cluster: {gpus} {model} GPUs do not fill servers of {per_server}; expected a multiple of it"
            )
        if any(pool.model == model for pool in pools):
            raise RefusedError(f"--cluster: {model} is named twice; expected each model once")
        pools.append(
            Pool(
                model=model,
                servers=gpus // per_server,
                gpus_per_server=per_server,
                gpu_memory_bytes=int((int(memory) if slash else memory_gib) * 2**30),
                memory_bytes=int(of_host) * 2**30 if more else 0,
            )
        )
    return ClusterSpec(pools=tuple(pools))


def _is_count(text: str) -> bool:
    return bool(whole(text, MOST_GPUS))


def servers(cluster: ClusterSpec) -> Iterator[tuple[HostName, Pool]]:
    """In the order of their names within a pool."""
    for pool in cluster.pools:
        for number in range(1, pool.servers + 1):
            yield HostName(f"{pool.model.lower().replace(' ', '-')}-{number:04d}"), pool


def slowed_servers(
    cluster: ClusterSpec,
) -> Iterator[tuple[HostName, Pool, Mapping[str, tuple[float, ...]]]]:
    """As `servers`, each with its part of the pool's slowdowns; by class as the controller knows it, of any user."""
    first: dict[str, int] = {}
    for name, pool in servers(cluster):
        at = first.get(pool.model, 0)
        first[pool.model] = last = at + pool.gpus_per_server
        yield name, pool, {f"*/{pattern}": times[at:last] for pattern, times in pool.slowdowns.items()}


def nodes_of(gang: int, gpus_per_server: int) -> int:
    """The fewest servers that hold it in equal parts."""
    return next(nodes for nodes in range(-(-gang // gpus_per_server), gang + 1) if gang % nodes == 0)


def check_fits(job: SimJob, workload: Workload, cluster: ClusterSpec, *, mixed: bool = False) -> None:
    """Refuses what could never run. `mixed`: its servers may be of several pools."""
    allowed = _allowed(job, cluster)
    there = ", ".join(f"{pool.servers} x {pool.gpus_per_server} {pool.model}" for pool in cluster.pools)
    if not allowed:
        _impossible(
            job, workload, "gpu_types", ", ".join(job.gpu_types), f"some of what the cluster has: {there}"
        )
    roomy = _roomy(job, workload, allowed)
    if job.gpu_memory_bytes > (most := max(pool.gpu_memory_bytes for pool in roomy)):
        _impossible(job, workload, "gpu_memory_bytes", job.gpu_memory_bytes, f"at most {most}, a GPU's")
    large = [pool for pool in roomy if pool.gpu_memory_bytes >= job.gpu_memory_bytes]
    wide = [pool.servers for pool in large if pool.gpus_per_server >= job.gpus]
    if (sum(wide) if mixed else max(wide, default=0)) < job.nodes:
        shape = f"{job.nodes} x {job.gpus}"
        where = f" with {' or '.join(job.gpu_types)} GPUs" if job.gpu_types else ""
        enough = ", on servers and GPUs with memory enough" if len(large) < len(allowed) else ""
        one_of = "" if mixed else "one of "
        expected = (
            f"a gang (servers x GPUs) that fits into {one_of}the cluster's pools{where}{enough}: {there}"
        )
        _impossible(job, workload, "gpus", shape, expected)


def _impossible(job: SimJob, workload: Workload, field: str, value: object, expected: str) -> NoReturn:
    raise RefusedError(f"{name_of(job, workload)}: {field}: {value}; expected {expected}", Kind.IMPOSSIBLE)


def name_of(job: SimJob, workload: Workload) -> str:
    """As people find it: in its file, if it has one."""
    return f"{workload.source}:{job.line}" if job.line else f"job {job.id} of {job.user}"


def keep_to_what_runs(workload: Workload, cluster: ClusterSpec) -> Workload:
    """Jobs of a class that makes no progress on some of the cluster's models are pinned to the others, as their users would do.

    Left to the policy they would hold GPUs there for ever, and the run would not end. Likewise those that ask for more host memory than servers of a model have:
    no policy would place them there.
    """
    return replace(workload, jobs=tuple(_keep(job, workload, cluster) for job in workload.jobs))


def check_all_end(experiment: Experiment) -> None:
    """Of a run until every job has ended."""
    if experiment.until_s is None:
        for job in experiment.workload.jobs:
            check_ends(job, experiment.workload, experiment.cluster)


def check_ends(job: SimJob, workload: Workload, cluster: ClusterSpec) -> None:
    """Refuses one that would be simulated for ever, however fast it runs."""
    fastest = [
        (steps, max(workload.rates.get((job_class, pool.model), 0.0) for pool in cluster.pools))
        for job_class, steps in job.parts
    ]
    took_s = sum(steps / rate if rate > 0 else inf for steps, rate in fastest)
    for field, value, end_s in (
        ("arrival_s", job.arrival_s, job.arrival_s),
        ("steps", job.steps, job.arrival_s + took_s),
    ):
        if end_s > LAST_S:
            expected = f"an end within {LAST_S:g} s (not after {end_s:.3g} s), or a time to stop at (--until)"
            if field == "arrival_s" and workload.jobs[0].arrival_s > LAST_S:
                expected += "; arrivals are counted from the beginning, not from 1970: take the first off all"
            raise RefusedError(f"{name_of(job, workload)}: {field}: {value:g}; expected {expected}")


def _keep(job: SimJob, workload: Workload, cluster: ClusterSpec) -> SimJob:
    allowed = _allowed(job, cluster)
    roomy = [pool.model for pool in _roomy(job, workload, allowed)]
    classes = set(job.classes)
    good = tuple(
        model
        for model in roomy
        if all(workload.rates.get((job_class, model), 0.0) > 0 for job_class in classes)
    )
    if roomy and not good:
        expected = f"a class with a rate above 0 on {' or '.join(roomy)}"
        _impossible(job, workload, "job_class", job.job_class, expected)
    return job if len(good) == len(allowed) else replace(job, gpu_types=good)


def _allowed(job: SimJob, cluster: ClusterSpec) -> list[Pool]:
    return [pool for pool in cluster.pools if not job.gpu_types or pool.model in job.gpu_types]


def unused_models(workload: Workload, cluster: ClusterSpec) -> list[str]:
    """GPU models on which none of the jobs can run, as `runnable` has them: mistyped, most likely, or without rates."""
    return [
        pool.model
        for pool in cluster.pools
        if not any(
            (not job.gpu_types or pool.model in job.gpu_types)
            and job.gpu_memory_bytes <= pool.gpu_memory_bytes
            for job in workload.jobs
        )
    ]


def _roomy(job: SimJob, workload: Workload, pools: Sequence[Pool]) -> list[Pool]:
    """Those of these whose servers have the host memory that it asks for. Raises RefusedError if none has."""
    roomy = [pool for pool in pools if not pool.memory_bytes or pool.memory_bytes >= job.memory_bytes]
    if pools and not roomy:
        most = max(pool.memory_bytes for pool in pools)
        _impossible(job, workload, "memory_bytes", job.memory_bytes, f"at most {most}, a server's")
    return roomy


def runnable(
    workload: Workload, cluster: ClusterSpec, sieve: Sieve, *, mixed: bool = False, ends: bool = False
) -> Workload:
    """The jobs that this cluster could run (`mixed`: gangs on several models; `ends`: until they end), as `keep_to_what_runs` has them; others are refused, or left out as the sieve says."""
    jobs = []
    for job in workload.jobs:
        with sieve.job():
            check_fits(job, workload, cluster, mixed=mixed)
            kept = _keep(job, workload, cluster)
            check_fits(kept, workload, cluster, mixed=mixed)
            if ends:
                check_ends(kept, workload, cluster)
            jobs.append(kept)
    if not jobs:
        raise RefusedError(
            f"{workload.name}: none of {len(workload.jobs)} jobs can run on the cluster; the first: {sieve.left_out[-1]}",
            Kind.IMPOSSIBLE,
        )
    if len(jobs) == len(workload.jobs):
        return replace(workload, jobs=tuple(jobs))
    users = {job.user for job in jobs}
    return replace(
        workload,
        jobs=tuple(replace(job, id=number) for number, job in enumerate(jobs, start=1)),
        tickets={user: tickets for user, tickets in workload.tickets.items() if user in users},
        skipped=tuple(sieve.left_out),
    )
