"""Files that say how fast each GPU of a cluster is among those of its model (docs/simulator.md)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hs_core.errors import RefusedError
from hs_core.model import LEAST_SLOWDOWN, MOST_SLOWDOWN
from hs_sim.cluster import canonical
from hs_sim.model import ClusterSpec, Pool
from hs_sim.reading import did_you_mean, kind_of, text_of, unread


def slowed(cluster: ClusterSpec, path: Path) -> ClusterSpec:
    """The cluster with the GPUs of a YAML file: `V100: [1.0, 1.3, …]`, or by class of jobs `V100: {bert*: […], "*": […]}`."""
    import yaml  # noqa: PLC0415 — only who reads YAML pays for it

    text = text_of(path)
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RefusedError(f"{path}: {error}; expected YAML") from None
    except ValueError as error:  # no such day, or more digits than Python reads
        raise RefusedError(f"{path}: {unread(error)}; expected YAML") from None
    except RecursionError:
        raise RefusedError(
            f"{path}: nested too deeply; expected GPU models with a list of numbers each"
        ) from None
    if not isinstance(tree, dict):
        raise RefusedError(f"{path}: {kind_of(tree)}; expected GPU models with a list of numbers each")
    said = {canonical(str(model)): value for model, value in tree.items()}
    if len(said) < len(tree):
        raise RefusedError(f"{path}: {', '.join(map(str, tree))}: expected each GPU model once")
    pools = {pool.model: pool for pool in cluster.pools}
    for model in said:
        if model not in pools:
            raise RefusedError(
                f"{path}: {model}: expected one of the cluster's models, {', '.join(pools)}{did_you_mean(model, pools)}"
            )
    return replace(
        cluster,
        pools=tuple(
            replace(pool, slowdowns=_of_pool(path, pool, said[pool.model])) if pool.model in said else pool
            for pool in cluster.pools
        ),
    )


def _of_pool(path: Path, pool: Pool, value: Any) -> Mapping[str, tuple[float, ...]]:
    by_class = value if isinstance(value, dict) else {"*": value}
    found = {}
    for job_class, times in by_class.items():
        where = f"{path}: {pool.model}.{job_class}"
        if not isinstance(times, list) or len(times) != pool.gpus:
            many = f"{len(times)} numbers" if isinstance(times, list) else repr(times)
            raise RefusedError(f"{where}: {many}; expected {pool.gpus} numbers, one a GPU, server by server")
        for at, number in enumerate(times):
            right = isinstance(number, int | float) and not isinstance(number, bool)
            if not right or not LEAST_SLOWDOWN <= number <= MOST_SLOWDOWN:
                raise RefusedError(
                    f"{where}[{at}]: {number!r}; expected a number from {LEAST_SLOWDOWN:g} to {MOST_SLOWDOWN:g}"
                )
        found[str(job_class)] = tuple(float(number) for number in times)
    return found
