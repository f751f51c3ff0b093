"""Themis (NSDI'20): GPUs are leased; when leases end they are offered to the jobs that are worst off by finish-time fairness (rho), which bid for them.

rho is the time until a job ends over what it would take on one of N parts of the cluster, N being the jobs that are here. The auction is held by the
controller, which knows everybody's true bid.

Departures. A lease is in whole quanta. What the auction leaves over, and what gangs can't use, goes to the others, the worst first.
"""

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.gavel.finish import Lives
from hs_core.mechanism.gavel.question import Question
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.rows import Rows, rows
from hs_core.mechanism.seats import Seats
from hs_core.mechanism.themis import auction
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict

LEASE_S = 1200.0


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot)
    everybody = rows(snapshot, seats)
    ends: dict[str, float] = dict(memory.get("ends", {}))
    leased = {
        str(job.id): ends[str(job.id)]
        for job in sorted(snapshot.jobs, key=by_arrival)
        if ends.get(str(job.id), 0.0) > snapshot.now_s and seats.keep(job)
    }
    table = rows(snapshot, seats)
    lives = Lives(age_s=table.age_s, steps_left=table.steps_left, alone_s=_alone_s(everybody, table))
    question = Question(speed=table.speed, gang=table.gang, gpus=table.gpus)
    lease_s = max(snapshot.quantum_s, LEASE_S)
    found = auction(question, lives, lease_s)
    for at, job in enumerate(table.jobs):
        on = int(found.on[at])
        if on >= 0 and seats.choose(job, table.models[on]):
            leased[str(job.id)] = snapshot.now_s + lease_s
    why = {
        job.id: f"others are worse off: if it waits it ends after {rho:.2f} times what a fair part would take"
        for job, rho in zip(table.jobs, found.rho.tolist(), strict=True)
    }
    return seats.verdict(
        {"ends": leased}, why, [table.jobs[at] for at in np.argsort(-found.rho, kind="stable")]
    )


def _alone_s(everybody: Rows, table: Rows) -> NDArray[np.float64]:
    """(J,) seconds that all of each job takes on one of N parts, gangs included as far as the part has GPUs for them."""
    share = everybody.gpus[None, :] / (max(1, len(everybody.jobs)) * table.gang[:, None])
    share = share / np.maximum(1.0, share.sum(axis=1, keepdims=True))
    speed = (table.speed * share).sum(axis=1)
    alone_s: NDArray[np.float64] = np.divide(
        table.steps, speed, out=np.full(len(speed), 1e12), where=speed > 0
    )
    return alone_s


THEMIS = Policy(name="themis", needs=Needs(every_quantum=True, lengths=True), decide=decide)
