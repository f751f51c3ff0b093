"""Pollux (Qiao et al., OSDI'21): GPUs and batches of elastic jobs go where they make most goodput, found anew each round by a genetic search.

Departures. An elastic job has its GPUs on one server, or, where its user leaves that open, in equal parts on the fewest that have room.
Another number of them, or batch, is a restart from its checkpoint: the batch is fixed from one restart to the next and not tuned on the way.
The noise scale is what its user says until enough gradients have been measured. Jobs that are not elastic are in the search with their own
gang or nothing; a pool without elastic jobs is not searched: who runs there goes on, who waits starts by arrival. Each GPU model is searched
by itself, and who has started stays in its pool. GPUs that the search leaves idle go to who waits, by arrival.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hs_core.dice import roll
from hs_core.forms import Elastic, Shape
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.placing import by_arrival, fits, models_of, takes_new
from hs_core.mechanism.pollux import Search
from hs_core.mechanism.seats import Seats
from hs_core.mechanism.shaping import Given, Pool
from hs_core.mechanism.slots import Slots
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Needs, Policy, Snapshot, Verdict

SEARCH = Search()


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    most = _most(snapshot, memory)
    slots, jobs = Slots(snapshot), sorted(snapshot.jobs, key=by_arrival)
    _keep(slots, jobs, snapshot.running)
    wanted: dict[JobId, Given] = {}
    for model, there in _by_pool(snapshot, slots, jobs).items():
        if any(job.elastic is not None for job in there):
            free = {
                host.name: slots.free(host.name)
                for host in snapshot.hosts
                if host.model == model and takes_new(host)
            }
            dice = roll(snapshot.seed, "pollux", model, snapshot.quantum)
            wanted |= Pool(snapshot, model, free, most).share_out(there, dice, SEARCH)
    agreed = _within_budget(snapshot, slots, wanted)
    return _verdict(snapshot, agreed, {"most": {str(job): gpus for job, gpus in sorted(most.items())}})


def _most(snapshot: Snapshot, memory: Memory) -> dict[JobId, int]:
    """The most GPUs that each job has had so far."""
    before = memory.get("most", {})
    found = {}
    for job in snapshot.jobs:
        gpus = max(int(before.get(str(job.id), 0)), job.gang if job.id in snapshot.running else 0)
        if gpus:
            found[job.id] = gpus
    return found


def _keep(slots: Slots, jobs: Iterable[JobFacts], running: frozenset[JobId]) -> None:
    """What has GPUs and cannot be restarted elsewhere, or not yet, goes on; then who has none just now: the search would give them away for ever."""
    for job in sorted(jobs, key=lambda job: job.id not in running):
        there = job.id in running or job.started or job.coming
        if there and not slots.runs(job) and not _may_restart(job) and slots.reachable(job):
            slots.take(job, slots.home(job), "")


def _may_restart(job: JobFacts) -> bool:
    if not job.hosts:
        return True
    return (job.movable or job.restartable) and not (job.started and job.migrate is Migrate.NEVER)


def _by_pool(snapshot: Snapshot, slots: Slots, jobs: Iterable[JobFacts]) -> dict[str, list[JobFacts]]:
    """Jobs that the search may place, by GPU model: that of its home, or where most is left."""
    models = {host.name: host.model for host in snapshot.hosts}
    left = dict.fromkeys(models_of(snapshot.hosts), 0)
    for host in snapshot.hosts:
        left[host.model] += slots.free(host.name) if takes_new(host) else 0
    found: dict[str, list[JobFacts]] = {model: [] for model in left}
    able = [job for job in jobs if not slots.runs(job) and slots.reachable(job) and _may_restart(job)]
    for job in sorted(able, key=lambda job: not job.started):
        least = job.elastic.gpus_min if job.elastic is not None else job.gang
        here = {models[name] for name in slots.home(job)}
        if job.started:
            open_ = sorted(here) if len(here) == 1 else []  # of several models: another policy placed it
        else:
            open_ = [model for model in left if _takes(snapshot, job, model)]
        if not open_:
            continue
        model = max(open_, key=lambda model: (left[model] >= least, model in here, left[model]))
        left[model] -= least
        found[model].append(job)
    return {model: sorted(there, key=by_arrival) for model, there in found.items()}


def _takes(snapshot: Snapshot, job: JobFacts, model: str) -> bool:
    hosts = [host for host in snapshot.hosts if host.model == model and takes_new(host)]
    return _least_over(job, hosts) > 0


def _least_over(job: JobFacts, hosts: Sequence[HostFacts]) -> int:
    """The fewest of these servers that could hold the fewest GPUs that it runs on; 0: not all of them together."""
    gang = job.elastic.gpus_min if job.elastic is not None else job.gang
    over = [nodes for nodes in range(1, gang + 1) if gang % nodes == 0] if job.spans else [job.nodes]
    for nodes in over:
        smallest = replace(job, gang=gang, nodes=nodes)
        if sum(fits(smallest, host) for host in hosts) >= nodes:
            return nodes
    return 0


def _smallest(job: JobFacts, elastic: Elastic, hosts: Sequence[HostFacts]) -> Shape | None:
    """If GPUs are left for it in the end, over as many servers as it may have a home on already. None: it keeps what it has."""
    nodes = job.nodes if job.hosts else _least_over(job, hosts)
    return elastic.on(elastic.gpus_min, nodes) if nodes and elastic.gpus_min % nodes == 0 else None


def _within_budget(snapshot: Snapshot, slots: Slots, wanted: Mapping[JobId, Given]) -> dict[JobId, Given]:
    """All of it where the cluster's budget of moves allows; else one change after the other, in which nobody's GPUs are another's yet."""
    hosts = {host.name: host for host in snapshot.hosts}
    jobs = {job.id: job for job in snapshot.jobs}
    fitting = {
        id_: given
        for id_, given in wanted.items()
        if (jobs[id_].movable or not jobs[id_].started or given.home == jobs[id_].hosts)
        and all(fits(replace(jobs[id_], gang=given.gpus, nodes=1), hosts[name]) for name in given.home)
    }
    changed = {id_ for id_, given in fitting.items() if _restarts(jobs[id_], given)}
    if len(changed) <= snapshot.migrations_left:
        return fitting
    free = {name: slots.free(name) for name in hosts}
    agreed: dict[JobId, Given] = {}
    for job in jobs.values():
        if job.id in snapshot.running and job.id in fitting:
            agreed[job.id] = Given(job.hosts, job.per_node, None)
            _move(free, agreed[job.id], -1)
    left = snapshot.migrations_left
    order = sorted(fitting, key=lambda id_: (fitting[id_].gpus - jobs[id_].per_node, id_))
    for id_ in sorted(order, key=lambda id_: id_ not in snapshot.running):  # who gives GPUs back first
        given, now = fitting[id_], agreed.get(id_)
        if id_ in changed and left <= 0:
            continue
        if now is not None:
            _move(free, now, 1)
        if all(free[name] >= given.gpus for name in given.home):
            agreed[id_] = now = given
            left -= id_ in changed
        if now is not None:
            _move(free, now, -1)
    return agreed


def _move(free: dict[HostName, int], given: Given, sign: int) -> None:
    for name in given.home:
        free[name] += sign * given.gpus


def _restarts(job: JobFacts, given: Given) -> bool:
    return job.started and (given.home != job.hosts or (given.shape is not None and given.shape != job.shape))


def _verdict(snapshot: Snapshot, agreed: Mapping[JobId, Given], memory: Memory) -> Verdict:
    jobs, shapes = [], dict[JobId, Shape]()
    open_ = [host for host in snapshot.hosts if takes_new(host)]
    reshaped, relaid = set[JobId](), dict[JobId, Shape]()  # where they are; over other numbers of servers
    for job in snapshot.jobs:
        given = agreed.get(job.id)
        shape = given.shape if given is not None else None
        if given is None and job.elastic is not None and not job.started:
            shape = _smallest(job, job.elastic, open_)
        if shape is not None and shape != job.shape:
            shapes[job.id] = shape
            if given is not None and job.started and given.home == job.hosts:
                reshaped.add(job.id)
            if given is not None and job.started and len(given.home) != len(job.hosts):
                relaid[job.id] = shape
            job = replace(job, gang=shape.gpus, nodes=shape.nodes)  # noqa: PLW2901
        jobs.append(job)
    asked = replace(snapshot, jobs=tuple(jobs), migrations_left=snapshot.migrations_left - len(reshaped))
    seats, order = Seats(asked), sorted(jobs, key=by_arrival)
    for job in order:
        if job.id in agreed:
            seats.take(job, agreed[job.id].home, "the search of this round found it a better place")
        elif not _may_restart(job):
            seats.keep(job)
    accepts = {host.name: host.accepts for host in snapshot.hosts}
    for job in order:
        if all(accepts.get(name, False) for name in job.hosts):
            seats.keep(job)  # of a pool that was not searched
    why = {
        job.id: "jobs that make more goodput with these GPUs, restarts counted, have them in this round"
        for job in order
    }
    verdict = seats.verdict(memory, why, order)
    plan = verdict.plan
    told = {id_: shape for id_, shape in shapes.items() if id_ in plan.homes}
    moves = dict(plan.moves)
    for id_ in reshaped:
        moves[id_] = (MoveReason.SHAPE, f"the search of this round gives it {shapes[id_]}")
    for id_, shape in relaid.items():
        if plan.homes.get(id_) == agreed[id_].home and moves[id_][0] is not MoveReason.DRAIN:
            there = ", ".join(agreed[id_].home)
            moves[id_] = (MoveReason.SHAPE, f"the search of this round gives it {shape} on {there}")
    return replace(verdict, plan=replace(plan, shapes=told, moves=moves))


POLLUX = once_a_round(Policy(name="pollux", needs=Needs(every_quantum=True, elastic=True), decide=decide))
