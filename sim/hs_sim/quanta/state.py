"""What a run has, and what jobs get of it: time on GPUs, charged, and steps."""

from collections.abc import Iterable
from math import floor, isinf

import numpy as np

from hs_core.cluster.budget import Budget
from hs_core.policy import Memory, Policy, Sequel
from hs_sim.model import Experiment
from hs_sim.quanta.agenda import END, TRIED, Agenda
from hs_sim.quanta.asked import Asked
from hs_sim.quanta.crew import Crew
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.gpus import Gpus
from hs_sim.quanta.journey import Journey
from hs_sim.quanta.ledger import Series
from hs_sim.quanta.pairs import Pairs
from hs_sim.quanta.patience import Patience
from hs_sim.quanta.profile import Measured
from hs_sim.quanta.rows import Bools, Floats, Ints
from hs_sim.quanta.shapes import Shapes
from hs_sim.quanta.since import Since
from hs_sim.quanta.stages import Stages
from hs_sim.quanta.strides import Strides
from hs_sim.quanta.trials import Trials
from hs_sim.quanta.turns import Turns

MANY = 1e9  # migrations an hour: as good as not limited
EPSILON_S = 1e-6  # two times closer than this are one
NEAR = 16  # quanta for which it is known whose ends are too far away


class State:
    def __init__(self, experiment: Experiment, policy: Policy) -> None:
        self._experiment = experiment
        self._policy = policy
        self._costs = experiment.costs
        self._quantum_s = experiment.quantum_s
        self._fleet = Fleet(experiment, mixed=policy.needs.mixed, progress=policy.needs.progress)
        self._turns = Turns(self._fleet, rounds=experiment.rounds)
        self._strides = Strides(self._fleet, self._turns)
        self._rows = self._strides.rows
        self._agenda = Agenda(experiment.workload.changes)
        self._under_way()
        self._on_gpus()
        self._what_is_measured()
        self._about_the_policy()
        self._clock()

    def _under_way(self) -> None:
        """Jobs between two homes, and between being placed and being up."""
        fleet, costs = self._fleet, self._costs
        self._moving: dict[int, Journey] = {}  # their checkpoints are under way
        self._rising: dict[int, None] = {}  # placed, process not up yet
        self._up: list[int] = []  # placed, and nothing has to be waited for
        self._movable: Bools = np.zeros(len(fleet.jobs), dtype=np.bool_)
        # To go elsewhere takes no time: what is on its way has arrived.
        self._moves_free = (
            costs.suspend_s == costs.start_s == 0
            and isinf(costs.checkpoint_bytes_per_s)
            and isinf(costs.network_bytes_per_s)
            and not self._policy.needs.copies
            and not any(job.dataset for job in fleet.jobs)
        )

    def _on_gpus(self) -> None:
        """Who runs now, beside whom, and what of servers that takes."""
        fleet, experiment = self._fleet, self._experiment
        self._run_now: Ints = np.empty(0, dtype=np.int64)
        self._runs = Crew(fleet, self._run_now)  # what was asked of them last
        self._used: Ints = np.zeros(len(fleet.servers), dtype=np.int64)  # GPUs, now
        # By then who left a server at an edge has stopped.
        self._clears_s: Floats = np.zeros(len(fleet.servers))
        self._pairs = Pairs(fleet, self._turns, self._moving, experiment)
        self._gpus = Gpus(fleet, self._turns, self._moving, experiment)
        self._stages = Stages(fleet, compat=experiment.compat)
        self._loses_restarts = experiment.compat and experiment.workload.peer.restart_s > 0
        # At the end of the round before, where that matters.
        self._ran: Bools = np.zeros(len(fleet.jobs), dtype=np.bool_)
        # Somewhere, or beside some other, a job may make no progress.
        self._some_stand = bool(
            experiment.workload.changes
            or (fleet.classes.rates <= 0).any()
            or fleet.elastics
            or self._policy.needs.sharing
        )
        self._first_s = -np.inf  # the last time from which somebody trains who had not before
        self._near_s = -np.inf  # who ends until then is known to be near

    def _what_is_measured(self) -> None:
        fleet, experiment = self._fleet, self._experiment
        self._series = Series(fleet.users, fleet.owners, experiment.sample_s)
        self._measured = Measured(
            fleet.classes.pairs,
            fleet.classes.rates.ravel(),
            experiment.noise.rate_cv,
            experiment.seed,
            known=experiment.known_rates,
        )
        self._measured_shapes = Shapes(fleet, known=experiment.known_rates)
        self._trials = Trials(fleet, self._quantum_s)

    def _about_the_policy(self) -> None:
        """What it remembers and may do, and what has come up since it was asked."""
        self._memory: Memory = {}
        self._sequel: Sequel | None = None  # of the last verdict, until something changes
        self._budget = Budget(min(self._experiment.migrations_per_hour, MANY), None)
        self._since = Since(self._fleet, self._budget, self._moving, self._rising)
        self._patience = Patience(self._fleet, self._since)
        self._stale = False  # something has changed that is decided about at once, or at the next edge …
        self._stale_at_edge = False  # … or at the next edge in any case
        self._learnt = False  # rates have become known
        self._asks_at_once = False  # asked also within rounds: a profiling run is over, or a job has come up that is to be forked
        self._asked = Asked()
        self._trades: list[dict[str, object]] = []

    def _clock(self) -> None:
        self._now_s = 0.0
        self._edge_s = 0.0
        self._quantum = 0
        self._quanta = 0
        self._next_job = 0  # of the workload, to come
        self._ended = 0

    def _account(self, end_s: float) -> None:
        """The quantum is over: everybody who runs is charged, and reports its rate."""
        if self._loses_restarts:
            self._ran[:] = False
            self._ran[self._run_now] = True
        if not self._run_now.size:
            return
        fleet = self._fleet
        reports = not self._measured.settled or fleet.elastics.unsure or fleet.elastics or self._pairs.any
        training = self._run_now[fleet.from_s[self._run_now] < end_s] if reports else self._run_now[:0]
        self._charge(self._run_now, end_s)
        if training.size:
            self._report(training)
        if self._stages.any and self._stages.ran(self._run_now.tolist()):
            self._stale = True

    def _report(self, training: Ints) -> None:
        fleet = self._fleet
        alone = self._pairs.alone(training)
        if fleet.elastics.unsure:
            fleet.learn_noise(fleet.elastics.unsure.intersection(training.tolist()))
        if elastic := fleet.elastics.among(alone.tolist()) if fleet.elastics else ():
            self._stale |= self._measured_shapes.report(elastic)
            alone = np.setdiff1d(alone, [job for job in elastic if job in fleet.shapes])
        pairs = fleet.pair[alone]
        if fleet.copies:
            pairs = np.concatenate([pairs, *self._pairs_of_copies(training)])
        self._learnt |= self._measured.report(pairs)
        if self._pairs.any and self._pairs.report(training.tolist()):
            self._stale = True

    def _pairs_of_copies(self, training: Ints) -> list[Ints]:
        """Classes with the faster models: each copy says how fast it is."""
        fleet = self._fleet
        found: list[Ints] = []
        for job in fleet.copies.keys() & set(training.tolist()):
            models = set(fleet.servers.model[list(fleet.home[job])].tolist()) - {int(fleet.model[job])}
            pairs = fleet.class_of[job] * len(fleet.servers.models) + np.array(sorted(models), dtype=np.int64)
            found.append(pairs)
        return found

    def _charge(self, jobs: Ints, now_s: float) -> None:
        """Up to now, of what they have had since they were charged last."""
        fleet = self._fleet
        held_from_s, from_s, left = fleet.held_s[jobs], fleet.from_s[jobs], fleet.steps_left[jobs]
        steps = np.minimum(np.maximum(0.0, now_s - from_s) * fleet.rate[jobs], left)
        if self._experiment.rounds:
            steps = np.floor(steps + EPSILON_S)  # a step that a round cuts off is done again
        fleet.steps_left[jobs] = left - steps
        fleet.held_s[jobs] = np.maximum(held_from_s, now_s)
        fleet.from_s[jobs] = np.maximum(from_s, now_s)
        self._receive(self._crew(jobs), np.maximum(0.0, now_s - held_from_s), steps)

    def _crew(self, jobs: Ints) -> Crew:
        if not self._runs.stands(jobs):
            crew = Crew(self._fleet, jobs)
            if jobs is not self._run_now:
                return crew
            self._runs = crew
        return self._runs

    def _charge_one(self, job: int, now_s: float) -> None:
        fleet, held_from_s = self._fleet, float(self._fleet.held_s[job])
        if held_from_s >= now_s:
            return
        if job in fleet.spread:
            self._charge(np.array([job]), now_s)
            return
        left, from_s = float(fleet.steps_left[job]), float(fleet.from_s[job])
        steps = min(max(0.0, now_s - from_s) * float(fleet.rate[job]), left)
        if self._experiment.rounds:
            steps = float(floor(steps + EPSILON_S))  # a step that a round cuts off is done again
        fleet.steps_left[job] = left - steps
        fleet.held_s[job], fleet.from_s[job] = now_s, max(from_s, now_s)
        gpu_s = (now_s - held_from_s) * float(fleet.charged[job])
        fleet.had[job] += gpu_s
        self._series.received_by_one(int(fleet.owner[job]), gpu_s, int(fleet.user[job]), steps)

    def _receive(self, crew: Crew, seconds: Floats | float, steps: Floats | None = None) -> None:
        """`seconds`: of each, or of all. `steps`: None if they did none."""
        fleet, jobs = self._fleet, crew.jobs
        users = crew.user
        if fleet.spread and fleet.spread.intersection(jobs.tolist()):
            models = len(fleet.servers.models)
            each = np.broadcast_to(np.asarray(seconds, dtype=np.float64), jobs.shape)
            gpu_s: Floats = each[:, None] * fleet.gpus_of(jobs)
            fleet.receive(jobs, gpu_s)
            every = (users[:, None] * models + np.arange(models)).ravel()
            self._series.received(every, gpu_s.ravel(), users, steps)
            return
        gpu_s = seconds * crew.charged
        fleet.had[jobs] += gpu_s  # each job is there once
        self._series.received(crew.owner, gpu_s, users, steps)

    def _foresee(self, jobs: Ints, end_s: float) -> None:
        """Who ends in this quantum, and when."""
        fleet = self._fleet
        if end_s > self._near_s:
            self._near_s = end_s + NEAR * self._quantum_s
            fleet.foresee(self._near_s - self._edge_s + self._quantum_s)
        jobs = jobs[fleet.near[jobs]]
        if not jobs.size:
            return
        rate = fleet.rate[jobs]
        if self._some_stand:
            rate = np.where(rate > 0, rate, np.nan)  # of who makes no progress nobody knows an end
        end = np.maximum(fleet.from_s[jobs], self._edge_s) + fleet.steps_left[jobs] / rate
        for at in (end <= end_s + EPSILON_S).nonzero()[0].tolist():
            self._agenda.add(float(min(end[at], end_s)), END, int(jobs[at]))

    def _foresee_trials(self, jobs: Iterable[int]) -> None:
        for at_s, job in self._trials.due(jobs):
            self._agenda.add(at_s, TRIED, job)

    def _pace(self, now_s: float, end_s: float) -> None:
        """Who has which GPUs has changed, or who shares them: from now on they are as fast, and charged, as they are there and together."""
        if self._gpus.any:
            self._seat(now_s, end_s)
        if not self._pairs.any:
            return
        fleet = self._fleet
        for job, rate, charged in self._pairs.pace():
            one = np.array([job])
            if fleet.running[job]:
                self._charge(one, now_s)
            fleet.pays(job, rate, charged)
            if fleet.running[job]:
                self._foresee(one, end_s)

    def _seat(self, now_s: float, end_s: float) -> None:
        fleet = self._fleet
        for job, times, lost_s in self._gpus.seat(self._run_now.tolist()):
            one = np.array([job])
            self._charge(one, now_s)
            fleet.slow(job, times)
            fleet.from_s[job] = max(float(fleet.from_s[job]), now_s) + lost_s
            self._foresee(one, end_s)
