"""Themis (NSDI'20): GPUs are leased; when leases end they are offered to the jobs that are worst off by finish-time fairness (rho), which bid for them.

rho is the time until a job ends over what it would take on one of N parts of the cluster, N being the jobs that are here. The auction is held by the
controller, which knows everybody's true bid.

Departures. Leases end together, each `LEASE_S` and at the edge of a quantum, so one that begins in between is shorter: where each has its own end a gang
never finds GPUs enough free at once. What the auction leaves over, and what gangs can't use, goes to the others, the worst first.
Classes that nobody measured are measured first (`mechanism.profiling`).
"""

from math import floor, inf

import numpy as np

from hs_core.mechanism.gavel.finish import Lives
from hs_core.mechanism.gavel.question import Question, isolated_speed
from hs_core.mechanism.later import Later
from hs_core.mechanism.placing import by_arrival, settled_homes
from hs_core.mechanism.profiling import profiled
from hs_core.mechanism.rows import rows
from hs_core.mechanism.seats import Seats
from hs_core.mechanism.themis import auction
from hs_core.mechanism.weights import pools
from hs_core.names import JobId
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict

LEASE_S = 1200.0
FOREVER_S = 1e12  # of what could not run on such a part


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot)
    alone = _alone_speeds(snapshot, seats)
    ends: dict[str, float] = dict(memory.get("ends", {}))
    order = sorted(snapshot.jobs, key=by_arrival)
    kept = seats.kept(job for job in order if ends.get(str(job.id), -inf) > snapshot.now_s)
    leased = {str(job.id): ends[str(job.id)] for job in order if job.id in kept}
    table = rows(snapshot, seats)
    speed = np.array([alone[job.id] for job in table.jobs], dtype=float)
    alone_s = np.divide(table.steps, speed, out=np.full(len(speed), FOREVER_S), where=speed > 0)
    lives = Lives(age_s=table.age_s, steps_left=table.steps_left, alone_s=alone_s)
    question = Question(speed=table.speed, gang=table.gang, gpus=table.gpus)
    lease_s = max(snapshot.quantum_s, LEASE_S)
    ends_s = lease_s * (floor(snapshot.now_s / lease_s) + 1)
    found = auction(question, lives, ends_s - snapshot.now_s)
    worst_first = [(table.jobs[at], int(found.on[at])) for at in np.argsort(-found.rho, kind="stable")]
    for job, on in worst_first:
        if on >= 0 and seats.choose(job, table.models[on]):
            leased[str(job.id)] = ends_s
    why = Later(
        lambda: {
            job.id: f"others have the leases, which end in {ends_s - snapshot.now_s:.0f} s at the latest; then GPUs go to those that are worst off:"
            f" if it waits till then it takes {rho:.2f} times as long as with a fair part"
            for job, rho in zip(table.jobs, found.rho.tolist(), strict=True)
        }
    )
    return seats.verdict({"ends": leased}, why, [job for job, _ in worst_first])


def _alone_speeds(snapshot: Snapshot, seats: Seats) -> dict[JobId, float]:
    """Steps/s of each job on one of N parts of the cluster, N being all of them; whoever has GPUs just now."""
    everybody = rows(snapshot, seats, though={job.id for job in snapshot.jobs})
    gpus = np.array([gpus for _, gpus in pools(snapshot, settled_homes(snapshot))], dtype=np.int64)
    parts = Question(speed=everybody.speed, gang=everybody.gang, gpus=gpus)
    return dict(zip((job.id for job in everybody.jobs), isolated_speed(parts).tolist(), strict=True))


THEMIS = profiled(Policy(name="themis", needs=Needs(every_quantum=True, lengths=True), decide=decide))
