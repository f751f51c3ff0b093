"""Elastic jobs under a policy that gives no shapes: those that another one has left in a shape of its own go back to what their users declared.

That is a restart from the checkpoint, so it happens where it costs little or gives something back: a job that has no process, or waits for a turn; one that has more
GPUs, or servers, than it asked for; one with fewer where the others that it asks for are idle on its servers, as nobody is to be put aside for it. One that runs on as
many as it asked for, with other mini-batches, keeps these until it stops. Each takes from the budget of moves, once it has been where it is for a quantum. The policy is shown
these jobs as they were declared, and decides about them so.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from hs_core.mechanism.placing import by_arrival, fits, takes_new
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Plan, Snapshot, Verdict

Decide = Callable[[Snapshot, Memory], Verdict]

WHY = "it goes on as its user declared it: the policy in office gives no shapes"


def as_declared(decide: Decide, snapshot: Snapshot, memory: Memory) -> Verdict:
    """What that policy decides, with those that go back now in the shape that they declared."""
    shown = _going_back(snapshot)
    if not shown:
        return decide(snapshot, memory)
    jobs = tuple(shown.get(job.id, job) for job in snapshot.jobs)
    left = snapshot.migrations_left - sum(job.started for job in shown.values())
    verdict = decide(replace(snapshot, jobs=jobs, migrations_left=left), memory)
    return replace(verdict, plan=_with_shapes(verdict.plan, shown))


def _going_back(snapshot: Snapshot) -> dict[JobId, JobFacts]:
    """As they are shown. Who gives GPUs back comes first."""
    odd = [job for job in snapshot.jobs if job.declared is not None and job.going is None]
    if not odd:
        return {}
    hosts = {host.name: host for host in snapshot.hosts}
    idle = _idle(snapshot, hosts)
    left = snapshot.migrations_left
    found: dict[JobId, JobFacts] = {}
    for job in sorted(odd, key=lambda job: (_grows(job), by_arrival(job))):
        made = _as_it_was_declared(job, hosts)
        if made is None or (job.started and (left <= 0 or not _worth_it(job, made, snapshot, idle))):
            continue
        left -= job.started
        for name in made.hosts:
            idle[name] -= max(0, made.per_node - job.per_node)
        found[job.id] = made
    return found


def _grows(job: JobFacts) -> bool:
    return job.declared is not None and job.declared.gpus > job.gang


def _idle(snapshot: Snapshot, hosts: Mapping[HostName, HostFacts]) -> Counter[HostName]:
    """GPUs of each server that nobody has who runs there, comes up there, or is on its way there."""
    idle = Counter({name: host.gpus for name, host in hosts.items()})
    for job in snapshot.jobs:
        here = job.hosts if job.id in snapshot.running or job.coming else ()
        idle.subtract(dict.fromkeys(here, job.per_node))
        if (going := job.going) is not None:
            for name in going.hosts:
                idle[name] -= max(0, going.gpus - job.per_node * (name in here))
    return idle


def _as_it_was_declared(job: JobFacts, hosts: Mapping[HostName, HostFacts]) -> JobFacts | None:
    """On servers of its home that hold it so; None: they do not, or it cannot be restarted now. Not in the same decision forked into copies."""
    declared = job.declared
    assert declared is not None, "it has another shape"
    is_forked = bool(job.hosts) and len(job.hosts) != job.nodes
    if is_forked or job.settled_s == inf:  # its checkpoint is on its way
        return None
    made = replace(
        job, gang=declared.gpus, nodes=declared.nodes, shape=declared, declared=None, gpus=(), single=True
    )
    able = [name for name in job.hosts if (host := hosts.get(name)) and takes_new(host) and fits(made, host)]
    home = tuple(able[: declared.nodes])
    if job.hosts and len(home) < declared.nodes:
        return None
    stays = job.restartable and home == job.hosts
    if not (job.movable or stays) or (job.started and job.migrate is Migrate.NEVER):
        return None
    return replace(made, hosts=home)


def _worth_it(job: JobFacts, made: JobFacts, snapshot: Snapshot, idle: Mapping[HostName, int]) -> bool:
    if snapshot.now_s - job.settled_s < snapshot.quantum_s:
        return False
    if job.id not in snapshot.running or made.gang < job.gang or made.nodes < job.nodes:
        return True
    more = made.per_node - job.per_node
    return more > 0 and all(idle[name] >= more for name in made.hosts)


def _with_shapes(plan: Plan, shown: Mapping[JobId, JobFacts]) -> Plan:
    shapes, moves = dict(plan.shapes), dict(plan.moves)
    for job in shown.values():
        if job.id not in plan.homes or job.shape is None:
            continue
        shapes[job.id] = job.shape
        if job.started:
            moves.setdefault(job.id, (MoveReason.SHAPE, WHY))
    return replace(plan, shapes=shapes, moves=moves)
