"""What happens to a job of a run: it is placed, comes up, moves, stops, ends."""

from collections.abc import Sequence

import numpy as np

from hs_core.forms import Form
from hs_core.model import Migrate
from hs_sim.quanta.agenda import STAND, WRITTEN
from hs_sim.quanta.charges import Charges
from hs_sim.quanta.foresight import Foresight
from hs_sim.quanta.journey import Journey
from hs_sim.quanta.rows import Ints
from hs_sim.quanta.state import EPSILON_S, State


class Lives:
    def __init__(self, state: State, charges: Charges, foresight: Foresight) -> None:
        self._state = state
        self._agenda = state.agenda
        self._costs = state.costs
        self._fleet = state.fleet
        self._measured = state.measured
        self._movable = state.movable
        self._moving = state.moving
        self._pairs = state.pairs
        self._policy = state.policy
        self._quantum_s = state.quantum_s
        self._rising = state.rising
        self._rows = state.rows
        self._strides = state.strides
        self._trials = state.trials
        self._turns = state.turns
        self._charges = charges
        self._foresight = foresight

    def end(self, job: int, now_s: float) -> tuple[int, ...]:
        fleet = self._fleet
        if not fleet.running[job]:
            return ()  # it was stopped before it got there
        self._charges.charge_one(job, now_s)
        if fleet.steps_left[job] > fleet.rate[job] * 2 * EPSILON_S:
            return ()  # it was held up on the way
        home = fleet.home[job]
        self._free(job)
        self._strides.leaves(job)
        self._turns.ends(job)
        fleet.ends(job, now_s)
        if not fleet.live:
            self._state.series.entitled({}, now_s)  # and nothing is decided before somebody comes
        self._state.ended += 1
        self._state.since.ends(job)
        if not self._policy.needs.ends:  # else it is asked anyway
            self._state.stale |= any(map(self._idles_beside_gangs, home))
        return home

    def _idles_beside_gangs(self, row: int) -> bool:
        """As `ClusterMachine` has it."""
        own = self._rows.gang[row][self._rows.job[row] >= 0]
        return self._turns.has_parts(row) and bool(own.sum() < self._fleet.servers.gpus[row])

    def stand(self, jobs: Sequence[int], now_s: float, *, edge: bool) -> None:
        """Their processes are up: they take part from now on, like newcomers."""
        begin = [job for job in jobs if self._comes_up(job, now_s)]
        left = 0.0 if edge else 1.0 - (now_s - self._state.edge_s) / self._quantum_s
        self._rows.begin(begin, left)

    def _comes_up(self, job: int, now_s: float) -> bool:
        """Whether it competes on its server from now on."""
        if job not in self._rising or now_s < self._fleet.ready_s[job] - EPSILON_S:
            return False
        del self._rising[job]
        self._fleet.started[job] = True
        self._fleet.changed(job)
        self._state.asks_at_once |= self._policy.needs.copies
        migrate = self._fleet.jobs[job].migrate
        self._movable[job] = migrate is not Migrate.NEVER
        self._started(matters=migrate is not Migrate.AUTO)
        return self._rows.row_of(job) >= 0 and not self._rows.competes(job)

    def tried(self, job: int, now_s: float) -> None:
        """A profiling run has told what it was for, if it ran until now."""
        if not self._trials.over(job, now_s):
            return
        fleet = self._fleet
        self._charges.charge_one(job, now_s)
        fleet.changed(job)
        self._measured.learn(int(fleet.pair[job]))
        self._state.stale = self._state.asks_at_once = True

    def written(self, job: int, now_s: float) -> tuple[int, ...]:
        """A checkpoint is durable: the point of no return, it belongs to its new home."""
        fleet, costs = self._fleet, self._costs
        old, journey = fleet.home[job], self._moving.pop(job)
        new, shape = journey.home, journey.shape
        del fleet.going[job]
        if fleet.running[job]:
            self.stop(job, now_s)
        carry = self._strides.leaves(job)
        fleet.migrations[job] += new != old or shape != fleet.shapes.get(job)
        averaged = len(old) if job in fleet.copies else 1
        self._settle(job, new, now_s, journey.copies, shape)
        bytes_ = float(fleet.state_bytes[job]) * averaged  # each of the new has them all
        come_s = now_s + bytes_ / costs.network_bytes_per_s
        if new != old:
            fleet.settled_s[job] = come_s
        self._rise(job, come_s + bytes_ / costs.checkpoint_bytes_per_s, carry)
        self._started(matters=len(new) > 1)
        return old

    def change_speed(self, at: int, now_s: float) -> None:
        change = self._state.experiment.workload.changes[at]
        running = self._state.run_now
        self._charges.charge(running, now_s)
        self._fleet.change_speed(change.job_class, change.model, change.steps_per_s)
        self._measured.changed()
        self._foresight.foresee(running, (self._state.quantum + 1) * self._quantum_s)
        self._state.stale = True

    def _started(self, *, matters: bool) -> None:
        """A process has come up, or is gone to move. `matters`: to who does not need to know of every one, too."""
        self._state.stale = self._state.stale or self._policy.needs.starts
        self._state.stale_at_edge = self._state.stale_at_edge or matters

    def stop(self, job: int, now_s: float) -> None:
        fleet = self._fleet
        self._charges.charge_one(job, now_s)
        self._trials.stops([job])
        self._free(job)
        fleet.stops(np.array([job]))
        if fleet.first_s[job] > now_s:
            fleet.unseen(job)
        fleet.switched(job)

    def _free(self, job: int) -> None:
        """It runs no more; GPUs that it shared are its partners' still."""
        fleet = self._fleet
        self._state.run_now = self._state.run_now[self._state.run_now != job]
        fleet.running[job] = False
        for row in fleet.home[job]:
            self._state.used[row] -= fleet.per_node[job]
        for row, gpus in self._pairs.kept(job).items():
            self._state.used[row] += gpus

    def place(
        self, job: int, home: tuple[int, ...], now_s: float, copies: tuple[int, ...], shape: Form | None
    ) -> None:
        self._strides.leaves(job)
        self._settle(job, home, now_s, copies, shape)
        self._rise(job, now_s, None)

    def _settle(
        self, job: int, home: tuple[int, ...], now_s: float, copies: tuple[int, ...], shape: Form | None
    ) -> None:
        self._turns.leaves(job)
        self._fleet.settle(job, home, now_s, copies, shape)
        self._turns.lives(job)

    def _rise(self, job: int, from_s: float, carry: float | None) -> None:
        """Its process is being started, ahead of its turn, from that time on."""
        fleet = self._fleet
        fleet.started[job] = False
        self._movable[job] = True
        fleet.is_ready(job, from_s + self._costs.start_s + fleet.read(job) / self._costs.network_bytes_per_s)
        fleet.changed(job)
        self._rising[job] = None
        if len(fleet.home[job]) == 1:
            self._strides.comes(job, carry)
        if fleet.ready_s[job] <= self._state.now_s:
            self._state.up.append(job)  # once its tickets are known
        else:
            self._agenda.add(float(fleet.ready_s[job]), STAND, job)

    def move(
        self, job: int, home: tuple[int, ...], now_s: float, copies: tuple[int, ...], shape: Form | None
    ) -> None:
        """Suspended through a checkpoint first; its GPUs are its own until that is written."""
        self._movable[job] = False
        self._moving[job] = Journey(home=home, copies=copies, shape=shape)
        self._fleet.goes(job, home, shape)
        write_s = float(self._fleet.state_bytes[job]) / self._costs.checkpoint_bytes_per_s
        if self._fleet.running[job]:
            self._charges.charge_one(job, now_s)
            write_s += self._costs.suspend_s
            self._fleet.from_s[job] = np.inf  # it trains no more here
        if write_s <= 0:
            self.written(job, now_s)
            return
        self._agenda.add(now_s + write_s, WRITTEN, job)

    def moves_at_once(self) -> bool:
        """Moves take no time, and nothing but its home becomes another of who moves."""
        fleet = self._fleet
        odd = fleet.elastics or fleet.shapes or fleet.copies or self._moving or self._rising
        return self._state.moves_free and not (
            odd or self._trials.any or self._pairs.any or self._strides.kept
        )

    def move_at_once(self, jobs: Ints, homes: Sequence[tuple[int, ...]], now_s: float) -> None:
        """What `_move` of each, all of which have processes, comes to then. At an edge: what is in use is counted after it."""
        fleet = self._fleet
        ran = jobs[fleet.running[jobs]]
        fleet.running[ran] = False
        fleet.from_s[ran] = np.inf
        fleet.stops(ran)
        fleet.switched(ran)
        self._state.run_now = self._state.run_now[fleet.running[self._state.run_now]]
        single: dict[int, tuple[int, ...]] = {}
        for job, home in zip(jobs.tolist(), homes, strict=True):
            fleet.migrations[job] += home != fleet.home[job]
            if len(home) == len(fleet.home[job]) == 1:
                single[job] = home
                # In the order in which they come to their servers.
                self._strides.comes(job, self._strides.leaves(job))
            else:
                self._settle(job, home, now_s, (), None)
        fleet.settle_all(np.array([*single], dtype=np.int64), [*single.values()], now_s)
        fleet.is_ready(jobs, now_s)
