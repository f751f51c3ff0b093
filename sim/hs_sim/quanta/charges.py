"""What jobs get: time on GPUs, for which they are charged, and steps."""

from math import floor

import numpy as np

from hs_sim.quanta.crew import Crew
from hs_sim.quanta.rows import Floats, Ints
from hs_sim.quanta.state import EPSILON_S, State


class Charges:
    def __init__(self, state: State) -> None:
        self._state = state
        self._experiment = state.experiment
        self._fleet = state.fleet
        self._measured = state.measured
        self._pairs = state.pairs
        self._ran = state.ran
        self._series = state.series
        self._stages = state.stages

    def account(self, end_s: float) -> None:
        """The quantum is over: everybody who runs is charged, and reports its rate."""
        if self._state.loses_restarts:
            self._ran[:] = False
            self._ran[self._state.run_now] = True
        if not self._state.run_now.size:
            return
        fleet = self._fleet
        reports = not self._measured.settled or fleet.elastics.unsure or fleet.elastics or self._pairs.any
        training = (
            self._state.run_now[fleet.from_s[self._state.run_now] < end_s]
            if reports
            else self._state.run_now[:0]
        )
        self.charge(self._state.run_now, end_s)
        if training.size:
            self._report(training)
        if self._stages.any and self._stages.ran(self._state.run_now.tolist()):
            self._state.stale = True

    def _report(self, training: Ints) -> None:
        fleet = self._fleet
        alone = self._pairs.alone(training)
        if fleet.elastics.unsure:
            fleet.learn_noise(fleet.elastics.unsure.intersection(training.tolist()))
        if elastic := fleet.elastics.among(alone.tolist()) if fleet.elastics else ():
            self._state.stale |= self._state.measured_shapes.report(elastic)
            alone = np.setdiff1d(alone, [job for job in elastic if job in fleet.shapes])
        pairs = fleet.pair[alone]
        if fleet.copies:
            pairs = np.concatenate([pairs, *self._pairs_of_copies(training)])
        self._state.learnt |= self._measured.report(pairs)
        if self._pairs.any and self._pairs.report(training.tolist()):
            self._state.stale = True

    def _pairs_of_copies(self, training: Ints) -> list[Ints]:
        """Classes with the faster models: each copy says how fast it is."""
        fleet = self._fleet
        found: list[Ints] = []
        for job in fleet.copies.keys() & set(training.tolist()):
            models = set(fleet.servers.model[list(fleet.home[job])].tolist()) - {int(fleet.model[job])}
            pairs = fleet.class_of[job] * len(fleet.servers.models) + np.array(sorted(models), dtype=np.int64)
            found.append(pairs)
        return found

    def charge(self, jobs: Ints, now_s: float) -> None:
        """Up to now, of what they have had since they were charged last."""
        fleet = self._fleet
        held_from_s, from_s, left = fleet.held_s[jobs], fleet.from_s[jobs], fleet.steps_left[jobs]
        steps = np.minimum(np.maximum(0.0, now_s - from_s) * fleet.rate[jobs], left)
        if self._experiment.rounds:
            steps = np.floor(steps + EPSILON_S)  # a step that a round cuts off is done again
        fleet.steps_left[jobs] = left - steps
        fleet.held_s[jobs] = np.maximum(held_from_s, now_s)
        fleet.from_s[jobs] = np.maximum(from_s, now_s)
        self.receive(self.crew(jobs), np.maximum(0.0, now_s - held_from_s), steps)

    def crew(self, jobs: Ints) -> Crew:
        if not self._state.runs.stands(jobs):
            crew = Crew(self._fleet, jobs)
            if jobs is not self._state.run_now:
                return crew
            self._state.runs = crew
        return self._state.runs

    def charge_one(self, job: int, now_s: float) -> None:
        fleet, held_from_s = self._fleet, float(self._fleet.held_s[job])
        if held_from_s >= now_s:
            return
        if job in fleet.spread:
            self.charge(np.array([job]), now_s)
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

    def receive(self, crew: Crew, seconds: Floats | float, steps: Floats | None = None) -> None:
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
