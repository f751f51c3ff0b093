"""Profiling runs (FFT, ICS'25, section 5; measurements on every model are what Hadar's and Gavel's throughput estimators ask for): a class that nobody measured runs for a few mini-batches on each GPU model, the one with most memory first.

A job that does not fit there fits nowhere; with the memory that it was seen to take there, models that are too small are left out. A run is a turn of an
ordinary job, kept and paid for like any other, and ends within the quantum: as soon as the class's rate is known and the job has done its
mini-batches. Between the edges of quanta one begins only on GPUs on which nobody lives, at an edge also in place of others.

Bounded: a class is on one model at a time; on a pool one run at a time, or as many as `Profiling.share` of its GPUs hold; together
they take that share of all GPU-time, of an hour at most so much at once. A class whose job says no rate in the time of a run is left alone for an hour.

Departure: the paper starts tasks of their own with the job's script. Here the job itself runs, and goes from model to model
through its checkpoint, so that no mini-batch is done twice. One that cannot is measured where it is, others of its class elsewhere.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from hs_core.mechanism.placing import Home, by_arrival, fits, is_cold, models_of, takes_new
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Needs, Plan, Policy, Snapshot, Trial, Verdict
from hs_core.shares import pool_rank

Decide = Callable[[Snapshot, Memory], Verdict]

HOUR_S = 3600.0
LEAST_LIMIT_S = 300.0  # of a run without a rate, and of waiting for one to begin; a quantum or ten, where these are longer


@dataclass(slots=True, kw_only=True)
class _Run:
    """JSON-able. Of one job."""

    model: str
    home: list[str]
    gpus: int
    since_s: float  # when it was decided
    charged_gpu_s: float  # of the job's, that were counted
    ran_s: float = 0.0
    from_step: float | None = None  # None: it is not there yet


@dataclass(slots=True, kw_only=True)
class _Book:
    """What is remembered."""

    runs: dict[JobId, _Run] = field(default_factory=dict)
    given_up: dict[str, float] = field(default_factory=dict)  # classes, and when
    spent_gpu_s: float = 0.0  # more than was earned since
    at_s: float = 0.0
    quantum: int = -1

    def dump(self) -> dict[str, Any]:
        runs = {str(job): asdict(run) for job, run in sorted(self.runs.items())}
        given_up = dict(sorted(self.given_up.items()))
        return {
            "runs": runs, "given_up": given_up, "spent_gpu_s": self.spent_gpu_s, "at_s": self.at_s, "quantum": self.quantum
        }  # fmt: skip

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> "_Book":
        runs = {JobId(int(job)): _Run(**run) for job, run in dumped.get("runs", {}).items()}
        return cls(**{**dumped, "runs": runs, "given_up": dict(dumped.get("given_up", {}))})


USUAL = 20  # mini-batches of a run: enough for a rate, little of a job


def profiled(policy: Policy, batches: int = USUAL) -> Policy:
    """The policy, with profiling runs before its decisions, of so many mini-batches where nobody says how many; 0: only where somebody does."""
    needs = replace(policy.needs, profiles=batches)
    return replace(policy, needs=needs, decide=partial(_decide, whole=policy.decide, needs=needs))


def _decide(snapshot: Snapshot, memory: Memory, *, whole: Decide, needs: Needs) -> Verdict:
    batches = needs.profile_batches(snapshot.profiling)
    own = {key: value for key, value in memory.items() if key != "profiling"}
    book = _Book.load(memory.get("profiling", {}))
    if not batches:
        book.runs = {}
    if book.runs or not _all_known(snapshot):
        if batches:
            _Profiler(snapshot, book, batches).go()
        homes = {job: tuple(map(HostName, run.home)) for job, run in book.runs.items()}
        snapshot = replace(snapshot, reserved=homes, rates=_with_misfits(snapshot))
    book.quantum = snapshot.quantum
    verdict = whole(snapshot, own)
    kept = {"profiling": book.dump()} if batches else {}
    plan = replace(verdict.plan, trials=_trials(book, verdict.plan, batches))
    return replace(verdict, plan=plan, memory={**verdict.memory, **kept})


def _all_known(snapshot: Snapshot) -> bool:
    models = {host.model for host in snapshot.hosts}
    return all(
        (job_class, model) in snapshot.rates
        for job_class in {job.job_class for job in snapshot.jobs}
        for model in models
    )


def _trials(book: _Book, plan: Plan, batches: int) -> dict[JobId, Trial]:
    """Those that have got to their GPUs, if they have their turn there."""
    return {
        job: Trial(model=run.model, from_step=run.from_step, batches=batches)
        for job, run in book.runs.items()
        if run.from_step is not None
        and all((turn := plan.turns.get(HostName(name))) and job in turn.gangs for name in run.home)
    }


def _with_misfits(snapshot: Snapshot) -> Mapping[tuple[str, str], float]:
    """The rates, with 0 where a class was seen to take more memory than GPUs of that model have.

    Not of classes without any rate: they have no hook, and what the driver says of them may be what they take of any GPU, however large it is.
    """
    most: dict[str, int] = {}
    for host in snapshot.hosts:
        most[host.model] = max(most.get(host.model, 0), host.gpu_memory_bytes)
    hooked = {job_class for job_class, _ in snapshot.rates}
    misfits = {
        (job_class, model): 0.0
        for job_class, peak in _peaks(snapshot).items()
        if job_class in hooked
        for model, memory in most.items()
        if peak > memory and (job_class, model) not in snapshot.rates
    }
    return {**snapshot.rates, **misfits} if misfits else snapshot.rates


def _peaks(snapshot: Snapshot) -> dict[str, int]:
    """Bytes per GPU of each class, as far as its jobs that are here were seen to take them."""
    peaks: dict[str, int] = {}
    for job in snapshot.jobs:
        if job.started and job.elastic is None:
            peaks[job.job_class] = max(peaks.get(job.job_class, 0), job.memory_bytes)
    return peaks


class _Profiler:
    """One decision."""

    def __init__(self, snapshot: Snapshot, book: _Book, batches: int) -> None:
        self._snapshot = snapshot
        self._batches = batches
        self._book = book
        self._jobs = {job.id: job for job in snapshot.jobs}
        self._hosts = {host.name: host for host in snapshot.hosts}
        self._edge = book.quantum != snapshot.quantum
        self._peaks = _peaks(snapshot)
        self._moves_left = snapshot.migrations_left
        self._pool_gpus = dict.fromkeys(models_of(snapshot.hosts), 0)
        self._memory = dict.fromkeys(self._pool_gpus, 0)
        for host in snapshot.hosts:
            self._pool_gpus[host.model] += host.gpus
            self._memory[host.model] = max(self._memory[host.model], host.gpu_memory_bytes)
        self._room: dict[HostName, int] = {}  # GPUs that a run could have
        self._idle: dict[HostName, int] = {}  # of these, on which nobody lives
        self._able: dict[tuple[object, ...], frozenset[str]] = {}  # models for jobs like these

    def go(self) -> None:
        book, now_s = self._book, self._snapshot.now_s
        self._charge()
        for job_id in sorted(book.runs):
            if self._over(job_id, book.runs[job_id]):
                del book.runs[job_id]
        classes = {job.job_class for job in self._snapshot.jobs}
        book.given_up = {
            name: at_s for name, at_s in book.given_up.items() if name in classes and now_s - at_s < HOUR_S
        }
        self._look_around()
        for job_class, jobs in self._unmeasured().items():
            if not any(self._affords(model, 1) for model in self._pool_gpus):
                break
            self._begin_one(job_class, jobs)

    # --- those that are on

    def _charge(self) -> None:
        book, snapshot = self._book, self._snapshot
        earned = snapshot.profiling.share * sum(self._pool_gpus.values())
        spent = max(0.0, book.spent_gpu_s - earned * max(0.0, snapshot.now_s - book.at_s))
        for job_id, run in book.runs.items():
            job = self._jobs.get(job_id)
            if job is None:  # it has ended meanwhile: what it had since it was looked at, at most
                spent += run.gpus * max(0.0, snapshot.now_s - book.at_s)
                continue
            gpu_s = max(0.0, job.attained_gpu_s - run.charged_gpu_s)
            run.charged_gpu_s = job.attained_gpu_s
            if run.from_step is not None:
                run.ran_s += gpu_s / job.gang
                spent += gpu_s
            elif job.hosts == tuple(run.home):
                run.from_step = job.steps_done
        book.spent_gpu_s, book.at_s = spent, snapshot.now_s

    def _over(self, job_id: JobId, run: _Run) -> bool:
        job, snapshot = self._jobs.get(job_id), self._snapshot
        if job is None or not self._there(tuple(map(HostName, run.home))) or not _plain(job):
            return True
        there = job.hosts == tuple(run.home)
        if not there and job.started and not job.movable and run.from_step is not None:
            return True  # it was sent elsewhere
        if not there and job.started and job.rooted:
            return True  # it did not leave: another of its class may
        ahead = () if there else [self._hosts[HostName(name)] for name in run.home]
        if not all(takes_new(host) and self._takes(job, host) for host in ahead):
            return True  # drained, or short of GPUs, before it came
        if (job.job_class, run.model) in snapshot.rates:
            return run.from_step is None or (
                job.steps_done - run.from_step > self._batches - 1e-6 or run.ran_s >= snapshot.quantum_s
            )
        waits_s = snapshot.now_s - run.since_s - run.ran_s
        if run.ran_s < max(snapshot.quantum_s, LEAST_LIMIT_S) and waits_s < max(
            10 * snapshot.quantum_s, LEAST_LIMIT_S
        ):
            return False
        self._book.given_up[job.job_class] = snapshot.now_s
        return True

    def _there(self, home: Home) -> bool:
        return all(name in self._hosts and self._hosts[name].connected for name in home)

    # --- others that begin

    def _look_around(self) -> None:
        for host in self._snapshot.hosts:
            self._room[host.name] = self._idle[host.name] = host.gpus
        for job in self._snapshot.jobs:
            run = self._book.runs.get(job.id)
            homes = {*job.hosts, *map(HostName, run.home)} if run is not None else {*job.hosts}
            going = job.going.hosts if job.going is not None else ()
            bound = run is not None or (
                not job.sliceable and job.started and job.id in self._snapshot.running
            )
            for name in homes.union(going) & self._room.keys():
                gpus = job.going.gpus if job.going is not None and name in going else job.per_node
                self._idle[name] -= gpus
                self._room[name] -= gpus if bound or name in going else 0

    def _unmeasured(self) -> Mapping[str, list[JobFacts]]:
        """Classes that are on no model now and were not measured on all, by the arrival of their first job: jobs that a run may be of."""
        busy = {self._jobs[job].job_class for job in self._book.runs}
        rates, found = self._snapshot.rates, dict[str, list[JobFacts]]()
        for job in sorted(self._snapshot.jobs, key=by_arrival):
            if (jobs := found.get(job.job_class)) is None:
                known = all((job.job_class, model) in rates for model in self._pool_gpus)
                if known or job.job_class in busy or job.job_class in self._book.given_up:
                    continue
                jobs = found[job.job_class] = []
            if _plain(job) and job.sliceable and self._there(job.hosts):
                jobs.append(job)
        return found

    def _begin_one(self, job_class: str, jobs: Sequence[JobFacts]) -> None:
        models = sorted(
            {model for job in jobs for model in self._models(job)},
            key=lambda model: (-self._memory[model], pool_rank(model)),
        )
        known = {model for model in self._pool_gpus if (job_class, model) in self._snapshot.rates}
        for model in models:
            if model not in known and (self._begin(model, jobs) or not known):
                return

    def _models(self, job: JobFacts) -> frozenset[str]:
        """Where it could run, everything free."""
        here = job.hosts if any(not takes_new(self._hosts[name]) for name in job.hosts) else ()
        peak = self._peaks.get(job.job_class, 0)
        like = (job.per_node, job.nodes, job.gpu_types, job.gpu_memory_bytes, job.barred, peak, here)
        found = self._able.get(like)
        if found is None:
            able = Counter(host.model for host in self._snapshot.hosts if self._takes(job, host))
            found = self._able[like] = frozenset(model for model, n in able.items() if n >= job.nodes)
        return found

    def _takes(self, job: JobFacts, host: HostFacts) -> bool:
        peak = self._peaks.get(job.job_class, 0)
        return (
            (takes_new(host) or host.name in job.hosts) and fits(job, host) and peak <= host.gpu_memory_bytes
        )

    def _begin(self, model: str, jobs: Sequence[JobFacts]) -> bool:
        ranked = sorted(
            jobs, key=lambda job: (self._models_of(job.hosts) != {model}, job.started, by_arrival(job))
        )
        for job in ranked:
            home = self._home(job, model) if self._affords(model, job.gang) else ()
            if not home:
                continue
            moves = job.started and home != job.hosts
            if moves and self._moves_left <= 0:
                continue
            self._moves_left -= moves
            there = home == job.hosts or not job.started
            self._book.runs[job.id] = _Run(
                model=model,
                home=list(home),
                gpus=job.gang,
                since_s=self._snapshot.now_s,
                charged_gpu_s=job.attained_gpu_s,
                from_step=job.steps_done if there else None,
            )
            self._look_around()
            return True
        return False

    def _models_of(self, home: Home) -> set[str]:
        return {self._hosts[name].model for name in home}

    def _affords(self, model: str, gang: int) -> bool:
        share = self._snapshot.profiling.share
        if self._book.spent_gpu_s >= share * sum(self._pool_gpus.values()) * HOUR_S:
            return False
        on = [self._jobs[job].gang for job, run in self._book.runs.items() if run.model == model]
        return not on or sum(on) + gang <= share * self._pool_gpus[model]

    def _home(self, job: JobFacts, model: str) -> Home:
        """Servers of that model for the run: its own, else those with most GPUs on which nobody lives; () if there are none."""
        own = job.hosts if self._models_of(job.hosts) == {model} else ()
        if own and (job.started or all(self._has_room(job, name, own) for name in own)):
            return own if all(self._has_room(job, name, own) for name in own) else ()
        if job.hosts and not job.movable:
            return ()
        if job.started and job.migrate is not Migrate.AUTO:
            return ()
        able = [
            host
            for host in self._snapshot.hosts
            if host.model == model
            and takes_new(host)
            and self._takes(job, host)
            and self._has_room(job, host.name, ())
        ]
        able.sort(key=lambda host: (-min(self._idle[host.name], job.per_node), is_cold(job, host), host.name))
        return tuple(host.name for host in able[: job.nodes]) if len(able) >= job.nodes else ()

    def _has_room(self, job: JobFacts, name: HostName, own: Home) -> bool:
        """`own`: where it lives."""
        if self._hosts[name].gpus < job.per_node or self._room[name] < job.per_node:
            return False
        if self._edge or (name in own and job.id in self._snapshot.running):
            return True
        return self._idle[name] + (job.per_node if name in own else 0) >= job.per_node


def _plain(job: JobFacts) -> bool:
    """Its rate is its class's: it has one size, and trains as one. Over how many servers it is laid is the policy's to choose first."""
    return job.elastic is None and not job.spreads and len(job.hosts) in (0, job.nodes)
