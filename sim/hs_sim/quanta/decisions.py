"""When the policy is asked, about what, and what becomes of its verdict."""

import time
from collections.abc import Iterable, Mapping
from itertools import compress

import numpy as np

from hs_core import plan as plans
from hs_core.forms import Form
from hs_core.names import HostName, JobId
from hs_core.policy import Had, Memory, Onward, Plan, Sequel, Snapshot, Verdict
from hs_sim.quanta.charges import Charges
from hs_sim.quanta.foresight import Foresight
from hs_sim.quanta.lives import Lives
from hs_sim.quanta.rows import Floats
from hs_sim.quanta.state import State
from hs_sim.trades import trade_row


class Decisions:
    def __init__(self, state: State, charges: Charges, foresight: Foresight, lives: Lives) -> None:
        self._state = state
        self._budget = state.budget
        self._experiment = state.experiment
        self._fleet = state.fleet
        self._measured = state.measured
        self._moving = state.moving
        self._patience = state.patience
        self._policy = state.policy
        self._quantum_s = state.quantum_s
        self._series = state.series
        self._since = state.since
        self._strides = state.strides
        self._trials = state.trials
        self._turns = state.turns
        self._up = state.up
        self._charges = charges
        self._foresight = foresight
        self._lives = lives
        self._memory: Memory = {}
        self._sequel: Sequel | None = None  # of the last verdict, until something changes

    def goes_on(self, now_s: float) -> bool:
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
            onward = self._sequel.edge(self._state.quantum + 1, now_s, had)
        if onward is None:
            return False
        self._go_on(onward, now_s)
        return True

    def _is_due(self) -> bool:
        """Something has changed, and has waited for as long as it can."""
        told = self._sequel is None or not self._sequel.turnover  # else the sequel knows who came and ended
        changed = self._state.stale or (told and self._since.came)
        ended = told and bool(self._since.gone)
        if self._sequel is None:
            return changed or ended or self._state.stale_at_edge or self._state.learnt
        patience, quantum = self._patience, self._state.quantum
        return (
            (changed and not patience.changes(quantum))
            or (self._state.learnt and not patience.learnt(quantum))
            or (self._state.stale_at_edge and not patience.arrivals(quantum))
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
        if all(started) and self._lives.moves_at_once():
            self._lives.move_at_once(jobs, [fleet.servers.rows(homes[job]) for job in ids], now_s)
        else:
            for job_id in ids:
                self._rehome(job_id - 1, homes[job_id], now_s)
        self._settle_in(now_s)

    def _busy(self) -> int:
        """GPUs, of those that run."""
        return int(self._charges.crew(self._state.run_now).gang.sum())

    def _in_turn(self) -> Floats:
        """GPUs of those that run, by owner."""
        crew = self._charges.crew(self._state.run_now)
        gpus = np.bincount(crew.owner, weights=crew.gang, minlength=len(self._fleet.owners))
        return gpus.astype(np.float64, copy=False)

    def decide(self, now_s: float) -> None:
        fleet = self._fleet
        self._state.stale = self._state.stale_at_edge = self._state.learnt = self._state.asks_at_once = False
        self._since.told()
        if self._policy.needs.every_quantum and self._policy.needs.progress:
            fleet.changed(self._state.run_now)  # they have attained more since
        # Asked in every quantum it would have made these moves in them.
        waited = self._patience.age(self._state.quantum) if self._sequel is not None else 0
        self._budget.hold(waited * self._quantum_s)
        facts = fleet.facts(now_s, movable=self._state.movable)
        snapshot = Snapshot(
            now_s=now_s,
            quantum_s=self._quantum_s,
            quantum=self._state.quantum + 1,
            hosts=fleet.servers.facts,
            jobs=facts,
            tickets={user: fleet.tickets[user] for user in fleet.users_here()},
            rates=self._measured.rates(),
            rates_within=self._measured.within(),
            interference=self._state.pairs.known(),
            speeds=self._state.measured_shapes.known(),
            slowdowns=self._state.gpus.known() if self._policy.needs.by_gpu else {},
            running=fleet.turn(),
            migrations_left=self._budget.left(now_s),
            more_to_come=self._state.next_job < len(fleet.jobs),
            seed=self._experiment.seed,
            profiling=self._experiment.profiling,
        )
        began_s = time.perf_counter()
        if self._sequel is not None:
            self._memory = self._sequel.memory()
        verdict = self._policy.decide(snapshot, self._memory)
        took_s = time.perf_counter() - began_s
        news = plans.check(snapshot, verdict.plan, self._policy.needs)
        self._state.asked.took(took_s)
        self._memory = verdict.memory
        self._sequel = verdict.sequel
        self._patience.decided(self._state.quantum)
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
        self._state.trades.extend(trade_row(made, now_s) for made in verdict.news)

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
            self._lives.move(job, home, now_s, copies, shape)
        elif job not in self._moving:
            if self._fleet.running[job]:
                self._lives.stop(job, now_s)  # it held GPUs while its process came up
            self._lives.place(job, home, now_s, copies, shape)

    def _settle_in(self, now_s: float) -> None:
        """All homes are given: whose process is up at once takes part. Who has decided so need not be told."""
        if self._up:
            self._lives.stand(self._up, now_s, edge=now_s <= self._state.edge_s)
            self._up.clear()
        self._state.stale = self._state.stale_at_edge = False

    def _told_trials(self, plan: Plan, now_s: float) -> None:
        if not (plan.trials or self._trials.any):
            return
        self._trials.told(plan.trials)
        here = [job_id - 1 for job_id in plan.trials if self._fleet.running[job_id - 1]]
        for job in here:
            self._charges.charge_one(job, now_s)
        self._foresight.foresee_trials(here)
