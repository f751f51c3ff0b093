"""Short builders and a plain policy, for tests of the controller's mind and of what drives it."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from hs_core.forms import Form, Shape, in_strategy
from hs_core.model import Gpu, Host, JobSpec, MoveReason
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.policy import HostFacts, JobFacts, Memory, Needs, Plan, Policy, Snapshot, Verdict
from hs_core.strategy import Strategy
from hs_core.wanted import Turn

GiB = 1 << 30


def a_host(
    name: str,
    model: str = "V100",
    gpus: int = 4,
    *,
    boot: str = "boot-1",
    memory_gib: int = 16,
    peer: str | None = None,
) -> Host:
    devices = tuple(
        Gpu(id=GpuId(f"GPU-{name}-{i}"), index=i, model=model, memory_bytes=memory_gib * GiB)
        for i in range(gpus)
    )
    address = f"{name}:7444" if peer is None else peer
    return Host(name=HostName(name), boot_id=boot, gpus=devices, peer=address)


def a_spec(name: str = "train", **wishes: object) -> JobSpec:
    return replace(JobSpec(name=name, command=("python", "train.py")), **wishes)  # type: ignore[arg-type]


def sick(host: Host, count: int = 1) -> tuple[Gpu, ...]:
    """The host's GPUs with the first `count` unhealthy."""
    return tuple(
        replace(gpu, healthy=gpu.index >= count, why_unhealthy="XID 79" if gpu.index < count else "")
        for gpu in host.gpus
    )


Wishes = dict[JobId, tuple[tuple[HostName, ...], MoveReason, str]]
"""Where somebody wants jobs to be, and why."""


Shapes = dict[JobId, Form]
"""In which shapes somebody wants elastic jobs to run, and in which strategies those that declare some."""


def plain_policy(
    *, every_quantum: bool = False, wishes: Wishes | None = None, shapes: Shapes | None = None
) -> Policy:
    """Each job to the servers of one pool with the fewest wanted GPUs that can hold it; a user's tickets split by gang size.

    Gangs over several servers run every other quantum, oldest first. Started jobs move where `wishes` says, as soon as they
    can, and from drained servers wherever there is room for their gang; elastic ones take the shape that `shapes` says, those with strategies the strategy.
    """

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        homes: dict[JobId, tuple[HostName, ...]] = {job.id: job.hosts for job in snapshot.jobs if job.hosts}
        moves: dict[JobId, tuple[MoveReason, str]] = {}
        left = snapshot.migrations_left
        load = {host.name: 0 for host in snapshot.hosts}
        for job in snapshot.jobs:
            for name in job.hosts:
                load[name] += job.per_node
        for job in sorted(snapshot.jobs, key=lambda j: (j.arrival_s, j.id)):
            wish = _wish(job, snapshot, load, wishes or {}, left)
            if wish is None:
                continue
            homes[job.id], reason = wish
            for name in homes[job.id]:
                load[name] += job.per_node
            if job.started:
                moves[job.id] = reason
                left -= reason[0] is not MoveReason.DRAIN
        shaped = {job.id: (shapes or {})[job.id] for job in snapshot.jobs if job.id in (shapes or {})}
        gpus = {host.name: host.gpus for host in snapshot.hosts}
        for job in snapshot.jobs:
            if job.id not in shaped or shaped[job.id] == job.shape:
                continue
            stays = job.started and job.id not in moves
            form = shaped[job.id]
            if isinstance(form, Strategy):
                form = shaped[job.id] = in_strategy(job.shape, form)
            needed = form.per_node if isinstance(form, Shape) else job.per_node
            room = all(needed <= gpus[name] for name in homes.get(job.id, ()))
            room &= not isinstance(form, Shape) or form.nodes == len(homes.get(job.id, ()))
            if job.id not in homes or not room or (stays and not (job.movable and left > 0)):
                del shaped[job.id]
            elif stays:
                moves[job.id] = (MoveReason.SHAPE, "")
                left -= 1
        tickets = _tickets(snapshot, homes)
        why = {
            job.id: f"no server has {job.gang} GPUs for it" for job in snapshot.jobs if job.id not in homes
        }
        turns = _turns(snapshot, homes)
        decisions = int(memory.get("decisions", 0)) + 1
        plan = Plan(homes=homes, turns=turns, tickets=tickets, moves=moves, shapes=shaped)
        return Verdict(plan=plan, memory={"decisions": decisions}, why=why)

    return Policy(
        name="plain",
        needs=Needs(every_quantum=every_quantum, elastic=shapes is not None, strategies=shapes is not None),
        decide=decide,
    )


def _wish(
    job: JobFacts, snapshot: Snapshot, load: Mapping[HostName, int], wishes: Wishes, moves_left: int
) -> tuple[tuple[HostName, ...], tuple[MoveReason, str]] | None:
    """Where else it is to live; None: as it is, or nowhere."""
    by_name = {host.name: host for host in snapshot.hosts}
    if not job.hosts:
        wanted = wishes[job.id][0] if job.id in wishes else ()
        able = bool(wanted) and all(name in by_name and _can_hold(by_name[name], job) for name in wanted)
        found = wanted if able else _home(job, snapshot, load)
        return (found, (MoveReason.BALANCE, "")) if found else None
    if not job.movable:
        return None
    if job.id in wishes:
        to, reason, text = wishes[job.id]
        able = all(name in by_name and _can_hold(by_name[name], job) for name in to)
        allowed = reason is MoveReason.DRAIN or not job.started or moves_left > 0
        return (to, (reason, text)) if able and allowed and to != job.hosts else None
    if any(name in by_name and not by_name[name].accepts for name in job.hosts):
        found = _home(job, snapshot, load)
        return (found, (MoveReason.DRAIN, "its server is drained")) if found else None
    return None


def _home(job: JobFacts, snapshot: Snapshot, load: Mapping[HostName, int]) -> tuple[HostName, ...]:
    able = [host for host in snapshot.hosts if _can_hold(host, job)]
    able.sort(key=lambda host: (Fraction(load[host.name], host.gpus), host.name))
    for first in able:
        pool = [host.name for host in able if host.model == first.model]
        if len(pool) >= job.nodes:
            return tuple(pool[: job.nodes])
    return ()


def _tickets(snapshot: Snapshot, homes: Mapping[JobId, tuple[HostName, ...]]) -> dict[JobId, Fraction]:
    demand: dict[UserName, int] = {}
    for job in snapshot.jobs:
        demand[job.user] = demand.get(job.user, 0) + job.gang
    return {
        job.id: snapshot.tickets[job.user] * job.gang / demand[job.user]
        for job in snapshot.jobs
        if job.id in homes
    }


def _turns(snapshot: Snapshot, homes: Mapping[JobId, tuple[HostName, ...]]) -> dict[HostName, Turn]:
    gangs: dict[HostName, tuple[JobId, ...]] = {host.name: () for host in snapshot.hosts}
    free = {host.name: host.gpus for host in snapshot.hosts}
    for job in snapshot.jobs:
        home = homes.get(job.id, ())
        if job.nodes < 2 or home != job.hosts or snapshot.quantum % 2:
            continue
        if all(free[name] >= job.per_node for name in home):
            for name in home:
                free[name] -= job.per_node
                gangs[name] += (job.id,)
    return {name: Turn(gangs=found) for name, found in gangs.items()}


def _can_hold(host: HostFacts, job: JobFacts) -> bool:
    model = not job.gpu_types or host.model in job.gpu_types
    memory = job.gpu_memory_bytes <= host.gpu_memory_bytes
    starts = host.starts and host.name not in job.barred
    return host.connected and host.accepts and starts and job.per_node <= host.gpus and model and memory
