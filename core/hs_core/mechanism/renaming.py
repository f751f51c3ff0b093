"""Tesserae's last step (3.3, Algorithms 2 and 3): which physical server each planned one becomes, so that the fewest jobs migrate.

Servers of a pool that are alike (GPUs left, memory) can be renamed among themselves; GPUs within a server are the agent's to give.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.placing import Home
from hs_core.mechanism.tesserae.migrate import FREE, settle
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Snapshot


def rename(
    servers: Sequence[HostName], gpus: int, planned: Mapping[JobId, Home], snapshot: Snapshot
) -> dict[HostName, HostName]:
    """`planned`: homes on `servers` (or others) in the round to come. Name in the plan → physical server.

    `gpus`: left on each of them. Of what lives there now what runs counts first, as far as it fits on that many GPUs.
    """
    if not gpus:
        return {name: name for name in servers}
    place = {name: at for at, name in enumerate(servers)}
    by_id = {job.id: job for job in snapshot.jobs}
    now = {job.id: job.hosts for job in by_id.values() if job.hosts and job.started}
    running_first = sorted(now, key=lambda job: (job not in snapshot.running, job))
    old = _table(place, gpus, [(by_id[job], now[job]) for job in running_first])
    new = _table(place, gpus, [(by_id[job], home) for job, home in sorted(planned.items())])
    moves = settle(old, new)
    return {name: servers[int(moves.node[at])] for name, at in place.items()}


def _table(
    place: Mapping[HostName, int], gpus: int, lives: Iterable[tuple[JobFacts, Home]]
) -> NDArray[np.int64]:
    """(servers, GPUs, 2) job numbers: one job to a GPU, no part of a job that does not fit."""
    table = np.full((len(place), gpus, 2), FREE, dtype=np.int64)
    used = [0] * len(place)
    for job, home in lives:
        for name in home:
            at = place.get(name)
            if at is not None and used[at] + job.per_node <= gpus:
                table[at, used[at] : used[at] + job.per_node, 0] = job.id
                used[at] += job.per_node
    return table
