"""FFT (ICS'25): finish-time fairness and throughput by one integer program a round, exactly solved (equations 1, 5, 6, 7).

Departures. Work is counted in hundredths of a job, since steps say nothing about epochs (equation 6 multiplies work by what is owed). Classes that
were not measured are profiled by their own jobs (section 5; `mechanism.profiling`). Who has not said its steps is taken as
long as the median job that has. What the program leaves idle (gangs that no server can take whole) goes to whoever fits, by arrival.
Of the placement within a model (4.3) only "who stays keeps its servers" is in use: spreading a gang costs nothing that is known here.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.fft.costs import Jobs, fair_rounds, owed_next, round_costs
from hs_core.mechanism.fft.program import decide as solve_round
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.placing import settled_homes
from hs_core.mechanism.profiling import profiled
from hs_core.mechanism.rows import Rows, rows
from hs_core.mechanism.seats import Seats
from hs_core.mechanism.weights import pools
from hs_core.policy import Memory, Needs, Plan, Policy, Snapshot, Verdict
from hs_core.words import about

WORK = 100.0  # of every job, in all
SHORTEST, LONGEST = 0.01, 1e4
"""Rounds on the fastest model that jobs count as taking, at least and at most: beside larger costs (`--steps` without end) solvers no longer tell all others apart,
nor do floats what such jobs are owed."""
NETWORK_BYTES_PER_S = 1.25e9  # 10 Gb/s (section 6.1)


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot)
    table = rows(snapshot, seats)
    past = _past(snapshot, memory)
    scale = _scale(snapshot, table)
    jobs = _jobs(snapshot, table, past, scale)
    fair = _fair(snapshot, seats, table, scale)
    found = solve_round(round_costs(jobs), table.gang, table.gpus)
    for at in np.argsort(
        -jobs.owed, kind="stable"
    ):  # where gangs do not fit server by server, who is owed most is first
        if (kind := int(found.choice[at])) >= 0:
            seats.choose(table.jobs[at], table.models[kind])
    fastest = jobs.rates.max(axis=1, initial=0.0)
    owed_s = snapshot.quantum_s * np.divide(jobs.owed, fastest, out=np.zeros(len(fastest)), where=fastest > 0)
    why = {
        job.id: f"others have the GPUs of this round, as that costs all jobs together least; {_behind(seconds)}"
        for job, seconds in zip(table.jobs, owed_s.tolist(), strict=True)
    }
    verdict = seats.verdict({}, why)
    ran = _ran(snapshot, table, verdict.plan)
    owed = owed_next(jobs, np.where(np.isfinite(fair), fair, 1e12), ran)
    ids = [str(job.id) for job in table.jobs]
    now = {
        "quantum": snapshot.quantum,
        "owed": past | dict(zip(ids, jobs.owed.tolist(), strict=True)),  # as this round began
        "next": past | dict(zip(ids, owed.tolist(), strict=True)),  # as it ends, if all goes so
    }
    return replace(verdict, memory=now)


def _behind(owed_s: float) -> str:
    """For people. Of `owed_s`: a part of a job's work says nothing where nobody knows how long that is."""
    if owed_s < 0.5:
        return "it is not behind its fair share"
    return f"for being behind its fair share it is owed {about(owed_s)} of training on its fastest GPUs"


def _past(snapshot: Snapshot, memory: Memory) -> dict[str, float]:
    """What each is owed as this round begins, also who has no part in it: its server is away, say, or its class is being measured.

    Asked again about one round, it begins as it began.
    """
    if not memory:
        return {}
    owed = memory["owed"] if memory["quantum"] == snapshot.quantum else memory["next"]
    return {name: owed[name] for job in snapshot.jobs if (name := str(job.id)) in owed}


def _ran(snapshot: Snapshot, table: Rows, plan: Plan) -> NDArray[np.int64]:
    """(J,) type on which each has its GPUs in this round, also those that the program left over; -1: none."""
    models = {host.name: table.models.index(host.model) for host in snapshot.hosts}
    in_turn = {job for turn in plan.turns.values() for job in turn.gangs}
    on = [models[plan.homes[job.id][0]] if job.id in in_turn else -1 for job in table.jobs]
    return np.array(on, dtype=np.int64)


def _scale(snapshot: Snapshot, table: Rows) -> NDArray[np.float64]:
    """(J, 1) work that gets done in a round for each step/s."""
    round_steps = snapshot.quantum_s * table.speed.max(axis=1, initial=0.0)
    part = WORK / np.clip(table.steps, SHORTEST * round_steps, LONGEST * round_steps)
    scale: NDArray[np.float64] = (part * snapshot.quantum_s)[:, None]
    return scale


def _fair(snapshot: Snapshot, seats: Seats, table: Rows, scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """(J,) tau: all jobs count, and all GPUs, whoever has them just now: who cannot be suspended, or is on its way, is no less here."""
    everybody = rows(snapshot, seats, though={job.id for job in snapshot.jobs})
    at = {job.id: at for at, job in enumerate(everybody.jobs)}
    alone = everybody.speed[[at[job.id] for job in table.jobs]]
    gpus = np.array([gpus for _, gpus in pools(snapshot, settled_homes(snapshot))], dtype=np.int64)
    work = np.full(len(table.jobs), WORK)
    return fair_rounds(alone * scale, work, table.gang, gpus / max(len(everybody.jobs), 1))


def _jobs(snapshot: Snapshot, table: Rows, owed: Mapping[str, float], scale: NDArray[np.float64]) -> Jobs:
    hosts = {host.name: host.model for host in snapshot.hosts}
    transfer = np.zeros(table.speed.shape)
    for at, job in enumerate(table.jobs):
        if job.started and job.hosts:
            rounds = job.state_bytes / NETWORK_BYTES_PER_S / snapshot.quantum_s
            transfer[at] = [0.0 if model == hosts[job.hosts[0]] else rounds for model in table.models]
    return Jobs(
        rates=table.speed * scale,
        work=np.full(len(table.jobs), WORK),
        gpus=table.gang,
        age=table.age_s / snapshot.quantum_s,
        owed=np.array([owed.get(str(job.id), 0.0) for job in table.jobs], dtype=float),
        transfer=transfer,
    )


FFT = profiled(once_a_round(Policy(name="fft", needs=Needs(every_quantum=True, lengths=True), decide=decide)))
