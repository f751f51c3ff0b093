"""Which jobs servers could hold in a round, whoever else is suspended or moved: what Gavel's policies divide time among.

A gang that a pool's GPUs suffice for, and none of its servers, would have a part of the time that it cannot use, and come before all others in every round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.floor import Shape, shape_of
from hs_core.mechanism.gavel.question import Question, isolated_share
from hs_core.mechanism.rows import Rows, rows
from hs_core.mechanism.seats import Seats
from hs_core.names import HostName, JobId
from hs_core.policy import Snapshot

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WHY = "no server has GPUs enough for it but those of jobs that cannot be suspended; it comes up once one has"

Promised = Mapping[JobId, tuple[tuple[HostName, ...], int]]
"""Jobs that have their GPUs whatever is decided: servers, and GPUs on each."""


def promised_in(snapshot: Snapshot, seats: Seats) -> Promised:
    """For profiling runs, and where jobs are going."""
    jobs = {job.id: job for job in snapshot.jobs} if snapshot.reserved else {}
    promised = {job: (home, jobs[job].per_node) for job, home in snapshot.reserved.items()}
    for job in snapshot.jobs:
        if job.going is not None and job.id not in promised and seats.goes(job):
            promised[job.id] = job.going.hosts, job.going.gpus
    return promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    whole: Rows  # all that could run somewhere, were it not for who is there
    table: Rows  # those that could run in this round; of the others' speeds there is none
    left_out: tuple[JobId, ...]
    cramped: list[list[int]]  # who has lost a speed, and on which model

    @property
    def why(self) -> Mapping[JobId, str]:
        return dict.fromkeys(self.left_out, WHY)

    def claims(self, gpus: Ints) -> Floats:
        """(those left out, T) parts of the time that they would have in a cluster of their own: nobody's loss as long as they cannot run, and
        with these they come up at once when they can. Else who cannot be suspended would take that room before the next allocation.
        """
        if not self.left_out:
            return np.zeros((0, len(gpus)))
        share = isolated_share(Question(speed=self.whole.speed, gang=self.whole.gang, gpus=gpus))
        out = set(self.left_out)
        places = [at for at, job in enumerate(self.whole.jobs) if job.id in out]
        return np.where(self.whole.speed > 0, share, 0.0)[places]


def offer(snapshot: Snapshot, seats: Seats, promised: Promised) -> Offered:
    """Who holds GPUs for a round only, to be measured or on its way, is in nobody's way."""
    whole = rows(snapshot, seats, though=promised)
    room = {host.name: seats.room(host.name) for host in snapshot.hosts}
    if all(room[host.name] == host.gpus for host in snapshot.hosts):
        return Offered(whole=whole, table=whole, left_out=(), cramped=[])
    sliceable = {job.id for job in whole.jobs if job.sliceable} if promised else ()
    for job_id, (home, gpus) in promised.items():
        for name in home if job_id in sliceable else ():
            if name in room:
                room[name] += gpus
    could = whole.speed > 0
    can = _fitting(whole, seats, promised, room)
    able: Bools = np.logical_or.reduce(can, axis=1)
    return Offered(
        whole=whole,
        table=replace(
            whole,
            jobs=tuple([whole.jobs[at] for at in np.flatnonzero(able)]),
            speed=np.where(can, whole.speed, 0.0)[able],
        ),
        left_out=tuple([whole.jobs[at].id for at in np.flatnonzero(~able)]),
        cramped=[[whole.jobs[at].id, on] for at, on in np.argwhere(could & ~can).tolist()],
    )


def _fitting(whole: Rows, seats: Seats, promised: Promised, room: Mapping[HostName, int]) -> Bools:
    """(J, T) where each has a speed and, with so many GPUs free on each server, room. The budget of moves is another matter: it is back soon."""
    can: Bools = whole.speed > 0
    pools: dict[tuple[Shape, int], bool] = {}
    for at, job in enumerate(whole.jobs):
        if job.id in promised:
            continue
        shape = shape_of(job)
        for on in np.flatnonzero(can[at]).tolist():
            if (shape, on) not in pools:
                pools[shape, on] = seats.holds(job, whole.models[on], room)
            has_room = pools[shape, on] and not seats.tied(job)
            can[at, on] = has_room or seats.holds_at_home(job, whole.models[on], room)
    return can
