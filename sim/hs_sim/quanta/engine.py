"""A run: decisions at their times, and between two of them every server's quanta at once.

What happens inside a quantum (a job ends or comes, a process stands, a checkpoint has arrived) is handled at its own time, one by one; all
else is arrays. Decisions are made when something changed, at once while few jobs are live and at the next edge of a quantum where there are many
(`PROMPT_JOBS`), and at every edge for policies that ask for it, unless their last verdict says how it goes on (`Verdict.sequel`). Left out of
this depth, and said in docs/simulator.md: messages and their delays, which GPU of a server a process is bound to
(but where GPUs of one model differ), device memory, faults.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from math import floor, isnan

import numpy as np

from hs_core import plan as plans
from hs_core.forms import Form
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import Had, Onward, Plan, Policy, Snapshot, Verdict
from hs_sim.cluster import check_all_end, keep_to_what_runs
from hs_sim.garbage import rare_collections
from hs_sim.model import Experiment, JobOutcome, Result
from hs_sim.quanta.agenda import CHANGE, END, STAND, TRIED
from hs_sim.quanta.rows import Floats
from hs_sim.quanta.running import Running
from hs_sim.quanta.state import EPSILON_S
from hs_sim.trades import trade_row

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


class _Run(Running):
    def __init__(self, experiment: Experiment, policy: Policy, progress: Watch | None) -> None:
        super().__init__(experiment, policy)
        self._progress = progress

    # --- the clock --------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        began_cpu_s = time.process_time()
        told_s = time.monotonic()
        until_s = self._experiment.until_s
        count = len(self._fleet.jobs)
        while self._ended < count and (until_s is None or self._edge_s < until_s - EPSILON_S):
            if not self._fleet.live:
                self._skip_idle(until_s)
                if until_s is not None and self._edge_s >= until_s - EPSILON_S:
                    break
            self._one_quantum(until_s)
            if self._progress is not None and time.monotonic() - told_s > 0.2:
                told_s = time.monotonic()
                self._progress(Progress(self._now_s, self._ended, count))
        self._series.tick(self._now_s, last=True)
        return self._result(time.process_time() - began_cpu_s)

    def _skip_idle(self, until_s: float | None) -> None:
        """Nobody is here: on to the quantum in which the next one comes."""
        next_s = self._fleet.jobs[self._next_job].arrival_s
        if until_s is not None:
            next_s = min(next_s, until_s)
        if self._experiment.compat:
            self._now_s = self._edge_s = max(self._edge_s, next_s)
            self._series.tick(self._now_s)
            return
        quanta = floor(next_s / self._quantum_s + 1e-12) - round(self._edge_s / self._quantum_s)
        if quanta > 0:
            self._quantum += quanta
            self._edge_s = self._quantum * self._quantum_s
            self._now_s = self._edge_s
            self._series.tick(self._now_s)

    def _one_quantum(self, until_s: float | None) -> None:
        """From one edge to the next."""
        self._now_s = start_s = self._edge_s
        end_s = (
            start_s + self._quantum_s if self._experiment.compat else (self._quantum + 1) * self._quantum_s
        )
        if until_s is not None:
            end_s = min(end_s, until_s)
        self._happen(start_s + EPSILON_S, edge=True)
        self._turns.begin()
        if not self._fleet.live:
            self._turns.take()
        elif not self._goes_on(start_s):
            self._decide(start_s)
        self._edge(start_s)
        if self._experiment.compat and not self._run_now.size and self._next_job < len(self._fleet.jobs):
            # As there: where nothing runs, time goes on to the next arrival.
            end_s = max(start_s + EPSILON_S, self._fleet.jobs[self._next_job].arrival_s)
            end_s = end_s if until_s is None else min(end_s, until_s)
        self._foresee(self._run_now, end_s)
        self._pace(start_s, end_s)
        if self._inside(end_s):
            end_s = self._now_s
        self._account(end_s)
        self._now_s = self._edge_s = end_s
        self._quantum += 1
        self._quanta += 1
        self._series.tick(end_s)

    def _inside(self, end_s: float) -> bool:
        """What happens before the next edge, in its order. True: the round is over before, as nobody runs any more."""
        ran = bool(self._run_now.size)
        while True:
            if self._experiment.compat and ran and not self._run_now.size:
                return True
            at_s = self._next_s()
            if at_s > end_s + EPSILON_S:
                return False
            if at_s >= end_s - EPSILON_S and self._agenda.next_by(at_s) != END:
                return False  # a matter of the next edge
            self._now_s = at_s
            on_the_way = bool(self._moving or self._rising)
            touched = self._happen(at_s + EPSILON_S)
            if self._experiment.rounds and on_the_way and at_s < end_s - EPSILON_S:
                # Who moved to its GPUs of this round runs there as soon as it can, without another decision.
                self._turns.take()
                self._turn_now(at_s, end_s)
            if (
                (self._stale or self._since.came or (self._since.gone and self._policy.needs.ends))
                and (not self._experiment.rounds or self._asks_at_once)
                and self._fleet.live
                and len(self._fleet.live) <= PROMPT_JOBS
                and at_s < end_s - EPSILON_S
            ):
                self._decide(at_s)
                self._turn_now(at_s, end_s)
                touched |= {row for job in self._rising for row in self._fleet.home[job]}
            if at_s < end_s - EPSILON_S:
                for row in sorted(touched):
                    self._fill(row, at_s, end_s)
            self._pace(at_s, end_s)

    def _next_s(self) -> float:
        come_s = (
            self._fleet.jobs[self._next_job].arrival_s if self._next_job < len(self._fleet.jobs) else np.inf
        )
        return min(come_s, self._agenda.next_s)

    def _happen(self, until_s: float, *, edge: bool = False) -> set[int]:
        """All that is due; the servers where GPUs may be idle now."""
        fleet, touched = self._fleet, set[int]()
        while self._next_job < len(fleet.jobs) and fleet.jobs[self._next_job].arrival_s <= until_s:
            fleet.comes(self._next_job)
            self._next_job += 1
            self._since.came = True
        for at_s, what, job in self._agenda.due(until_s):
            if what == END:
                touched.update(self._end(job, at_s))
            elif what == STAND:
                self._stand([job, *self._agenda.due_with(at_s, STAND)], at_s, edge=edge)
            elif what == CHANGE:
                self._change_speed(job, at_s)
            elif what == TRIED:
                self._tried(job, at_s)
            else:
                touched.update(self._written(job, at_s))
        return touched

    # --- decisions --------------------------------------------------------------------------------------------------

    def _goes_on(self, now_s: float) -> bool:
        """Whether there is nothing to decide about the quantum that begins."""
        if self._is_due():
            return False
        if not (self._policy.needs.every_quantum or self._turns.spanned):
            self._turns.take()
            return True
        onward = None
        if self._sequel is not None:
            self._since.now_s = now_s
            had = Had(self._fleet.owners, self._in_turn, self._since)
            onward = self._sequel.edge(self._quantum + 1, now_s, had)
        if onward is None:
            return False
        self._go_on(onward, now_s)
        return True

    def _is_due(self) -> bool:
        """Something has changed, and has waited for as long as it can."""
        told = self._sequel is None or not self._sequel.turnover  # else the sequel knows who came and ended
        changed = self._stale or (told and self._since.came)
        ended = told and bool(self._since.gone)
        if self._sequel is None:
            return changed or ended or self._stale_at_edge or self._learnt
        patience, quantum = self._patience, self._quantum
        return (
            (changed and not patience.changes(quantum))
            or (self._learnt and not patience.learnt(quantum))
            or (self._stale_at_edge and not patience.arrivals(quantum))
            or (ended and not patience.ends(quantum, self._busy()))
        )

    def _go_on(self, onward: Onward, now_s: float) -> None:
        if self._sequel is not None and self._sequel.turnover:
            self._since.told()
        if onward.homes:
            self._rehome_all(onward.homes, now_s)
        if onward.tickets:
            self._strides.weigh(onward.tickets)
        self._turns.plan(onward.turns)
        if onward.entitled is not None:
            self._series.entitled(onward.entitled, now_s)

    def _rehome_all(self, homes: Mapping[JobId, tuple[HostName, ...]], now_s: float) -> None:
        """At an edge."""
        fleet, ids = self._fleet, sorted(homes)
        jobs = np.array(ids, dtype=np.int64) - 1
        started = fleet.started[jobs].tolist()
        for _ in compress(ids, started):
            self._budget.take(now_s)
        if all(started) and self._moves_at_once():
            self._move_at_once(jobs, [fleet.servers.rows(homes[job]) for job in ids], now_s)
        else:
            for job_id in ids:
                self._rehome(job_id - 1, homes[job_id], now_s)
        self._settle_in(now_s)

    def _busy(self) -> int:
        """GPUs, of those that run."""
        return int(self._crew(self._run_now).gang.sum())

    def _in_turn(self) -> Floats:
        """GPUs of those that run, by owner."""
        crew = self._crew(self._run_now)
        gpus = np.bincount(crew.owner, weights=crew.gang, minlength=len(self._fleet.owners))
        return gpus.astype(np.float64, copy=False)

    def _decide(self, now_s: float) -> None:
        fleet = self._fleet
        self._stale = self._stale_at_edge = self._learnt = self._asks_at_once = False
        self._since.told()
        if self._policy.needs.every_quantum and self._policy.needs.progress:
            fleet.changed(self._run_now)  # they have attained more since
        # Asked in every quantum it would have made these moves in them.
        waited = self._patience.age(self._quantum) if self._sequel is not None else 0
        self._budget.hold(waited * self._quantum_s)
        facts = fleet.facts(now_s, movable=self._movable)
        snapshot = Snapshot(
            now_s=now_s,
            quantum_s=self._quantum_s,
            quantum=self._quantum + 1,
            hosts=fleet.servers.facts,
            jobs=facts,
            tickets={user: fleet.tickets[user] for user in fleet.users_here()},
            rates=self._measured.rates(),
            rates_within=self._measured.within(),
            interference=self._pairs.known(),
            speeds=self._measured_shapes.known(),
            slowdowns=self._gpus.known() if self._policy.needs.by_gpu else {},
            running=fleet.turn(),
            migrations_left=self._budget.left(now_s),
            more_to_come=self._next_job < len(fleet.jobs),
            seed=self._experiment.seed,
            profiling=self._experiment.profiling,
        )
        began_s = time.perf_counter()
        if self._sequel is not None:
            self._memory = self._sequel.memory()
        verdict = self._policy.decide(snapshot, self._memory)
        took_s = time.perf_counter() - began_s
        news = plans.check(snapshot, verdict.plan, self._policy.needs)
        self._asked.took(took_s)
        self._memory = verdict.memory
        self._sequel = verdict.sequel
        self._patience.decided(self._quantum)
        self._obey(verdict, news, now_s)

    def _obey(self, verdict: Verdict, news: Iterable[plans.Homed], now_s: float) -> None:
        fleet, plan = self._fleet, verdict.plan
        if not self._strides.kept and self._turns.leave_some(plan.turns):
            self._strides.keep()
        for facts, names in news:
            job, copies = facts.id - 1, plan.copies.get(facts.id, ())
            anew = copies and copies != fleet.copies.get(job) and job not in self._moving
            shape = plan.shapes.get(facts.id, facts.shape)
            reshaped = shape != facts.shape and job not in self._moving
            anew = anew or reshaped
            if names is None or (names == facts.hosts and not anew):
                continue
            if facts.started and (names != facts.hosts or reshaped):
                self._budget.take(now_s)
            self._rehome(job, names, now_s, copies, shape)
        self._strides.weigh(plan.tickets)
        self._told_trials(plan, now_s)
        for job_id, parts in plan.accumulation.items():
            fleet.accumulation[job_id - 1] = parts
            fleet.changed(job_id - 1)
        self._settle_in(now_s)
        self._turns.keep_in_step(plan.in_step)
        self._turns.plan(plan.turns)
        self._series.entitled(verdict.entitled, now_s)
        self._trades.extend(trade_row(made, now_s) for made in verdict.news)

    def _rehome(
        self,
        job: int,
        names: tuple[HostName, ...],
        now_s: float,
        copies: tuple[int, ...] = (),
        shape: Form | None = None,
    ) -> None:
        home = self._fleet.servers.rows(names)
        if self._fleet.started[job]:
            self._move(job, home, now_s, copies, shape)
        elif job not in self._moving:
            if self._fleet.running[job]:
                self._stop(job, now_s)  # it held GPUs while its process came up
            self._place(job, home, now_s, copies, shape)

    def _settle_in(self, now_s: float) -> None:
        """All homes are given: whose process is up at once takes part. Who has decided so need not be told."""
        if self._up:
            self._stand(self._up, now_s, edge=now_s <= self._edge_s)
            self._up.clear()
        self._stale = self._stale_at_edge = False

    def _told_trials(self, plan: Plan, now_s: float) -> None:
        if not (plan.trials or self._trials.any):
            return
        self._trials.told(plan.trials)
        here = [job_id - 1 for job_id in plan.trials if self._fleet.running[job_id - 1]]
        for job in here:
            self._charge_one(job, now_s)
        self._foresee_trials(here)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _result(self, cpu_s: float) -> Result:
        fleet = self._fleet
        began = np.where(fleet.first_s <= self._now_s, fleet.first_s, np.nan).tolist()
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
            ended_s=self._now_s,
            quanta=self._quanta,
            decisions=self._asked.times,
            decision_s_mean=self._asked.mean_s,
            decision_s_max=self._asked.longest_s,
            cpu_s=cpu_s,
            trades=tuple(self._trades),
        )


def _or_none(value: float) -> float | None:
    return None if isnan(value) else value
