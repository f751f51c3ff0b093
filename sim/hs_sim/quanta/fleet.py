"""Everything there is, as arrays: one place a job of the workload, one place a server."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.forms import Form, Shape
from hs_core.model import Dataset, split_memory
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Going, JobFacts
from hs_sim.cluster import check_fits
from hs_sim.model import Experiment, Workload
from hs_sim.quanta.classes import Classes
from hs_sim.quanta.elastics import Elastics
from hs_sim.quanta.facts import Facts
from hs_sim.quanta.rows import Bools, Floats, Ints
from hs_sim.quanta.servers import Servers
from hs_sim.quanta.suspends import Suspends
from hs_sim.quanta.together import lie_together

Places = NDArray[np.int32]

NOWHERE = np.inf
IN_EACH_QUANTUM = (  # of those who run; then of those who begin or leave
    *("held_s", "from_s", "steps_left", "rate", "charged", "owner", "gang", "had"),
    *("pair", "ready_s", "first_s", "ended_s", "model", "per_node"),
)


class Fleet:
    def __init__(self, experiment: Experiment, *, mixed: bool = False, progress: bool = True) -> None:
        """`mixed`: a job may live on several GPU models. `progress`: of what jobs have received and done, facts are as of their last turn at least."""
        workload, self.jobs = experiment.workload, experiment.workload.jobs
        for job in self.jobs:
            check_fits(job, workload, experiment.cluster, mixed=mixed)
        self.servers = Servers(experiment.cluster)
        self.classes = Classes(workload, self.servers.models)
        self._people(workload)
        self._as_submitted()
        self._at_homes()
        self._in_turns()
        lie_together(self, IN_EACH_QUANTUM)
        self.elastics = Elastics(workload, self.shapes)
        self.suspends = Suspends(len(self.jobs))
        self.changes = 0  # of where somebody lives, and of what is charged there
        self.live: dict[int, None] = {}  # places of those that have come and not ended, by id
        self._here: Ints | None = None  # the same; None: others than before
        self._progress = progress
        self._facts = Facts(self.jobs)

    def _people(self, workload: Workload) -> None:
        self.users = sorted({*workload.tickets, *(job.user for job in self.jobs)})
        said = {tickets: Fraction(str(tickets)) for tickets in workload.tickets.values()}
        self.tickets = {user: said[workload.tickets[user]] for user in self.users}
        pools = ((user, model) for user in self.users for model in self.servers.models)
        self.owners = {owner: at for at, owner in enumerate(pools)}  # users in pools
        self.jobs_of = [0] * len(self.users)  # live ones, by user

    def _as_submitted(self) -> None:
        """What users said of their jobs; of some of it a policy may choose another."""
        jobs, users = self.jobs, {user: at for at, user in enumerate(self.users)}
        self.user: Ints = np.array([users[job.user] for job in jobs], dtype=np.int64)
        self.gang: Ints = np.array([job.gang for job in jobs], dtype=np.int64)
        self.nodes: Ints = np.array([job.nodes for job in jobs], dtype=np.int64)
        self.per_node: Ints = np.array([job.gpus for job in jobs], dtype=np.int64)
        self.state_bytes: Floats = np.array([job.state_bytes for job in jobs], dtype=np.float64)
        self.steps: Floats = np.array([job.steps for job in jobs], dtype=np.float64)  # of its size of batches
        self.steps_left: Floats = self.steps.copy()
        self.class_of: Ints = self.classes.of_all()
        self.job_class = [self.classes.names[at] for at in self.class_of.tolist()]
        self.accumulation: Ints = np.ones(len(jobs), dtype=np.int64)
        self._memory_said = [job.gpu_memory_bytes for job in jobs]
        self._spreads = {at: found for at, job in enumerate(jobs) if (found := job.spreads)}

    def _at_homes(self) -> None:
        """Where they live, as what, how fast they are there, and what they are charged."""
        count = len(self.jobs)
        self.home: list[tuple[int, ...]] = [()] * count  # rows, by node rank
        self.home_names: list[tuple[HostName, ...]] = [()] * count  # the same, by name
        most = max((job.nodes for job in self.jobs), default=1)
        self.rows_of: Places = np.full((most, count), -1, dtype=np.int32)  # rank by rank, filled up with -1
        self.wide: Bools = np.zeros(count, dtype=np.bool_)  # on more than one
        self.model: Ints = np.full(count, -1, dtype=np.int64)  # of its home; of several the slowest
        self.owner: Ints = np.full(count, -1, dtype=np.int64)  # its user there, as `owners` has it
        self.pair: Ints = np.full(count, -1, dtype=np.int64)  # its class there, as `Classes.pairs` has it
        self.spread: set[int] = set()  # charged server by server: on several models, or as copies
        self.going: dict[int, Going] = {}  # of those that leave their homes
        self.copies: dict[int, tuple[int, ...]] = {}  # steps of each copy, of jobs that have several
        self.shapes: dict[int, Form] = {}  # of jobs that have others than they declared
        self.rate: Floats = np.ones(count)
        self.alone: Floats = np.ones(count)  # its rate with its GPUs for itself
        self.slowed: Floats = np.ones(count)  # how often as long it takes on its GPUs as on middling ones
        self.charged: Floats = self.gang.astype(np.float64)  # GPUs, of those that it shares its part
        self.settled_s: Floats = np.zeros(count)
        self.migrations: Ints = np.zeros(count, dtype=np.int64)
        self._left_then: Floats = self.steps_left.copy()  # as it came to its home
        self._bound: dict[int, tuple[tuple[int, ...], ...]] = {}  # by node rank, where GPUs differ

    def _in_turns(self) -> None:
        """Their processes, when they train, and what they have had."""
        count = len(self.jobs)
        self.ready_s: Floats = np.full(count, NOWHERE)  # its process stands and could be let go
        self.from_s: Floats = np.zeros(count)  # training since
        self.held_s: Floats = np.zeros(count)  # its GPUs are its own since
        self.running: Bools = np.zeros(count, dtype=np.bool_)
        self.started: Bools = np.zeros(count, dtype=np.bool_)
        self.had: Floats = np.zeros(count)  # GPU-seconds on the model of its home …
        models = len(self.servers.models)
        self._elsewhere: Floats = np.zeros((count, models))  # … and by model, but not on that one
        self.first_s: Floats = np.full(count, np.nan)
        self.ended_s: Floats = np.full(count, np.nan)
        self.raw: Bools = np.ones(count, dtype=np.bool_)  # perhaps not up yet, or never run
        self.near: Bools = np.ones(count, dtype=np.bool_)  # may end before it is looked at all of them again

    def becomes(self, job: int, class_: str) -> None:
        """Of that class of the workload from now on."""
        self._is_of(job, class_)
        if self.home[job]:
            self._pace(job)
        self.near[job] = True
        self.changed(job)

    def _is_of(self, job: int, class_: str) -> None:
        self.class_of[job] = found = self.classes.find(self.jobs[job].user, class_, int(self.nodes[job]))
        self.job_class[job] = self.classes.names[found]

    def settle(
        self,
        job: int,
        home: tuple[int, ...],
        now_s: float,
        copies: tuple[int, ...] = (),
        shape: Form | None = None,
    ) -> None:
        """Lives there from now on, with `copies` as one on each server that has so many steps to do."""
        if shape is not None:
            self.shapes[job] = shape
            self.per_node[job] = self._per_node_as(job, shape)
        if isinstance(shape, Shape):
            self.gang[job] = self.charged[job] = shape.gpus
            self.nodes[job] = shape.nodes
        elif shape is not None:
            self.nodes[job] = self.jobs[job].nodes_in(shape)
            self._is_of(job, self.jobs[job].variant(shape))
        self._reside(job, home)
        if len(home) > len(self.rows_of):
            more = ((0, len(home) - len(self.rows_of)), (0, 0))
            self.rows_of = np.pad(self.rows_of, more, constant_values=-1)
        if len(home) > 1:
            self.rows_of[: len(home), job] = home
        else:
            self.rows_of[0, job] = home[0]
        if len(home) < len(self.rows_of):
            self.rows_of[len(home) :, job] = -1
        self.wide[job] = len(home) > 1
        if self.copies.pop(job, None):
            self.charged[job] = self.gang[job]
        if copies:
            self.copies[job] = copies
        self._pace(job)
        self.settled_s[job] = now_s
        self._left_then[job] = self.steps_left[job]
        self.changed(job)

    def settle_all(self, jobs: Ints, homes: Sequence[tuple[int, ...]], now_s: float) -> None:
        """The same for many, each with one server as before, and in the shape that it has."""
        for job, home in zip(jobs.tolist(), homes, strict=True):
            self._reside(job, home)
        self.rows_of[0, jobs] = rows = np.array([row for (row,) in homes], dtype=np.int64)
        model = self.servers.model[rows]
        self._is_on(jobs, model)
        self.alone[jobs] = self.rate[jobs] = (
            self.classes.rates[self.class_of[jobs], model] / self.slowed[jobs]
        )
        self.settled_s[jobs] = now_s
        self._left_then[jobs] = self.steps_left[jobs]
        self.changed(jobs)

    def _reside(self, job: int, home: tuple[int, ...]) -> None:
        self.home[job], self.home_names[job] = home, self.servers.called(home)
        self._bound.pop(job, None)

    def change_speed(self, job_class: str, model: str, steps_per_s: float) -> None:
        if model not in self.servers.models:
            return
        for job in self.classes.change_speed(job_class, model, steps_per_s):
            if self.home[job]:
                self._pace(job)

    def _pace(self, job: int) -> None:
        home = self.home[job]
        if len(home) == 1 and job not in self.copies:  # as nearly all
            self.spread.discard(job)
            model = int(self.servers.model[home[0]])
            self._is_on(job, model)
            rate = (
                self.elastics.rate_on(job, self.servers.models[model])
                if job in self.elastics
                else self.classes.rates[self.class_of[job], model]
            )
            self.alone[job] = self.rate[job] = rate / self.slowed[job]
            return
        rates = self.classes.rates[self.class_of[job]]
        models = self.servers.model[list(home)].tolist()
        model = min(models, key=lambda model: (rates[model], model))
        copies = self.copies.get(job)
        (self.spread.add if copies or len(set(models)) > 1 else self.spread.discard)(job)
        self._is_on(job, model)
        rate = (
            rates[model]
            if self.jobs[job].elastic is None
            else self.elastics.rate_on(job, self.servers.models[model])
        )
        if copies:  # it has ended when the last of them has done its part
            rate = sum(copies) / max(n / rates[model] for n, model in zip(copies, models, strict=True))
            self.charged[job] = self.per_node[job] * len(copies)
        self.alone[job] = self.rate[job] = rate / self.slowed[job]

    def _is_on(self, job: int | Ints, model: int | Ints) -> None:
        models = len(self.servers.models)
        self.changes += 1
        self.near[job] = True
        elsewhere, before = self._elsewhere.reshape(-1), self.model[job]
        elsewhere[job * models + np.maximum(before, 0)] = self.had[job]
        self.had[job] = elsewhere[job * models + model]
        self.model[job] = model
        self.owner[job] = self.user[job] * models + model
        self.pair[job] = self.class_of[job] * models + model

    def pays(self, job: int, rate: float, charged: float) -> None:
        """Beside whom it is now."""
        self.changes += 1
        self.near[job] = True
        self.rate[job], self.charged[job] = rate, charged

    def foresee(self, seconds: float) -> None:
        """Who may end within so many, all of them on its GPUs."""
        self.near = ~(self.steps_left > seconds * self.rate)

    def is_ready(self, jobs: int | Ints, at_s: float) -> None:
        """Their processes stand from then on."""
        self.ready_s[jobs] = at_s
        self.raw[jobs] = True

    def unseen(self, jobs: int | Ints) -> None:
        """They were not up yet."""
        self.first_s[jobs] = np.nan
        self.raw[jobs] = True

    def stops(self, jobs: Ints) -> None:
        """They are suspended."""
        self.suspends.add(jobs)

    def learn_noise(self, jobs: Iterable[int]) -> None:
        """Of those of these, which train, that have measured the noise scale of their gradients often enough."""
        for job in jobs:
            if not self.rate[job] > 0:
                continue
            trained_s = float((self._left_then[job] - self.steps_left[job]) / self.rate[job])
            if self.elastics.trained(job, self.model_of(job), trained_s):
                self.changed(job)

    def model_of(self, job: int) -> str:
        """The GPUs of its home; of several models the slowest."""
        model: str = self.servers.models[self.model[job]]
        return model

    def read(self, job: int) -> float:
        """Bytes of its data set that have to be fetched to some server of its home, on which it lies from now on."""
        spec = self.jobs[job]
        if not spec.dataset:
            return 0.0
        return self.servers.read(self.home[job], Dataset(name=spec.dataset, bytes=spec.dataset_bytes))

    def bind(self, job: int, gpus: tuple[tuple[int, ...], ...]) -> None:
        self._bound[job] = gpus
        self.changed(job)

    def slow(self, job: int, times: float) -> None:
        """Its mini-batches take so many times as long as on middling GPUs."""
        self.slowed[job] = times
        self._pace(job)

    def gpus_of(self, jobs: Ints) -> Ints:
        """(jobs, models) that they have where they live."""
        found = np.zeros((jobs.size, len(self.servers.models)), dtype=np.int64)
        for at, job in enumerate(jobs.tolist()):
            np.add.at(found[at], self.servers.model[list(self.home[job])], self.per_node[job])
        return found

    def comes(self, job: int) -> None:
        self.live[job] = None
        self._here = None
        self.jobs_of[self.user[job]] += 1

    def ends(self, job: int, now_s: float) -> None:
        self.steps_left[job] = 0.0
        self.ended_s[job] = now_s
        self.copies.pop(job, None)
        self._facts.forget(job)
        del self.live[job]
        self._here = None
        self.jobs_of[self.user[job]] -= 1

    def here(self) -> Ints:
        """`live`."""
        if self._here is None:
            self._here = np.fromiter(self.live, dtype=np.int64, count=len(self.live))
        return self._here

    def users_here(self) -> list[UserName]:
        """Who has jobs now, by name."""
        return list(compress(self.users, self.jobs_of))

    def goes(self, job: int, home: tuple[int, ...], shape: Form | None) -> None:
        """It leaves for there, where it will have this shape."""
        self.going[job] = Going(hosts=self.servers.called(home), gpus=self._per_node_as(job, shape))
        self.changed(job)

    def _per_node_as(self, job: int, shape: Form | None) -> int:
        """GPUs on each of its servers, where it runs so; None: as it does."""
        if shape is None:
            return int(self.per_node[job])
        return (
            shape.per_node
            if isinstance(shape, Shape)
            else int(self.gang[job]) // self.jobs[job].nodes_in(shape)
        )

    def changed(self, jobs: int | Sequence[int] | Ints) -> None:
        """Other facts than before."""
        self._facts.changed(jobs)

    def switched(self, jobs: int | Sequence[int] | Ints) -> None:
        """They run now, or no more: other facts for who goes by progress."""
        if self._progress:
            self.changed(jobs)

    def facts(self, now_s: float, *, movable: Bools) -> tuple[JobFacts, ...]:
        """`movable`: could be told to go elsewhere now."""
        return self._facts.of(self.here(), lambda jobs: self._now(jobs, now_s, movable))

    def turn(self) -> frozenset[JobId]:
        """Who is in its turn now."""
        return frozenset(map(JobId, (np.flatnonzero(self.running) + 1).tolist()))

    def _now(self, jobs: Ints, now_s: float, movable: Bools) -> dict[str, Iterable[Any]]:
        """What has become of these, by field of `JobFacts`."""
        which = jobs.tolist()
        now: dict[str, Iterable[Any]] = {
            "memory_bytes": self._memory(jobs),
            "job_class": map(self.job_class.__getitem__, which),
            "hosts": map(self.home_names.__getitem__, which),
            "gang": self.gang[jobs].tolist(),
            "nodes": self.nodes[jobs].tolist(),
            "migrations": self.migrations[jobs].tolist(),
            "started": self.started[jobs].tolist(),
            "movable": movable[jobs].tolist(),
            "settled_s": self.settled_s[jobs].tolist(),
            "attained_gpu_s": self.attained(jobs, now_s).tolist(),
            "steps": self.steps[jobs].tolist(),
            "steps_done": (self.steps[jobs] - self.steps_left[jobs]).tolist(),
            "accumulation": self.accumulation[jobs].tolist(),
        }
        # Of what few workloads know nothing is said in others.
        if self.shapes:
            now["shape"] = map(self.shapes.get, which)
        if self.going:
            now["going"] = map(self.going.get, which)
        if self._spreads:
            now["spreads"] = [() if self.home[job] else self._spreads.get(job, ()) for job in which]
        if self.elastics:
            now["elastic"] = map(self.elastics.said.__getitem__, which)
        if self._bound:
            now["gpus"] = [self._bound.get(job, ()) for job in which]
        return now

    def gpu_s(self, jobs: Ints) -> Floats:
        """(jobs, models) GPU-seconds that they were charged."""
        found: Floats = self._elsewhere[jobs]
        found[np.arange(jobs.size), np.maximum(self.model[jobs], 0)] = self.had[jobs]
        return found

    def receive(self, jobs: Ints, gpu_s: Floats) -> None:
        """(jobs, models), of those that are on several."""
        at, here = np.arange(jobs.size), self.model[jobs]
        self.had[jobs] += gpu_s[at, here]
        others = gpu_s.copy()
        others[at, here] = 0.0
        self._elsewhere[jobs] += others

    def attained(self, jobs: Ints, now_s: float) -> Floats:
        """GPU-seconds until now."""
        attained: Floats = np.add.reduce(self.gpu_s(jobs), axis=1)
        since_s = np.maximum(0.0, now_s - self.held_s[jobs])
        attained += np.where(self.running[jobs], since_s * self.charged[jobs], 0.0)
        return attained

    def _memory(self, jobs: Ints) -> list[int]:
        """Of those that train in sub-batches less than was said."""
        memory = list(map(self._memory_said.__getitem__, jobs.tolist()))
        in_parts = self.accumulation[jobs] != 1
        if not np.count_nonzero(in_parts):  # as in most workloads
            return memory
        for at in np.flatnonzero(self.started[jobs] & in_parts).tolist():
            spec, parts = self.jobs[jobs[at]], int(self.accumulation[jobs[at]])
            memory[at] = split_memory(spec.gpu_memory_bytes, spec.gpu_memory_fixed_bytes, parts)
        return memory
