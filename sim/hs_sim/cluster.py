"""Clusters: from a word to pools, from pools to servers by name."""

from collections.abc import Iterator
from dataclasses import replace

from hs_core.errors import Kind, RefusedError
from hs_core.model import HostName
from hs_core.shares import NEWEST_FIRST
from hs_sim.model import ClusterSpec, Pool, SimJob, Workload

_CANONICAL = {model.casefold(): model for model in NEWEST_FIRST}
_EXPECTED = "expected pools as MODEL:GPUS or MODEL:GPUS@GPUS_PER_SERVER, such as v100:12,p100:24,k80:64@8"


def canonical(model: str) -> str:
    """A model as the system writes it: v100 → V100. One nobody has heard of stays as it is."""
    return _CANONICAL.get(model.casefold(), model)


def parse_cluster(text: str, gpus_per_server: int = 4) -> ClusterSpec:
    """`v100:12,p100:24,k80:64`: GPUs of each model, on servers of so many each; `k80:64@8` says it for one."""
    if not 1 <= gpus_per_server <= 1024:
        raise RefusedError(f"--gpus-per-server: {gpus_per_server}; expected 1 to 1024")
    pools: list[Pool] = []
    for word in text.split(","):
        model, colon, text_of = word.strip().partition(":")
        count, at, each = text_of.partition("@")
        if not colon or not model or not _is_count(count) or (at and not _is_count(each)):
            raise RefusedError(f"--cluster: {word.strip()!r}; {_EXPECTED}")
        model, gpus, per_server = canonical(model), int(count), int(each) if at else gpus_per_server
        if gpus % per_server:
            raise RefusedError(
                f"--cluster: {gpus} {model} GPUs do not fill servers of {per_server}; expected a multiple of it"
            )
        if any(pool.model == model for pool in pools):
            raise RefusedError(f"--cluster: {model} is named twice; expected each model once")
        pools.append(Pool(model=model, servers=gpus // per_server, gpus_per_server=per_server))
    return ClusterSpec(pools=tuple(pools))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 10**6


def servers(cluster: ClusterSpec) -> Iterator[tuple[HostName, Pool]]:
    """In the order of their names within a pool."""
    for pool in cluster.pools:
        for number in range(1, pool.servers + 1):
            yield HostName(f"{pool.model.lower().replace(' ', '-')}-{number:04d}"), pool


def check_fits(cluster: ClusterSpec, name: str, job: SimJob, *, mixed: bool = False) -> None:
    """Refuses what could never run. `mixed`: its servers may be of several pools."""
    types = job.gpu_types
    servers = [
        pool.servers
        for pool in cluster.pools
        if (not types or pool.model in types) and pool.gpus_per_server >= job.gpus
    ]
    most = sum(servers) if mixed else max(servers, default=0)
    if most < job.nodes:
        where = f" with {' or '.join(types)} GPUs" if types else ""
        there = "the cluster has not" if mixed else "no pool has"
        raise RefusedError(
            f"{name} needs {job.nodes} x {job.gpus} GPUs; {there} so many servers of so many GPUs{where}",
            Kind.IMPOSSIBLE,
        )


def keep_to_what_runs(workload: Workload, cluster: ClusterSpec) -> Workload:
    """Jobs of a class that makes no progress on some of the cluster's models are pinned to the others, as their users would do.

    Left to the policy they would hold GPUs there for ever, and the run would not end.
    """
    models = tuple(pool.model for pool in cluster.pools)
    return replace(workload, jobs=tuple(_keep(job, workload, models) for job in workload.jobs))


def _keep(job: SimJob, workload: Workload, models: tuple[str, ...]) -> SimJob:
    allowed = [model for model in models if not job.gpu_types or model in job.gpu_types]
    good = tuple(model for model in allowed if workload.rates.get((job.job_class, model), 0.0) > 0)
    if allowed and not good:
        raise RefusedError(
            f"job {job.id} of {job.user} ({job.job_class}) makes no progress on {' or '.join(allowed)}; expected a rate above 0 "
            "on one of them",
            Kind.IMPOSSIBLE,
        )
    return job if len(good) == len(allowed) else replace(job, gpu_types=good)
