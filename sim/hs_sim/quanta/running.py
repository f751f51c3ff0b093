"""Who runs: whole gangs first, then every server's own stride, then who has no process yet, and the switch from those who ran."""

from collections.abc import Container, Iterable

import numpy as np

from hs_core.errors import BrokenError
from hs_sim.quanta.charges import Charges
from hs_sim.quanta.crew import Crew
from hs_sim.quanta.foresight import Foresight
from hs_sim.quanta.lives import Lives
from hs_sim.quanta.pairs import Share
from hs_sim.quanta.rows import Floats, Ints
from hs_sim.quanta.state import State

FEW = 4_096  # parts, those that are not there too: so many are looked at together


class Running:
    def __init__(self, state: State, charges: Charges, foresight: Foresight, lives: Lives) -> None:
        self._state = state
        self._clears_s = state.clears_s
        self._costs = state.costs
        self._fleet = state.fleet
        self._moving = state.moving
        self._pairs = state.pairs
        self._quantum_s = state.quantum_s
        self._rising = state.rising
        self._rows = state.rows
        self._trials = state.trials
        self._turns = state.turns
        self._charges = charges
        self._foresight = foresight
        self._lives = lives
        self._first_s = -np.inf  # the last time from which somebody trains who had not before

    def edge(self, now_s: float) -> None:
        """A quantum begins: whole gangs first, then every server's stride, then who has no process on what is left."""
        fleet = self._fleet
        staying = [job for job in self._moving if fleet.running[job]]
        forced = self._ready_gangs(staying)
        local = self._turns.local
        shared = np.count_nonzero(local) > 0  # of truths: sooner found than `any`
        odd = shared or staying or self._rising or self._pairs.any
        if not odd and np.array_equal(forced, self._state.run_now):  # all run on where they do
            self._rows.rest()
            return
        gangs = np.concatenate([np.array(staying, dtype=np.int64), forced]) if staying else forced
        free = self.gpus_left(gangs)
        if shared:
            held = np.concatenate([forced, np.array(list(self._moving), dtype=np.int64)])
            picks = self._rows.pick(free * local, held)
            chosen, free = np.concatenate([gangs, picks]), free - self._rows.handed
        else:
            self._rows.rest()
            chosen = gangs
        used = fleet.servers.gpus - (self.gpus_left(chosen) if self._pairs.any else free)
        late = []
        whole = set(forced.tolist()) if self._rising else ()
        for job in self._rising:
            row = fleet.home[job][0]
            if (
                job not in whole
                and len(fleet.home[job]) == 1
                and self._turns.local[row]
                and not self._rows.competes(job)  # else it was picked, or does not fit
                and used[row] + fleet.per_node[job] <= fleet.servers.gpus[row]
            ):
                used[row] += fleet.per_node[job]
                late.append(job)
        if late:
            if (
                self._state.strides.kept
            ):  # else no turn was told yet, and nobody is there to be charged with them
                self._rows.take(late)
            chosen = np.concatenate([chosen, np.array(late, dtype=np.int64)])
        self._state.used = used
        self._switch(chosen, now_s)

    def _ready_gangs(self, staying: list[int]) -> Ints:
        """The turns' gangs that could run now, beside those that are still there."""
        fleet = self._fleet
        told = self._turns.gangs  # they have homes
        ready = told[np.isnan(fleet.ended_s[told])]
        if self._moving:
            ready = ready[[job not in self._moving for job in ready.tolist()]]
        if self._rising:
            ready = ready[[not self._comes_up_beside(job) for job in ready.tolist()]]
        if not staying:
            return ready
        left = self.gpus_left(np.array(staying, dtype=np.int64))
        fitting: list[int] = []
        for job in sorted(ready.tolist(), key=self._pairs.guest):  # partners before their guests
            needed = self._needed(job, {*staying, *fitting})
            if all(left[row] >= gpus for row, gpus in needed.items()):
                for row, gpus in needed.items():
                    left[row] -= gpus
                fitting.append(job)
        return np.array(fitting, dtype=np.int64)

    def _comes_up_beside(self, job: int) -> bool:
        """It has no process yet, and its server's own stride has others use its GPUs until it has."""
        home = self._fleet.home[job]
        return job in self._rising and len(home) == 1 and bool(self._turns.local[home[0]])

    def _needed(self, job: int, beside: Container[int]) -> dict[int, int]:
        """GPUs of its own on each of its servers, where those jobs run."""
        spared = self._pairs.spared(job, beside)
        return {row: int(self._fleet.per_node[job]) - spared.get(row, 0) for row in self._fleet.home[job]}

    def gpus_left(self, jobs: Ints) -> Ints:
        """On every server, beside these."""
        fleet = self._fleet
        if not jobs.size:
            return fleet.servers.gpus.copy()
        shared: list[Share] = []
        if self._pairs.any:
            there = set(jobs.tolist())
            shared = [share for share in self._pairs.shares() if share[1] in there and share[2] in there]
        return self._less(jobs, shared)

    def _less(self, jobs: Ints, shared: Iterable[Share]) -> Ints:
        """Without those jobs' GPUs, some of which two of them share. Raises BrokenError if there are not so many."""
        fleet = self._fleet
        which, rows = self._parts(jobs)
        # Whole numbers: they add up the same in any order.
        taken = np.bincount(rows, weights=fleet.per_node[jobs[which]], minlength=len(fleet.servers))
        left: Ints = fleet.servers.gpus - taken.astype(np.int64)
        for row, _, _, gpus in shared:
            left[row] += gpus
        if np.minimum.reduce(left) < 0:
            row = int(left.argmin())
            raise BrokenError(
                f"{fleet.servers.names[row]} would run {fleet.servers.gpus[row] - left[row]} GPUs' worth of jobs"
            )
        return left

    def _switch(self, chosen: Ints, now_s: float) -> None:
        """From those who ran to those who run now; winners wait until losers have left."""
        fleet = self._fleet
        stays = np.zeros(len(fleet.jobs), dtype=np.bool_)
        stays[chosen] = True
        lose = ~stays[self._state.run_now]
        crew = Crew(fleet, chosen)
        winners = crew.only(~fleet.running[chosen])
        if np.count_nonzero(lose):
            losers = self._charges.crew(self._state.run_now).only(lose)
            self._leave(losers, now_s)
            fleet.switched(losers.jobs)
        if winners.jobs.size:
            self._enter(winners, now_s)
            fleet.switched(winners.jobs)
        self._state.run_now, self._state.runs = chosen, crew

    def _parts(self, jobs: Ints) -> tuple[Ints, Ints]:
        """Each part of these, node rank by node rank: whose, by place among them, and on which server."""
        if len(self._fleet.rows_of) * jobs.size <= FEW:
            servers = self._fleet.rows_of[:, jobs]
            there = servers >= 0
            return there.nonzero()[1], servers[there].astype(np.int64)
        first, *others = self._fleet.rows_of
        which = np.arange(jobs.size, dtype=np.int64)
        of, on = [which], [first[jobs]]  # they have homes
        which = which[self._fleet.wide[jobs]]
        for servers in others:  # most jobs have one node
            rows = servers[jobs[which]]
            there = rows >= 0
            which = which[there]
            if not which.size:
                break
            of.append(which)
            on.append(rows[there])
        return (of[0], on[0]) if len(of) == 1 else (np.concatenate(of), np.concatenate(on))

    def _enter(self, crew: Crew, now_s: float) -> None:
        fleet, jobs = self._fleet, crew.jobs
        fleet.running[jobs] = True
        fleet.held_s[jobs] = begin_s = self._clear_s(crew, now_s)
        fleet.from_s[jobs] = begin_s + self._costs.resume_s
        raw = fleet.raw[jobs]
        some = jobs[raw]
        if some.size:
            up_s = begin_s[raw] if isinstance(begin_s, np.ndarray) else begin_s
            ready_s = fleet.ready_s[some]
            fleet.from_s[some] = np.maximum(up_s, ready_s) + self._costs.resume_s
            fleet.raw[some] = ready_s > now_s
        if self._state.loses_restarts and self._state.quanta:
            self._lose_restart(jobs)
        new = some[np.isnan(fleet.first_s[some])]
        if new.size:
            fleet.first_s[new] = first_s = fleet.from_s[new]
            self._first_s = max(self._first_s, float(first_s.max()))
        if self._trials.any:
            self._foresight.foresee_trials(jobs.tolist())

    def _clear_s(self, crew: Crew, now_s: float) -> Floats | float:
        """When those who left their servers have stopped, and they can begin there."""
        if not np.count_nonzero(self._clears_s > now_s):
            return now_s
        found: Floats = np.maximum(self._clears_s[crew.first], now_s)
        if crew.wide.size:
            which, rows = self._parts(crew.jobs[crew.wide])
            np.maximum.at(found, crew.wide[which], self._clears_s[rows])
        return found

    def _lose_restart(self, jobs: Ints) -> None:
        """Who did not run in the round before begins later, if it takes the whole round."""
        fleet, peer = self._fleet, self._state.experiment.workload.peer
        whole = fleet.steps_left[jobs] / fleet.rate[jobs] > self._quantum_s - peer.spared_s
        lost_s = np.where(whole & ~self._state.ran[jobs], peer.restart_s, 0.0)
        fleet.from_s[jobs] += lost_s
        fleet.held_s[jobs] += lost_s

    def _leave(self, crew: Crew, now_s: float) -> None:
        """Its GPUs are its own until it has stopped."""
        fleet, jobs = self._fleet, crew.jobs
        if self._trials.any:
            self._trials.stops(jobs.tolist())
        fleet.running[jobs] = False
        fleet.stops(jobs)
        if self._first_s > self._state.now_s:
            fleet.unseen(jobs[fleet.first_s[jobs] > self._state.now_s])
        if self._costs.suspend_s:
            self._charges.receive(crew, self._costs.suspend_s)
            clear_s = now_s + self._costs.suspend_s
            self._clears_s[crew.first] = clear_s
            if crew.wide.size:
                self._clears_s[self._parts(jobs[crew.wide])[1]] = clear_s

    def fill(self, row: int, now_s: float, end_s: float) -> None:
        """GPUs of a server that are idle in the middle of a quantum."""
        fleet = self._fleet
        free = int(fleet.servers.gpus[row] - self._state.used[row])
        if free <= 0 or not self._turns.local[row]:
            return
        busy = fleet.running
        if self._moving:
            busy = busy.copy()
            busy[list(self._moving)] = True
        waiting = [job for job in self._rising if fleet.home[job] == (row,) and not self._rows.competes(job)]
        chosen = self._rows.fill(
            row,
            free,
            max(1e-3, (self._state.edge_s + self._quantum_s - now_s) / self._quantum_s),
            busy,
            waiting,
        )
        if not chosen:
            return
        jobs = np.array(chosen, dtype=np.int64)
        self._state.used[row] += int(fleet.per_node[jobs].sum())
        self._enter(Crew(fleet, jobs), now_s)
        self._state.run_now = np.concatenate([self._state.run_now, jobs])
        fleet.switched(chosen)
        self._foresight.foresee(jobs, end_s)

    def turn_now(self, now_s: float, end_s: float) -> None:
        """Turns that leave nothing to a server's own stride begin when they are told; others at the next edge."""
        fleet = self._fleet
        rows = self._turns.whole()
        if not rows:
            return
        wanted = set(self._ready_gangs([job for job in self._moving if fleet.running[job]]).tolist())
        for job in self._state.run_now.tolist():
            if job not in wanted and job not in self._moving and not rows.isdisjoint(fleet.home[job]):
                self._lives.stop(job, now_s)
        entering = [job for job in wanted if not fleet.running[job] and rows.issuperset(fleet.home[job])]
        for job in sorted(entering, key=lambda job: (self._pairs.guest(job), job)):
            needed = self._needed(job, set(self._state.run_now.tolist()) if self._pairs.any else ())
            if all(self._state.used[row] + gpus <= fleet.servers.gpus[row] for row, gpus in needed.items()):
                for row, gpus in needed.items():
                    self._state.used[row] += gpus
                one = np.array([job])
                self._enter(Crew(fleet, one), now_s)
                self._state.run_now = np.append(self._state.run_now, job)
                fleet.switched(job)
                self._foresight.foresee(one, end_s)
