"""A run: decisions at their times, and between two of them every server's quanta at once.

What happens inside a quantum (a job ends or comes, a process stands, a checkpoint has arrived) is handled at its own time, one by one; all
else is arrays. Decisions are made when something changed, at once while few jobs are live and at the next edge of a quantum where there are many
(`PROMPT_JOBS`), and at every edge for policies that ask for it, unless their last verdict says how it goes on (`Verdict.sequel`). Left out of
this depth, and said in docs/simulator.md: messages and their delays, which GPU of a server a process is bound to
(but where GPUs of one model differ), device memory, faults.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import floor, isnan

import numpy as np

from hs_core.policies import find
from hs_core.policy import Policy
from hs_sim.cluster import check_all_end, keep_to_what_runs
from hs_sim.garbage import rare_collections
from hs_sim.model import Experiment, JobOutcome, Result
from hs_sim.quanta.agenda import CHANGE, END, STAND, TRIED
from hs_sim.quanta.charges import Charges
from hs_sim.quanta.decisions import Decisions
from hs_sim.quanta.foresight import Foresight
from hs_sim.quanta.lives import Lives
from hs_sim.quanta.paces import Paces
from hs_sim.quanta.running import Running
from hs_sim.quanta.state import EPSILON_S, State

PROMPT_JOBS = 2_000  # live ones up to which a change is decided about at once


@dataclass(frozen=True, slots=True)
class Progress:
    now_s: float
    ended: int
    jobs: int


Watch = Callable[[Progress], None]


def run_quanta(
    experiment: Experiment, *, policy: Policy | None = None, progress: Watch | None = None
) -> Result:
    """`policy`: instead of the one that the experiment names. Same experiment, same result, but for what was measured of this machine (decision_s_*, cpu_s)."""
    runs = keep_to_what_runs(experiment.workload, experiment.cluster)
    check_all_end(experiment)
    if policy is None:
        policy = find(experiment.policy, compat=experiment.compat, reset_s=experiment.workload.peer.reset_s)
    with rare_collections():
        return _Run(replace(experiment, workload=runs), policy, progress).run()


class _Run:
    def __init__(self, experiment: Experiment, policy: Policy, progress: Watch | None) -> None:
        self._state = state = State(experiment, policy)
        self._progress = progress
        self._agenda = state.agenda
        self._asked = state.asked
        self._experiment = state.experiment
        self._fleet = state.fleet
        self._quantum_s = state.quantum_s
        self._rising = state.rising
        self._series = state.series
        self._since = state.since
        self._turns = state.turns
        self._charges = charges = Charges(state)
        self._foresight = foresight = Foresight(state)
        self._paces = Paces(state, charges, foresight)
        self._lives = lives = Lives(state, charges, foresight)
        self._running = Running(state, charges, foresight, lives)
        self._decisions = Decisions(state, charges, foresight, lives)

    # --- the clock --------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        began_cpu_s = time.process_time()
        told_s = time.monotonic()
        until_s = self._experiment.until_s
        count = len(self._fleet.jobs)
        while self._state.ended < count and (until_s is None or self._state.edge_s < until_s - EPSILON_S):
            if not self._fleet.live:
                self._skip_idle(until_s)
                if until_s is not None and self._state.edge_s >= until_s - EPSILON_S:
                    break
            self._one_quantum(until_s)
            if self._progress is not None and time.monotonic() - told_s > 0.2:
                told_s = time.monotonic()
                self._progress(Progress(self._state.now_s, self._state.ended, count))
        self._series.tick(self._state.now_s, last=True)
        return self._result(time.process_time() - began_cpu_s)

    def _skip_idle(self, until_s: float | None) -> None:
        """Nobody is here: on to the quantum in which the next one comes."""
        next_s = self._fleet.jobs[self._state.next_job].arrival_s
        if until_s is not None:
            next_s = min(next_s, until_s)
        if self._experiment.compat:
            self._state.now_s = self._state.edge_s = max(self._state.edge_s, next_s)
            self._series.tick(self._state.now_s)
            return
        quanta = floor(next_s / self._quantum_s + 1e-12) - round(self._state.edge_s / self._quantum_s)
        if quanta > 0:
            self._state.quantum += quanta
            self._state.edge_s = self._state.quantum * self._quantum_s
            self._state.now_s = self._state.edge_s
            self._series.tick(self._state.now_s)

    def _one_quantum(self, until_s: float | None) -> None:
        """From one edge to the next."""
        self._state.now_s = start_s = self._state.edge_s
        end_s = (
            start_s + self._quantum_s
            if self._experiment.compat
            else (self._state.quantum + 1) * self._quantum_s
        )
        if until_s is not None:
            end_s = min(end_s, until_s)
        self._happen(start_s + EPSILON_S, edge=True)
        self._turns.begin()
        if not self._fleet.live:
            self._turns.take()
        elif not self._decisions.goes_on(start_s):
            self._decisions.decide(start_s)
        self._running.edge(start_s)
        if (
            self._experiment.compat
            and not self._state.run_now.size
            and self._state.next_job < len(self._fleet.jobs)
        ):
            # As there: where nothing runs, time goes on to the next arrival.
            end_s = max(start_s + EPSILON_S, self._fleet.jobs[self._state.next_job].arrival_s)
            end_s = end_s if until_s is None else min(end_s, until_s)
        self._foresight.foresee(self._state.run_now, end_s)
        self._paces.pace(start_s, end_s)
        if self._inside(end_s):
            end_s = self._state.now_s
        self._charges.account(end_s)
        self._state.now_s = self._state.edge_s = end_s
        self._state.quantum += 1
        self._state.quanta += 1
        self._series.tick(end_s)

    def _inside(self, end_s: float) -> bool:
        """What happens before the next edge, in its order. True: the round is over before, as nobody runs any more."""
        ran = bool(self._state.run_now.size)
        while True:
            if self._experiment.compat and ran and not self._state.run_now.size:
                return True
            at_s = self._next_s()
            if at_s > end_s + EPSILON_S:
                return False
            if at_s >= end_s - EPSILON_S and self._agenda.next_by(at_s) != END:
                return False  # a matter of the next edge
            self._state.now_s = at_s
            on_the_way = bool(self._state.moving or self._rising)
            touched = self._happen(at_s + EPSILON_S)
            if self._experiment.rounds and on_the_way and at_s < end_s - EPSILON_S:
                # Who moved to its GPUs of this round runs there as soon as it can, without another decision.
                self._turns.take()
                self._running.turn_now(at_s, end_s)
            if (
                (
                    self._state.stale
                    or self._since.came
                    or (self._since.gone and self._state.policy.needs.ends)
                )
                and (not self._experiment.rounds or self._state.asks_at_once)
                and self._fleet.live
                and len(self._fleet.live) <= PROMPT_JOBS
                and at_s < end_s - EPSILON_S
            ):
                self._decisions.decide(at_s)
                self._running.turn_now(at_s, end_s)
                touched |= {row for job in self._rising for row in self._fleet.home[job]}
            if at_s < end_s - EPSILON_S:
                for row in sorted(touched):
                    self._running.fill(row, at_s, end_s)
            self._paces.pace(at_s, end_s)

    def _next_s(self) -> float:
        come_s = (
            self._fleet.jobs[self._state.next_job].arrival_s
            if self._state.next_job < len(self._fleet.jobs)
            else np.inf
        )
        return min(come_s, self._agenda.next_s)

    def _happen(self, until_s: float, *, edge: bool = False) -> set[int]:
        """All that is due; the servers where GPUs may be idle now."""
        fleet, touched = self._fleet, set[int]()
        while (
            self._state.next_job < len(fleet.jobs) and fleet.jobs[self._state.next_job].arrival_s <= until_s
        ):
            fleet.comes(self._state.next_job)
            self._state.next_job += 1
            self._since.came = True
        for at_s, what, job in self._agenda.due(until_s):
            if what == END:
                touched.update(self._lives.end(job, at_s))
            elif what == STAND:
                self._lives.stand([job, *self._agenda.due_with(at_s, STAND)], at_s, edge=edge)
            elif what == CHANGE:
                self._lives.change_speed(job, at_s)
            elif what == TRIED:
                self._lives.tried(job, at_s)
            else:
                touched.update(self._lives.written(job, at_s))
        return touched

    # --- the end ----------------------------------------------------------------------------------------------------

    def _result(self, cpu_s: float) -> Result:
        fleet = self._fleet
        began = np.where(fleet.first_s <= self._state.now_s, fleet.first_s, np.nan).tolist()
        ended = fleet.ended_s.tolist()
        suspends, migrations = fleet.suspends.counts().tolist(), fleet.migrations.tolist()
        steps, left = fleet.steps.tolist(), fleet.steps_left.tolist()
        had_s = fleet.gpu_s(np.arange(len(fleet.jobs))).tolist()
        outcomes = tuple(
            JobOutcome(
                id=job.id,
                user=job.user,
                gang=job.gang,
                arrival_s=job.arrival_s,
                started_s=_or_none(began[at]),
                ended_s=_or_none(ended[at]),
                steps=job.steps,
                steps_done=int(job.steps * (1.0 - left[at] / steps[at])) if isnan(ended[at]) else job.steps,
                gpu_s={model: gpu_s for model, gpu_s in zip(fleet.servers.models, had, strict=True) if gpu_s},
                suspends=suspends[at],
                migrations=migrations[at],
            )
            for at, (job, had) in enumerate(zip(fleet.jobs, had_s, strict=True))
        )
        return Result(
            experiment=self._experiment,
            depth="quanta",
            jobs=outcomes,
            samples=self._series.samples(),
            ended_s=self._state.now_s,
            quanta=self._state.quanta,
            decisions=self._asked.times,
            decision_s_mean=self._asked.mean_s,
            decision_s_max=self._asked.longest_s,
            cpu_s=cpu_s,
            trades=tuple(self._state.trades),
        )


def _or_none(value: float) -> float | None:
    return None if isnan(value) else value
