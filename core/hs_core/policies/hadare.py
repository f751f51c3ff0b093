"""HadarE (Hadar's extension, section V): a job trains as copies on several servers at once, averaged after every round.

Each server in turn goes to the job whose effective throughput grows most by it; a job's steps are divided among its copies by their speeds.

Departures. A server takes several copies, of different jobs, as far as its GPUs go. Speeds that nobody has measured are estimated from other
classes, not from the hardware (equation 10). Jobs that cannot be forked (no `--steps`, no checkpoints, suspending or moving not
allowed) are one copy; those over several servers have theirs first, by arrival. Within a round nothing is forked or averaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.estimates import Estimates
from hs_core.mechanism.given import given, keep
from hs_core.mechanism.hadare import Jobs, portions, spread
from hs_core.mechanism.placing import Home, by_arrival, fits, pools, takes_new
from hs_core.mechanism.rows import steps_left
from hs_core.mechanism.slots import Slots
from hs_core.model import HostName, JobId, Migrate
from hs_core.policy import HostFacts, JobFacts, Memory, Needs, Policy, Snapshot, Verdict

Copies = dict[JobId, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Field:
    """Jobs with one node, by arrival, and the servers that take some."""

    jobs: tuple[JobFacts, ...]
    hosts: tuple[HostFacts, ...]  # by name
    speed: NDArray[np.float64]  # (J, H) steps/s of a copy; 0: not there
    left: NDArray[np.float64]  # (J,) steps
    most: NDArray[np.int64]  # (J,) copies


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    slots = Slots(snapshot)
    going_on = bool(memory) and memory["quantum"] == snapshot.quantum
    on_its_way: dict[JobId, Home] = {}
    copies: Copies = {}
    if going_on:
        on_its_way = keep(snapshot, slots, memory["homes"])
        copies = _kept(snapshot, slots, memory["copies"])
    else:
        _serve_gangs(snapshot, slots)
        copies = _fork(snapshot, slots)
    why = {job: f"it is on its way to {', '.join(home)}" for job, home in on_its_way.items()}
    for job in sorted(snapshot.jobs, key=by_arrival):
        if job.id not in on_its_way and not slots.offer(job):
            why[job.id] = "other jobs gain more from each server that it could have in this round"
    verdict = slots.verdict({}, why)
    homes = {job: list(steps) for job, steps in copies.items()}
    kept = {
        "quantum": snapshot.quantum,
        "homes": given(verdict.plan, on_its_way),
        "copies": {str(job): homes[job] for job in sorted(homes)},
    }
    return replace(verdict, plan=replace(verdict.plan, copies=copies), memory=kept)


def _kept(snapshot: Snapshot, slots: Slots, told: Mapping[str, Sequence[int]]) -> Copies:
    found: Copies = {}
    for job in snapshot.jobs:
        steps = tuple(told.get(str(job.id), ()))
        if steps and slots.runs(job) and len(slots.home(job)) == len(steps):
            found[job.id] = steps
    return dict(sorted(found.items()))


def _serve_gangs(snapshot: Snapshot, slots: Slots) -> None:
    """Jobs over several servers; and copies that are being averaged still."""
    for job in sorted(snapshot.jobs, key=by_arrival):
        if job.nodes > 1 or (len(job.hosts) > 1 and not job.movable):
            slots.offer(job)


def _fork(snapshot: Snapshot, slots: Slots) -> Copies:
    """Takes servers for copies; steps of those that have several."""
    field = _field(snapshot, slots)
    if field is None:
        return {}
    copies: Copies = {}

    def take(homes: Mapping[int, Home]) -> None:
        for at, home in homes.items():
            job = field.jobs[at]
            if slots.take(job, home, f"in this round it trains on {', '.join(home)}") and len(home) > 1:
                copies[job.id] = _steps(field, at, home)

    may = np.ones(len(field.jobs), dtype=np.bool_)
    homes = _homes(field, snapshot, slots, may)
    moves = [at for at, home in homes.items() if _moves(field.jobs[at], home)]
    if len(moves) > snapshot.migrations_left:
        stay = moves[snapshot.migrations_left :]
        take({at: job.hosts for at in stay if len((job := field.jobs[at]).hosts) > 1})
        may &= [not job.started for job in field.jobs]
        may[moves[: snapshot.migrations_left]] = True
        homes = _homes(field, snapshot, slots, may)
    take(homes)
    return dict(sorted(copies.items()))


def _field(snapshot: Snapshot, slots: Slots) -> Field | None:
    hosts = tuple(sorted(filter(takes_new, snapshot.hosts), key=lambda host: host.name))
    jobs = tuple(
        job
        for job in sorted(snapshot.jobs, key=by_arrival)
        if job.nodes == 1 and not slots.runs(job) and slots.reachable(job)
    )
    if not jobs or not hosts:
        return None
    models = [model for model, _ in pools(snapshot)]
    of = [models.index(host.model) for host in hosts]
    estimates = Estimates(snapshot, models)
    speed = np.array([estimates.speeds(job.job_class) for job in jobs])[:, of]
    left = steps_left(jobs, speed.max(axis=1).tolist())
    may = _may(jobs, hosts, slots)
    most = np.array([len(hosts) if _forks(job) else 1 for job in jobs], dtype=np.int64)
    return Field(jobs, hosts, np.where(may, speed, 0.0), np.maximum(1.0, np.ceil(left)), most)


def _may(jobs: Sequence[JobFacts], hosts: Sequence[HostFacts], slots: Slots) -> NDArray[np.bool_]:
    """(J, H) that would take it, and where it is or could go."""
    example = {host.model: host for host in hosts}
    model = np.array([list(example).index(host.model) for host in hosts])
    known: dict[tuple[object, ...], list[bool]] = {}
    found = np.zeros((len(jobs), len(hosts)), dtype=np.bool_)
    for at, job in enumerate(jobs):
        shape = (job.per_node, job.gpu_types, job.gpu_memory_bytes)
        if shape not in known:
            known[shape] = [fits(job, host) for host in hosts]
        goes = np.array([slots.may_go(job, host) for host in example.values()])
        found[at] = known[shape] & (goes[model] | _here(job, hosts, slots))
    return found


def _here(job: JobFacts, hosts: Sequence[HostFacts], slots: Slots) -> NDArray[np.bool_]:
    home = slots.home(job)
    return np.array([host.name in home for host in hosts]) if home else np.zeros(len(hosts), dtype=np.bool_)


def _forks(job: JobFacts) -> bool:
    """Several copies need checkpoints, and leave to go anywhere."""
    free = job.migrate is Migrate.AUTO and job.sliceable
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
            steps=np.maximum(field.left, [job.steps for job in field.jobs]),
            left=field.left,
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


def _moves(job: JobFacts, home: Home) -> bool:
    return job.started and home != job.hosts


def _ranked(before: Home, names: Sequence[HostName]) -> Home:
    """A copy that stays keeps its place among them."""
    stay = [name for name in before if name in names]
    return (*stay, *(name for name in names if name not in stay))


HADARE = Policy(name="hadare", needs=Needs(every_quantum=True, lengths=True, copies=True), decide=decide)
