"""HadarE (Hadar's extension, section V): a job trains as copies on several servers at once, averaged after every round.

Each server in turn goes to the job whose effective throughput grows most by it; a job's steps are divided among its copies by their speeds.

Departures. A server takes several copies, of different jobs, as far as its GPUs go. Speeds that nobody has measured are estimated from other
classes, not from the hardware (equation 10). Jobs that cannot be forked (no `--steps`, no checkpoints or such as have no average, suspending or moving not
allowed) are one copy; those over several servers have theirs first, by arrival, and move where they are a tenth faster. Copies must begin alike, which only a checkpoint makes sure: a job
is started on one of its servers, the others are kept for it, and it is forked once it can write one. Else nothing is forked or averaged within a round.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.estimates import estimated
from hs_core.mechanism.given import given, keep
from hs_core.mechanism.hadare import Jobs, portions, spread
from hs_core.mechanism.idle_elsewhere import WITHIN_A_ROUND
from hs_core.mechanism.placing import Home, by_arrival, fits, models_of, takes_new
from hs_core.mechanism.rows import steps_left
from hs_core.mechanism.slots import Slots
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Needs, Policy, Snapshot, Verdict

WORTH_A_RESTART = 1.1  # times as fast, of a gang over several servers

Copies = dict[JobId, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Field:
    """Jobs with one node, by arrival, and the servers that take some."""

    jobs: tuple[JobFacts, ...]
    hosts: tuple[HostFacts, ...]  # by name
    speed: NDArray[np.float64]  # (J, H) steps/s of a copy; 0: not there
    left: NDArray[np.float64]  # (J,) steps, as its user said, where that was said
    counts: NDArray[
        np.float64
    ]  # (J,) the same for what it is worth: of a class that nobody has measured as many as the median job would have
    whole: NDArray[np.float64]  # (J,) and in all
    most: NDArray[np.int64]  # (J,) copies


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    slots = Slots(snapshot)
    going_on = bool(memory) and memory["quantum"] == snapshot.quantum
    on_its_way: dict[JobId, Home] = {}
    copies: Copies = {}
    coming: dict[JobId, _Coming] = {}
    if going_on:
        coming = {JobId(int(job)): _Coming.of(told) for job, told in memory["coming"].items()}
        copies, coming = _forks_now(snapshot, slots, coming)
        on_its_way = keep(snapshot, slots, memory["homes"])
        _became_one(snapshot, slots, memory["homes"])
    else:
        _serve_gangs(snapshot, slots)
        copies, coming = _fork(snapshot, slots)
    why = {job: f"it is on its way to {', '.join(home)}" for job, home in on_its_way.items()}
    for job in sorted(snapshot.jobs, key=by_arrival):
        if job.id not in on_its_way and not slots.offer(job):
            why[job.id] = "other jobs gain more from each server that it could have in this round"
    verdict = slots.verdict({}, why, stays=WITHIN_A_ROUND if going_on else "")
    kept = {
        "quantum": snapshot.quantum,
        "homes": given(verdict.plan, on_its_way),
        "coming": {str(job): coming[job].plain for job in sorted(coming)},
    }
    return replace(verdict, plan=replace(verdict.plan, copies=copies), memory=kept)


@dataclass(frozen=True, slots=True)
class _Coming:
    """To be forked in this round, once it is up on the first of these servers; shares of the steps that are left then."""

    home: Home
    shares: tuple[int, ...]

    @staticmethod
    def of(told: Mapping[str, Any]) -> "_Coming":
        return _Coming(tuple(map(HostName, told["home"])), tuple(told["shares"]))

    def among(self, job: JobFacts) -> "_Coming | None":
        """Without servers that have turned out since to be none of its; None: it has none left but its first."""
        kept = [at for at, name in enumerate(self.home) if name not in job.barred]
        if len(kept) < 2:
            return None
        return _Coming(tuple(self.home[at] for at in kept), tuple(self.shares[at] for at in kept))

    @property
    def plain(self) -> dict[str, Any]:
        return {"home": list(self.home), "shares": list(self.shares)}


def _forks_now(
    snapshot: Snapshot, slots: Slots, coming: Mapping[JobId, _Coming]
) -> tuple[Copies, dict[JobId, _Coming]]:
    """Those that have come up since; and those for which servers are kept still."""
    copies: Copies = {}
    later: dict[JobId, _Coming] = {}
    able = {host.name for host in snapshot.hosts if takes_new(host) and host.gpus > 0}
    for job in sorted(snapshot.jobs, key=by_arrival):
        told = coming.get(job.id)
        if told is not None:
            told = told.among(job) if able.issuperset(told.home) else None
        if told is None or job.hosts != told.home[:1] or slots.runs(job) or not slots.reachable(job):
            continue
        if not job.started or (not job.movable and not job.rooted):
            if slots.take(job, job.hosts, ""):
                slots.reserve(job, told.home[1:])
                later[job.id] = told
        elif _forks(job) and slots.moves_left and _steps_for(job, told):
            why = f"in this round it trains on {', '.join(told.home)}"
            if slots.take(job, told.home, why):
                copies[job.id] = _steps_for(job, told)
    return dict(sorted(copies.items())), later


def _steps_for(job: JobFacts, told: _Coming) -> tuple[int, ...]:
    """Empty: too few are left for all of them."""
    found = tuple(portions(ceil(job.steps_left or 0.0), told.shares).tolist())
    return found if min(found) >= 1 else ()


def _became_one(snapshot: Snapshot, slots: Slots, homes: Mapping[str, Sequence[str]]) -> None:
    """Copies that have done their portions: the job goes on where one of them was."""
    for job in sorted(snapshot.jobs, key=by_arrival):
        before: Collection[str] = homes.get(str(job.id), ())
        if len(before) > 1 and job.hosts and set(job.hosts) < set(before) and slots.reachable(job):
            slots.take(job, job.hosts, "")


def _serve_gangs(snapshot: Snapshot, slots: Slots) -> None:
    """Jobs over several servers, each where it is fastest of what is left; and copies that are being averaged still."""
    for job in sorted(snapshot.jobs, key=by_arrival):
        if _is_averaged(job) or (job.nodes > 1 and not _speeds_up(snapshot, slots, job)):
            slots.offer(job)


def _speeds_up(snapshot: Snapshot, slots: Slots, job: JobFacts) -> bool:
    """It has GPUs of a model on which it is faster, by so much that it is worth a restart."""
    if slots.runs(job) or job.coming or not slots.reachable(job):
        return False
    models = models_of(snapshot.hosts)
    speed = dict(zip(models, estimated(snapshot, models).speeds(job.job_class), strict=True))
    here = {host.name: speed[host.model] for host in snapshot.hosts}
    now = min((here[name] for name in slots.home(job)), default=0.0)
    faster = [model for model in models if speed[model] > WORTH_A_RESTART * now]
    return any(
        slots.start(job, model, f"it does {speed[model]:.3g} steps/s on {model}, {now:.3g} where it is")
        for model in sorted(slots.ways(job, tuple(faster)), key=lambda model: -speed[model])
    )


def _is_averaged(job: JobFacts) -> bool:
    """Or its copies come up: it has all of its servers or none."""
    return len(job.hosts) > 1 and not job.movable


def _fork(snapshot: Snapshot, slots: Slots) -> tuple[Copies, dict[JobId, _Coming]]:
    """Takes servers for copies; steps of those that have several, and those that are to be started first."""
    field = _field(snapshot, slots)
    if field is None:
        return {}, {}
    copies: Copies = {}
    coming: dict[JobId, _Coming] = {}

    def take(homes: Mapping[int, Home]) -> None:
        for at, home in homes.items():
            job = field.jobs[at]
            first = len(home) > 1 and not job.started and len(job.hosts) < 2
            why = f"in this round it trains on {', '.join(home)}"
            if first:
                all_ = _fastest_first(field, at, home)
                if slots.take(job, all_[:1], why):
                    slots.reserve(job, all_[1:])
                    coming[job.id] = _Coming(all_, _steps(field, at, all_))
            elif slots.take(job, home, why) and len(home) > 1 and min(steps := _steps(field, at, home)) >= 1:
                copies[job.id] = steps

    may = np.ones(len(field.jobs), dtype=np.bool_)
    homes = _homes(field, snapshot, slots, may)
    moves = [at for at, home in homes.items() if _moves(field.jobs[at], home)]
    budget = slots.moves_left  # gangs over several servers may have had some
    if len(moves) > budget:
        may &= [not job.started for job in field.jobs]
        may[moves[:budget]] = True
        stay = {at: hosts for at in homes if not may[at] and len(hosts := field.jobs[at].hosts) > 1}
        able = {host.name for host in field.hosts}
        take({at: hosts for at, hosts in stay.items() if able.issuperset(hosts)})
        for at, hosts in stay.items():  # where a server is drained they go on with what they have
            slots.take(field.jobs[at], hosts, "")
        homes = _homes(field, snapshot, slots, may)
    take(homes)
    return dict(sorted(copies.items())), coming


def _field(snapshot: Snapshot, slots: Slots) -> Field | None:
    hosts = tuple(sorted(filter(takes_new, snapshot.hosts), key=lambda host: host.name))
    jobs = tuple(
        job
        for job in sorted(snapshot.jobs, key=by_arrival)
        if job.nodes == 1 and not _is_averaged(job) and not slots.runs(job) and slots.reachable(job)
    )
    if not jobs or not hosts:
        return None
    models = models_of(snapshot.hosts)
    of = [models.index(host.model) for host in hosts]
    estimates = estimated(snapshot, models)
    speed = np.array([estimates.speeds(job.job_class) for job in jobs])[:, of]
    counts = np.maximum(1.0, np.ceil(steps_left(jobs, speed.max(axis=1).tolist(), estimates)))
    left = np.array([ceil(job.steps_left or some) for job, some in zip(jobs, counts.tolist(), strict=True)])
    known = [estimates.measured(job.job_class) for job in jobs]
    whole = np.maximum(counts, np.where(known, [job.steps for job in jobs], 0.0))
    may = _may(jobs, hosts, slots)
    most = np.array([len(hosts) if _forks(job) else 1 for job in jobs], dtype=np.int64)
    return Field(jobs, hosts, np.where(may, speed, 0.0), left, counts, whole, most)


def _may(jobs: Sequence[JobFacts], hosts: Sequence[HostFacts], slots: Slots) -> NDArray[np.bool_]:
    """(J, H) that would take it, and where it is or could go."""
    example = {host.model: host for host in hosts}
    model = np.array([list(example).index(host.model) for host in hosts])
    known: dict[tuple[object, ...], list[bool]] = {}
    found = np.zeros((len(jobs), len(hosts)), dtype=np.bool_)
    for at, job in enumerate(jobs):
        shape = (job.per_node, job.gpu_types, job.gpu_memory_bytes, job.barred)
        if shape not in known:
            known[shape] = [fits(job, host) for host in hosts]
        goes = np.array([slots.may_go(job, host) for host in example.values()])
        found[at] = known[shape] & (goes[model] | _here(job, hosts, slots))
    return found


def _here(job: JobFacts, hosts: Sequence[HostFacts], slots: Slots) -> NDArray[np.bool_]:
    home = slots.home(job)
    return np.array([host.name in home for host in hosts]) if home else np.zeros(len(hosts), dtype=np.bool_)


def _forks(job: JobFacts) -> bool:
    """Several copies need checkpoints of which there is an average, and leave to go anywhere."""
    free = job.migrate is Migrate.AUTO and job.sliceable and not job.single
    return free and job.steps >= 2 and (job.movable or not job.started)


def _homes(field: Field, snapshot: Snapshot, slots: Slots, may_move: NDArray[np.bool_]) -> dict[int, Home]:
    """Servers of each job that gets some; who may not move gets its own or none."""
    here = np.array([_here(job, field.hosts, slots) for job in field.jobs])
    several = np.array([len(job.hosts) > 1 for job in field.jobs])
    speed = np.where(may_move[:, None] | (here & ~several[:, None]), field.speed, 0.0)
    best = field.speed.max(axis=1)
    found = spread(
        Jobs(
            rates=speed,
            steps=field.whole,
            left=field.counts,
            age_s=np.array([max(0.0, snapshot.now_s - job.arrival_s) for job in field.jobs]),
            unit=1.0 / np.where(best > 0, best, 1.0),
        ),
        snapshot.quantum_s,
        gpus=np.array([job.gang for job in field.jobs], dtype=np.int64),
        room=np.array([slots.free(host.name) for host in field.hosts], dtype=np.int64),
        most=np.where(may_move, field.most, 1),
    )
    homes = {}
    for at in np.flatnonzero(found.any(axis=1)).tolist():
        home = _ranked(field.jobs[at].hosts, [field.hosts[to].name for to in np.flatnonzero(found[at])])
        while len(home) > 1 and min(steps := _steps(field, at, home)) < 1:
            home = tuple(name for name, share in zip(home, steps, strict=True) if share >= 1)
        homes[at] = home
    return homes


def _steps(field: Field, at: int, home: Home) -> tuple[int, ...]:
    row = {host.name: to for to, host in enumerate(field.hosts)}
    rates = field.speed[at, [row[name] for name in home]]
    return tuple(portions(int(field.left[at]), rates).tolist())


def _fastest_first(field: Field, at: int, home: Home) -> Home:
    """Until it is forked it does most there."""
    row = {host.name: to for to, host in enumerate(field.hosts)}
    return tuple(sorted(home, key=lambda name: -field.speed[at, row[name]]))


def _moves(job: JobFacts, home: Home) -> bool:
    return job.started and home != job.hosts


def _ranked(before: Home, names: Sequence[HostName]) -> Home:
    """A copy that stays keeps its place among them."""
    stay = [name for name in before if name in names]
    return (*stay, *(name for name in names if name not in stay))


HADARE = Policy(
    name="hadare", needs=Needs(every_quantum=True, lengths=True, copies=True, rounds=True), decide=decide
)
