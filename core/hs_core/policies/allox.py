"""AlloX (EuroSys'20): jobs on one GPU each are matched to (GPU, place from the end of its queue) at the least sum of completion times; no preemption.

Who holds a GPU keeps it to its end; that GPU's queue begins then. Of the GPUs that are free the first of each queue begins, and the others are
matched again at the next decision.

Departures. GPUs that are in use are in the matching, with the time until they are free; Gavel's simulator matches free ones only (`compat`). Gangs, which AlloX doesn't know, take free GPUs that no queue has, the earliest first.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.allox import allox
from hs_core.mechanism.estimates import estimated
from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels
from hs_core.mechanism.placing import asked_gpus, by_arrival
from hs_core.mechanism.rows import Rows, rows
from hs_core.mechanism.seats import Seats
from hs_core.model import Migrate
from hs_core.names import JobId
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict

LEAST_SPEED = 1e-10  # Gavel's, of a job where it does not run
NEWER = 1e-6  # of its time that a job is thought to lose on each older model: where nothing else tells, nobody is to be left on old GPUs beside idle new ones
UNKNOWN_S = 3600.0  # until a job ends that did not say how long it is, or is of a class that nobody measured


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot)
    held = seats.kept(sorted(snapshot.jobs, key=by_arrival))
    holding = [job for job in sorted(snapshot.jobs, key=by_arrival) if job.id in held]
    waiting = [job for job in snapshot.jobs if job.id not in held]
    table = rows(snapshot, seats, [job for job in waiting if job.gang == 1 and _finds_room(seats, job)])
    left_s = np.divide(
        table.steps_left[:, None], table.speed, out=np.full(table.speed.shape, np.inf), where=table.speed > 0
    )
    left_s *= 1.0 + NEWER * np.arange(len(table.models))
    found = allox(left_s, _free_in_s(snapshot, table, holding))
    why: dict[JobId, str] = {}
    for at, job in enumerate(table.jobs):
        on = int(found.on[at])
        if on < 0:
            continue
        model, idle = table.models[on], int(found.device[at]) < table.gpus[on]
        if not (found.first[at] and idle and seats.choose(job, model)):
            why[job.id] = f"it is to run on a {model} that others use before it"
    gangs = sorted((job for job in waiting if job.gang > 1), key=by_arrival)
    seats.serve(gangs)
    why |= {job.id: _why_gang(job) for job in gangs}
    why |= {
        job.id: f"it waits until {asked_gpus(job, at_home=True)} is free: nobody is put aside for it"
        for job in waiting
        if job.gang == 1 and not _finds_room(seats, job)
    }
    return seats.verdict({}, why, gangs)


def _why_gang(job: JobFacts) -> str:
    return (
        "jobs on one GPU have theirs first, then gangs by arrival: "
        f"it waits until {asked_gpus(job, at_home=job.started and not job.movable)} are free"
    )


def _finds_room(seats: Seats, job: JobFacts) -> bool:
    """Not one that can only run where others do: a queue that it heads would wait with it, beside an idle GPU."""
    if not job.started or not seats.choices(job):
        return True
    if job.movable and job.migrate is not Migrate.NEVER:
        return True
    return seats.room(job.hosts[0]) >= job.gang and not seats.outrun(job)


def _free_in_s(snapshot: Snapshot, table: Rows, holding: Sequence[JobFacts]) -> list[NDArray[np.float64]]:
    """By model, seconds until each of its GPUs is free: 0 of those that nobody holds."""
    estimates = estimated(snapshot, table.models)
    hosts = {host.name: host.model for host in snapshot.hosts}
    free_in_s = [[0.0] * count for count in table.gpus.tolist()]
    for job in holding:
        on = table.models.index(hosts[(job.going.hosts if job.going is not None else job.hosts)[0]])
        speed = float(estimates.speeds(job.job_class)[on])
        known = speed > 0 and estimates.measured(job.job_class)
        left_s = job.steps_left / speed if job.steps_left and known else UNKNOWN_S
        free_in_s[on] += [left_s] * job.gang
    return [np.array(waits_s, dtype=float) for waits_s in free_in_s]


def _in_gavel(case: Case) -> Allocation:
    """As Gavel's simulator does it: who was given a GPU keeps it, the others are matched to the free ones, and the first of each queue is given it. A gang counts as one GPU."""
    question, rows = case.question, case.rows
    holds = case.before.sum(axis=1) == 1.0
    alone = np.where(holds[:, None], case.before, 0.0)
    free = np.maximum(0, question.gpus - alone[holds].sum(axis=0).astype(np.int64))
    speed = np.where(question.speed > 0, question.speed, LEAST_SPEED)[~holds]
    found = allox(rows.steps_left[~holds, None] / speed, [np.zeros(count) for count in free.tolist()])
    for job, on, first in zip(
        np.flatnonzero(~holds).tolist(), found.on.tolist(), found.first.tolist(), strict=True
    ):
        if first:
            alone[job, on] = 1.0
    return Allocation(alone=alone)


compat = Gavels("allox", _in_gavel, lengths=True, speeds=False).compat
ALLOX = Policy(
    name="allox", needs=Needs(preemptive=False, lengths=True, work_conserving=False), decide=decide
)
