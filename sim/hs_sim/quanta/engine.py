"""A run: decisions at their times, and between two of them every server's quanta at once.

What happens inside a quantum (a job ends or comes, a process stands, a checkpoint has arrived) is handled at its own time, one by one; all
else is arrays. Decisions are made when something changed, at once while few jobs are live and at the next edge of a quantum where there are many
(`PROMPT_JOBS`), and at every edge for policies that ask for it, unless their last verdict says how it goes on (`Verdict.sequel`). Left out of
this depth, and said in docs/simulator.md: messages and their delays, which GPU of a server a process is bound to, device memory, faults.
"""

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import chain
from math import floor

import numpy as np

from hs_core import plan as plans
from hs_core.cluster.budget import Budget
from hs_core.errors import BrokenError
from hs_core.model import JobId, Migrate, UserName
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Sequel, Snapshot, Verdict
from hs_sim.cluster import keep_to_what_runs
from hs_sim.garbage import rare_collections
from hs_sim.model import Experiment, JobOutcome, Result
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.ledger import Series
from hs_sim.quanta.pairs import Pairs
from hs_sim.quanta.profile import Measured
from hs_sim.quanta.rows import Bools, Floats, Ints, Rows
from hs_sim.quanta.stages import Stages
from hs_sim.quanta.turns import Turns
from hs_sim.trades import trade_row

PROMPT_JOBS = 2_000  # live ones up to which a change is decided about at once
APART_JOBS = 10_000  # for each so many a change waits for a quantum more, if its policy says how these go on
MANY = 1e9  # migrations an hour: as good as not limited
EPSILON_S = 1e-6  # two times closer than this are one
COME, END, STAND, WRITTEN, CHANGE = range(5)  # what happens inside quanta


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
    if policy is None:
        policy = find(experiment.policy, compat=experiment.compat, reset_s=experiment.workload.peer.reset_s)
    with rare_collections():
        return _Run(replace(experiment, workload=runs), policy, progress).run()


class _Run:
    def __init__(self, experiment: Experiment, policy: Policy, progress: Watch | None) -> None:
        self._experiment = experiment
        self._progress = progress
        self._policy = policy
        self._costs = experiment.costs
        self._quantum_s = experiment.quantum_s
        self._fleet = fleet = Fleet(experiment, mixed=policy.needs.mixed)
        count = len(fleet.jobs)
        self._rows = Rows(len(fleet.hosts), count)
        self._series = Series(fleet.users, fleet.models, experiment.sample_s)
        self._measured = Measured(
            fleet.pairs,
            fleet.rates.ravel(),
            experiment.noise.rate_cv,
            experiment.seed,
            known=experiment.known_rates,
        )
        self._memory: Memory = {}
        self._turns = Turns(fleet, rounds=experiment.rounds)
        self._moving: dict[int, tuple[int, ...]] = {}  # checkpoint under way → where to
        self._pairs = Pairs(fleet, self._turns, self._moving, experiment)
        self._stages = Stages(fleet, compat=experiment.compat)
        self._ran: Bools = np.zeros(count, dtype=np.bool_)  # at the end of the quantum before
        self._used: Ints = np.zeros(len(fleet.hosts), dtype=np.int64)  # GPUs, now
        self._run_now: Ints = np.empty(0, dtype=np.int64)
        self._copies: dict[int, tuple[int, ...]] = {}  # and with so many steps for each copy there
        self._tickets: Floats = np.ones(count)  # as last told
        self._movable: Bools = np.zeros(count, dtype=np.bool_)
        self._rising: dict[int, None] = {}  # placed, process not up yet
        self._up: list[int] = []  # placed, and nothing has to be waited for
        self._later: list[tuple[float, int, int]] = [  # (time, what, job or change)
            (change.at_s, CHANGE, at) for at, change in enumerate(experiment.workload.changes)
        ]
        heapify(self._later)
        self._next_job = 0
        self._stale = False  # something has changed that is decided about at once, or at the next edge …
        self._stale_at_edge = False  # … or at the next edge in any case
        self._sequel: Sequel | None = None  # of the last verdict, until something changes
        self._decided_at = 0  # quantum
        self._now_s = 0.0
        self._quantum = 0
        self._edge_s = 0.0
        self._ended = 0
        self._quanta = self._decisions = 0
        self._decision_s = self._decision_s_max = 0.0
        self._trades: list[dict[str, object]] = []
        self._budget = Budget(min(experiment.migrations_per_hour, MANY), None)

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
            if at_s >= end_s - EPSILON_S and self._later_kind(at_s) != END:
                return False  # a matter of the next edge
            self._now_s = at_s
            on_the_way = bool(self._moving or self._rising)
            touched = self._happen(at_s + EPSILON_S)
            if self._experiment.rounds and on_the_way and at_s < end_s - EPSILON_S:
                # Who moved to its GPUs of this round runs there as soon as it can, without another decision.
                self._turns.take()
                self._turn_now(at_s, end_s)
            if (
                self._stale
                and not self._experiment.rounds
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

    def _pace(self, now_s: float, end_s: float) -> None:
        """Who shares GPUs has changed: from now on they are as fast, and charged, as they are together."""
        if not self._pairs.any:
            return
        fleet = self._fleet
        for job, rate, charged in self._pairs.pace():
            one = np.array([job])
            if fleet.running[job]:
                self._charge(one, now_s)
            fleet.rate[job], fleet.charged[job] = rate, charged
            if fleet.running[job]:
                self._foresee(one, end_s)

    def _next_s(self) -> float:
        come_s = (
            self._fleet.jobs[self._next_job].arrival_s if self._next_job < len(self._fleet.jobs) else np.inf
        )
        return min(come_s, self._later[0][0] if self._later else np.inf)

    def _later_kind(self, at_s: float) -> int:
        return self._later[0][1] if self._later and self._later[0][0] <= at_s else COME

    def _happen(self, until_s: float, *, edge: bool = False) -> set[int]:
        """All that is due; the servers where GPUs may be idle now."""
        fleet, touched = self._fleet, set[int]()
        while self._next_job < len(fleet.jobs) and fleet.jobs[self._next_job].arrival_s <= until_s:
            fleet.live[self._next_job] = None
            self._next_job += 1
            self._stale = True
        while self._later and self._later[0][0] <= until_s:
            at_s, what, job = heappop(self._later)
            if what == END:
                touched.update(self._end(job, at_s))
            elif what == STAND:
                self._stand(job, at_s, edge=edge)
            elif what == CHANGE:
                self._change_speed(job, at_s)
            else:
                touched.update(self._written(job, at_s))
        return touched

    # --- what happens to a job --------------------------------------------------------------------------------------

    def _foresee(self, jobs: Ints, end_s: float) -> None:
        """Who ends in this quantum, and when."""
        fleet = self._fleet
        if not jobs.size:
            return
        with np.errstate(divide="ignore"):
            end = np.maximum(fleet.from_s[jobs], self._edge_s) + fleet.steps_left[jobs] / fleet.rate[jobs]
        for at in np.flatnonzero(end <= end_s + EPSILON_S).tolist():
            heappush(self._later, (float(min(end[at], end_s)), END, int(jobs[at])))

    def _end(self, job: int, now_s: float) -> tuple[int, ...]:
        fleet = self._fleet
        if not fleet.running[job]:
            return ()  # it was stopped before it got there
        self._charge(np.array([job]), now_s)
        if fleet.steps_left[job] > fleet.rate[job] * 2 * EPSILON_S:
            return ()  # it was held up on the way
        home = fleet.home[job]
        self._free(job)
        fleet.steps_left[job] = 0.0
        fleet.ended_s[job] = now_s
        if self._rows.row_of(job) >= 0:
            self._remove(job)
        self._turns.ends(job)
        fleet.copies.pop(job, None)
        del fleet.live[job]
        fleet.changed([job])
        self._ended += 1
        self._stale = True
        return home

    def _stand(self, job: int, now_s: float, *, edge: bool) -> None:
        """Its process is up: it takes part from now on, like a newcomer."""
        if job not in self._rising or now_s < self._fleet.ready_s[job] - EPSILON_S:
            return
        del self._rising[job]
        self._fleet.started[job] = True
        self._fleet.changed([job])
        migrate = self._fleet.jobs[job].migrate
        self._movable[job] = migrate is not Migrate.NEVER
        self._started(matters=migrate is not Migrate.AUTO)
        if self._rows.row_of(job) >= 0 and not self._rows.competes(job):
            left = 0.0 if edge else 1.0 - (now_s - self._edge_s) / self._quantum_s
            self._rows.begin(job, left)

    def _written(self, job: int, now_s: float) -> tuple[int, ...]:
        """A checkpoint is durable: the point of no return, it belongs to its new home."""
        fleet, costs = self._fleet, self._costs
        old, new = fleet.home[job], self._moving.pop(job)
        if fleet.running[job]:
            self._stop(job, now_s)
        carry = self._remove(job) if self._rows.row_of(job) >= 0 else None
        averaged = len(old) if job in fleet.copies else 1
        self._settle(job, new, now_s, self._copies.pop(job))
        fleet.migrations[job] += new != old
        bytes_ = float(fleet.state_bytes[job]) * averaged  # each of the new has them all
        self._rise(
            job, now_s + bytes_ / costs.network_bytes_per_s + bytes_ / costs.checkpoint_bytes_per_s, carry
        )
        self._started(matters=len(new) > 1)
        return old

    def _change_speed(self, at: int, now_s: float) -> None:
        change = self._experiment.workload.changes[at]
        running = self._run_now
        self._charge(running, now_s)
        self._fleet.change_speed(change.job_class, change.model, change.steps_per_s)
        self._measured.changed()
        self._foresee(running, (self._quantum + 1) * self._quantum_s)
        self._stale = True

    def _started(self, *, matters: bool) -> None:
        """A process has come up, or is gone to move. `matters`: to who does not need to know of every one, too."""
        self._stale = self._stale or self._policy.needs.starts
        self._stale_at_edge = self._stale_at_edge or matters

    def _stop(self, job: int, now_s: float) -> None:
        fleet = self._fleet
        self._charge_one(job, now_s)
        self._free(job)
        fleet.suspends[job] += 1
        fleet.changed([job])

    def _free(self, job: int) -> None:
        """It runs no more; GPUs that it shared are its partners' still."""
        fleet = self._fleet
        self._run_now = self._run_now[self._run_now != job]
        fleet.running[job] = False
        self._used[list(fleet.home[job])] -= fleet.per_node[job]
        for row, gpus in self._pairs.kept(job).items():
            self._used[row] += gpus

    def _remove(self, job: int) -> float:
        """From its server's stride; where the policy hands out all turns, that has nothing to carry."""
        return self._rows.remove(job, carries=bool(self._turns.local[self._rows.row_of(job)]))

    def _place(self, job: int, home: tuple[int, ...], now_s: float, copies: tuple[int, ...]) -> None:
        if self._rows.row_of(job) >= 0:
            self._remove(job)
        self._settle(job, home, now_s, copies)
        self._rise(job, now_s, None)

    def _settle(self, job: int, home: tuple[int, ...], now_s: float, copies: tuple[int, ...]) -> None:
        self._turns.leaves(job)
        self._fleet.settle(job, home, now_s, copies)
        self._turns.lives(job)

    def _rise(self, job: int, from_s: float, carry: float | None) -> None:
        """Its process is being started, ahead of its turn, from that time on."""
        fleet = self._fleet
        fleet.started[job] = False
        self._movable[job] = True
        fleet.ready_s[job] = from_s + self._costs.start_s
        fleet.changed([job])
        self._rising[job] = None
        if len(fleet.home[job]) == 1:
            self._rows.add(
                job,
                fleet.home[job][0],
                int(fleet.per_node[job]),
                float(self._tickets[job]),
                kin=fleet.jobs[job].user,
                carry=carry,
            )
        if fleet.ready_s[job] <= self._now_s:
            self._up.append(job)  # once its tickets are known
        else:
            heappush(self._later, (float(fleet.ready_s[job]), STAND, job))

    def _move(self, job: int, home: tuple[int, ...], now_s: float, copies: tuple[int, ...]) -> None:
        """Suspended through a checkpoint first; its GPUs are its own until that is written."""
        self._movable[job] = False
        self._copies[job] = copies
        self._moving[job] = home
        self._fleet.changed([job])
        write_s = float(self._fleet.state_bytes[job]) / self._costs.checkpoint_bytes_per_s
        if self._fleet.running[job]:
            self._charge_one(job, now_s)
            write_s += self._costs.suspend_s
            self._fleet.from_s[job] = np.inf  # it trains no more here
        if write_s <= 0:
            self._written(job, now_s)
            return
        heappush(self._later, (now_s + write_s, WRITTEN, job))

    # --- decisions --------------------------------------------------------------------------------------------------

    def _goes_on(self, now_s: float) -> bool:
        """Whether there is nothing to decide about the quantum that begins."""
        if (self._stale or self._stale_at_edge) and not self._waits():
            return False
        if not (self._policy.needs.every_quantum or self._turns.spanned):
            self._turns.take()
            return True
        onward = None
        if self._sequel is not None:
            onward = self._sequel.edge(self._quantum + 1, now_s, self._in_turn())
        if onward is None:
            return False
        if onward.tickets:
            self._weigh(onward.tickets)
        self._turns.plan(onward.turns)
        return True

    def _waits(self) -> bool:
        """Among very many jobs a change can wait for a few quanta: they do."""
        apart = len(self._fleet.live) // APART_JOBS
        return self._sequel is not None and self._quantum < self._decided_at + apart

    def _in_turn(self) -> dict[tuple[UserName, str], int]:
        """GPUs by user and model."""
        fleet, jobs = self._fleet, self._run_now
        models = len(fleet.models)
        gpus = np.bincount(fleet.user[jobs] * models + fleet.model[jobs], weights=fleet.gang[jobs])
        return {
            (fleet.users[at // models], fleet.models[at % models]): int(gpus[at])
            for at in np.flatnonzero(gpus).tolist()
        }

    def _decide(self, now_s: float) -> None:
        fleet = self._fleet
        self._stale = self._stale_at_edge = False
        if self._policy.needs.every_quantum and self._policy.needs.progress:
            fleet.changed(self._run_now)  # they have attained more since
        facts = fleet.facts(now_s, movable=self._movable)
        users = dict.fromkeys(fleet.user[list(fleet.live)].tolist())
        snapshot = Snapshot(
            now_s=now_s,
            quantum_s=self._quantum_s,
            quantum=self._quantum + 1,
            hosts=fleet.host_facts,
            jobs=facts,
            tickets={fleet.users[at]: fleet.tickets[fleet.users[at]] for at in sorted(users)},
            rates=self._measured.rates(),
            interference=self._pairs.known(),
            migrations_left=self._budget.left(now_s),
            more_to_come=self._next_job < len(fleet.jobs),
            seed=self._experiment.seed,
        )
        began_s = time.perf_counter()
        if self._sequel is not None:
            self._memory = self._sequel.memory()
        verdict = self._policy.decide(snapshot, self._memory)
        took_s = time.perf_counter() - began_s
        plans.check(snapshot, verdict.plan, self._policy.needs)
        self._decisions += 1
        self._decision_s += took_s
        self._decision_s_max = max(self._decision_s_max, took_s)
        self._memory = verdict.memory
        self._sequel, self._decided_at = verdict.sequel, self._quantum
        self._obey(verdict, snapshot, now_s)

    def _obey(self, verdict: Verdict, snapshot: Snapshot, now_s: float) -> None:
        fleet, plan = self._fleet, verdict.plan
        for facts in snapshot.jobs:
            names = plan.homes.get(facts.id)
            job, copies = facts.id - 1, plan.copies.get(facts.id, ())
            anew = copies and copies != fleet.copies.get(job) and job not in self._moving
            if names is None or (names == facts.hosts and not anew):
                continue
            home = tuple(fleet.row_of[name] for name in names)
            if facts.started:
                if names != facts.hosts:
                    self._budget.take(now_s)
                self._move(job, home, now_s, copies)
            elif job not in self._moving:
                self._place(job, home, now_s, copies)
        self._weigh(plan.tickets)
        for job_id, parts in plan.accumulation.items():
            fleet.accumulation[job_id - 1] = parts
            fleet.changed([job_id - 1])
        for job in self._up:
            self._stand(job, now_s, edge=now_s <= self._edge_s)
        self._up.clear()
        self._stale = self._stale_at_edge = False
        self._turns.plan(plan.turns)
        self._series.entitled(verdict.entitled, now_s)
        self._trades.extend(trade_row(news, now_s) for news in verdict.news)

    def _weigh(self, tickets: Mapping[JobId, Fraction]) -> None:
        jobs = np.fromiter((job - 1 for job in tickets), dtype=np.int64, count=len(tickets))
        values = np.fromiter(map(_as_float, tickets.values()), dtype=np.float64, count=len(tickets))
        self._tickets[jobs] = values
        here = self._rows.row[jobs] >= 0
        self._rows.set_tickets(jobs[here], values[here])

    # --- who runs ---------------------------------------------------------------------------------------------------

    def _edge(self, now_s: float) -> None:
        """A quantum begins: whole gangs first, then every server's stride, then who has no process on what is left."""
        fleet = self._fleet
        staying = [job for job in self._moving if fleet.running[job]]
        forced = self._ready_gangs(staying)
        held = np.array(sorted({*forced, *self._moving}), dtype=np.int64)
        gangs = np.array([*staying, *forced], dtype=np.int64)
        free = self.gpus_left(gangs)
        local = self._turns.local
        picks = self._rows.pick(np.where(local, free, 0), held) if local.any() else self._rows.rest()
        chosen = np.concatenate([gangs, picks])
        used = fleet.gpus - self.gpus_left(chosen)
        late = []
        for job in self._rising:
            row = fleet.home[job][0]
            if (
                job not in forced
                and len(fleet.home[job]) == 1
                and self._turns.local[row]
                and used[row] + fleet.per_node[job] <= fleet.gpus[row]
            ):
                used[row] += fleet.per_node[job]
                late.append(job)
        if late:
            self._rows.take(late)
            chosen = np.concatenate([chosen, np.array(late, dtype=np.int64)])
        self._used = used
        self._switch(chosen, now_s)

    def _ready_gangs(self, staying: list[int]) -> list[int]:
        """The turns' gangs that could run now, beside those that are still there."""
        fleet = self._fleet
        ready = [
            job
            for job in self._turns.gangs
            if job in fleet.live and job not in self._moving and fleet.home[job]
        ]
        if not staying:
            return ready
        left = self.gpus_left(np.array(staying, dtype=np.int64))
        fitting: list[int] = []
        for job in sorted(ready, key=self._pairs.guest):  # partners before their guests
            needed = self._needed(job, {*staying, *fitting})
            if all(left[row] >= gpus for row, gpus in needed.items()):
                for row, gpus in needed.items():
                    left[row] -= gpus
                fitting.append(job)
        return fitting

    def _needed(self, job: int, beside: Container[int]) -> dict[int, int]:
        """GPUs of its own on each of its servers, where those jobs run."""
        spared = self._pairs.spared(job, beside)
        return {row: int(self._fleet.per_node[job]) - spared.get(row, 0) for row in self._fleet.home[job]}

    def gpus_left(self, jobs: Ints) -> Ints:
        """On every server, beside these."""
        fleet = self._fleet
        left = fleet.gpus.copy()
        if not jobs.size:
            return left
        which, rows = self._parts(jobs)
        taken = np.bincount(rows, weights=fleet.per_node[jobs[which]], minlength=left.size)
        left -= taken.astype(np.int64)
        if self._pairs.any:
            there = set(jobs.tolist())
            for row, one, other, gpus in self._pairs.shares():
                if one in there and other in there:
                    left[row] += gpus
        if left.min(initial=0) < 0:
            row = int(left.argmin())
            raise BrokenError(
                f"{fleet.hosts[row]} would run {fleet.gpus[row] - left[row]} GPUs' worth of jobs"
            )
        return left

    def _switch(self, chosen: Ints, now_s: float) -> None:
        """From those who ran to those who run now; winners wait until losers have left."""
        fleet, costs = self._fleet, self._costs
        stays = np.zeros(len(fleet.jobs), dtype=np.bool_)
        stays[chosen] = True
        losers = self._run_now[~stays[self._run_now]]
        winners = chosen[~fleet.running[chosen]]
        if losers.size:
            self._leave(losers)
        if winners.size:
            which, rows = self._parts(winners)
            waits = np.zeros(winners.size, dtype=np.bool_)
            waits[which[self._crowded(losers)[rows]]] = True
            self._enter(winners, now_s + np.where(waits, costs.suspend_s, 0.0))
        self._run_now = chosen
        if losers.size or winners.size:
            fleet.changed(losers)
            fleet.changed(winners)

    def _crowded(self, losers: Ints) -> Bools:
        found = np.zeros(len(self._fleet.hosts), dtype=np.bool_)
        found[self._parts(losers)[1]] = True
        return found

    def _parts(self, jobs: Ints) -> tuple[Ints, Ints]:
        """Each part of these: whose, by place among them, and on which server."""
        rows = self._rows.row[jobs]
        small = np.flatnonzero(rows >= 0)
        several = np.flatnonzero(rows < 0)
        homes = [self._fleet.home[job] for job in jobs[several].tolist()]
        nodes = np.fromiter(map(len, homes), dtype=np.int64, count=len(homes))
        there = np.fromiter(chain.from_iterable(homes), dtype=np.int64, count=int(nodes.sum()))
        return np.concatenate([small, np.repeat(several, nodes)]), np.concatenate([rows[small], there])

    def _enter(self, jobs: Ints, at_s: Floats) -> None:
        fleet = self._fleet
        fleet.running[jobs] = True
        fleet.held_s[jobs] = at_s
        fleet.from_s[jobs] = np.maximum(at_s, fleet.ready_s[jobs]) + self._costs.resume_s
        if self._experiment.compat and self._quanta:
            self._lose_restart(jobs)
        first = np.isnan(fleet.first_s[jobs])
        fleet.first_s[jobs[first]] = fleet.from_s[jobs[first]]

    def _lose_restart(self, jobs: Ints) -> None:
        """Who did not run in the round before begins later, if it takes the whole round."""
        fleet, peer = self._fleet, self._experiment.workload.peer
        whole = fleet.steps_left[jobs] / fleet.rate[jobs] > self._quantum_s - peer.spared_s
        lost_s = np.where(whole & ~self._ran[jobs], peer.restart_s, 0.0)
        fleet.from_s[jobs] += lost_s
        fleet.held_s[jobs] += lost_s

    def _leave(self, jobs: Ints) -> None:
        """Its GPUs are its own until it has stopped."""
        fleet = self._fleet
        fleet.running[jobs] = False
        fleet.suspends[jobs] += 1
        self._receive(jobs, np.full(jobs.size, self._costs.suspend_s), np.zeros(jobs.size))

    def _fill(self, row: int, now_s: float, end_s: float) -> None:
        """GPUs of a server that are idle in the middle of a quantum."""
        fleet = self._fleet
        free = int(fleet.gpus[row] - self._used[row])
        if free <= 0 or not self._turns.local[row]:
            return
        busy = fleet.running
        if self._moving:
            busy = busy.copy()
            busy[list(self._moving)] = True
        waiting = [job for job in self._rising if fleet.home[job] == (row,)]
        chosen = self._rows.fill(
            row, free, max(1e-3, (self._edge_s + self._quantum_s - now_s) / self._quantum_s), busy, waiting
        )
        if not chosen:
            return
        jobs = np.array(chosen, dtype=np.int64)
        self._used[row] += int(fleet.per_node[jobs].sum())
        self._enter(jobs, np.full(jobs.size, now_s))
        self._run_now = np.concatenate([self._run_now, jobs])
        fleet.changed(chosen)
        self._foresee(jobs, end_s)

    def _turn_now(self, now_s: float, end_s: float) -> None:
        """Turns that leave nothing to a server's own stride begin when they are told; others at the next edge."""
        fleet = self._fleet
        rows = self._turns.whole()
        if not rows:
            return
        wanted = set(self._ready_gangs([job for job in self._moving if fleet.running[job]]))
        for job in self._run_now.tolist():
            if job not in wanted and job not in self._moving and not rows.isdisjoint(fleet.home[job]):
                self._stop(job, now_s)
        entering = [job for job in wanted if not fleet.running[job] and rows.issuperset(fleet.home[job])]
        for job in sorted(entering, key=lambda job: (self._pairs.guest(job), job)):
            needed = self._needed(job, set(self._run_now.tolist()) if self._pairs.any else ())
            if all(self._used[row] + gpus <= fleet.gpus[row] for row, gpus in needed.items()):
                for row, gpus in needed.items():
                    self._used[row] += gpus
                one = np.array([job])
                self._enter(one, np.array([now_s]))
                self._run_now = np.append(self._run_now, job)
                fleet.changed([job])
                self._foresee(one, end_s)

    # --- what they get ----------------------------------------------------------------------------------------------

    def _account(self, end_s: float) -> None:
        """The quantum is over: everybody who runs is charged, and reports its rate."""
        self._ran[:] = False
        self._ran[self._run_now] = True
        if not self._run_now.size:
            return
        fleet = self._fleet
        training = self._run_now[fleet.from_s[self._run_now] < end_s]
        self._charge(self._run_now, end_s)
        if training.size:
            alone = self._pairs.alone(training)
            pairs = fleet.class_of[alone] * len(fleet.models) + fleet.model[alone]
            pairs = np.concatenate([pairs, *self._pairs_of_copies(training)])
            if self._measured.report(pairs):
                self._stale = True
            if self._pairs.any and self._pairs.report(training.tolist()):
                self._stale = True
        if self._stages.ran(self._run_now.tolist()):
            self._stale = True

    def _pairs_of_copies(self, training: Ints) -> list[Ints]:
        """Classes with the faster models: each copy says how fast it is."""
        fleet = self._fleet
        found: list[Ints] = []
        if not fleet.copies:
            return found
        for job in fleet.copies.keys() & set(training.tolist()):
            models = set(fleet.model_of_row[list(fleet.home[job])].tolist()) - {int(fleet.model[job])}
            pairs = fleet.class_of[job] * len(fleet.models) + np.array(sorted(models), dtype=np.int64)
            found.append(pairs)
        return found

    def _charge(self, jobs: Ints, now_s: float) -> None:
        """Up to now, of what they have had since they were charged last."""
        fleet = self._fleet
        held_s = np.maximum(0.0, now_s - fleet.held_s[jobs])
        trained_s = np.maximum(0.0, now_s - fleet.from_s[jobs])
        steps = np.minimum(trained_s * fleet.rate[jobs], fleet.steps_left[jobs])
        if self._experiment.rounds:
            steps = np.floor(steps + EPSILON_S)  # a step that a round cuts off is done again
        fleet.steps_left[jobs] -= steps
        fleet.held_s[jobs] = np.maximum(fleet.held_s[jobs], now_s)
        fleet.from_s[jobs] = np.maximum(fleet.from_s[jobs], now_s)
        self._receive(jobs, held_s, steps)

    def _charge_one(self, job: int, now_s: float) -> None:
        if self._fleet.held_s[job] < now_s:
            self._charge(np.array([job]), now_s)

    def _receive(self, jobs: Ints, seconds: Floats, steps: Floats) -> None:
        fleet = self._fleet
        users = fleet.user[jobs]
        owner = users * len(fleet.models)
        if fleet.spread and fleet.spread.intersection(jobs.tolist()):
            gpu_s = seconds[:, None] * fleet.gpus_of(jobs)
            fleet.gpu_s[jobs] += gpu_s
            every = (owner[:, None] + np.arange(len(fleet.models))).ravel()
            self._series.received(every, gpu_s.ravel(), users, steps)
            return
        gpu_s = seconds * fleet.charged[jobs]
        models = fleet.model[jobs]
        fleet.gpu_s[jobs, models] += gpu_s
        self._series.received(owner + models, gpu_s, users, steps)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _result(self, cpu_s: float) -> Result:
        fleet = self._fleet
        outcomes = tuple(
            JobOutcome(
                id=job.id,
                user=job.user,
                gang=job.gang,
                arrival_s=job.arrival_s,
                started_s=_or_none(fleet.first_s[at]),
                ended_s=_or_none(fleet.ended_s[at]),
                steps=job.steps
                if not np.isnan(fleet.ended_s[at])
                else int(job.steps * (1.0 - fleet.steps_left[at] / fleet.steps[at])),
                gpu_s={
                    model: float(fleet.gpu_s[at, m])
                    for m, model in enumerate(fleet.models)
                    if fleet.gpu_s[at, m]
                },
                suspends=int(fleet.suspends[at]),
                migrations=int(fleet.migrations[at]),
            )
            for at, job in enumerate(fleet.jobs)
        )
        return Result(
            experiment=self._experiment,
            depth="quanta",
            jobs=outcomes,
            samples=self._series.samples(),
            ended_s=self._now_s,
            quanta=self._quanta,
            decisions=self._decisions,
            decision_s_mean=self._decision_s / self._decisions if self._decisions else 0.0,
            decision_s_max=self._decision_s_max,
            cpu_s=cpu_s,
            trades=tuple(self._trades),
        )


def _as_float(tickets: Fraction) -> float:
    return tickets.numerator / tickets.denominator


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
