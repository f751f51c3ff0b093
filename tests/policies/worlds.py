"""Snapshots for tests: built by hand, drawn by hypothesis, and carried from one quantum to the next."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import TypeVar

from hypothesis import strategies as st

from hs_core.forms import Elastic, strategy_of
from hs_core.mechanism.stride import StrideQueue
from hs_core.model import Migrate
from hs_core.names import HostName, JobId, UserName
from hs_core.plan import check
from hs_core.policy import Going, HostFacts, JobFacts, Memory, Plan, Policy, Snapshot, Verdict
from hs_core.strategy import Strategy, another, class_as
from hs_core.wanted import Turn

T = TypeVar("T")
GIB = 2**30
MODELS = {"V100": 16 * GIB, "K80": 12 * GIB, "Q9": 8 * GIB}


def host(
    name: str,
    gpus: int = 4,
    model: str = "V100",
    *,
    connected: bool = True,
    accepts: bool = True,
    starts: bool = True,
) -> HostFacts:
    return HostFacts(
        name=HostName(name),
        model=model,
        gpus=gpus,
        gpu_memory_bytes=MODELS[model],
        connected=connected,
        accepts=accepts,
        starts=starts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(JobFacts):
    """A job's facts and, so that a test can say all of it in one place, whether it is in its turn."""

    running: bool = False


def in_turn(jobs: Iterable[JobFacts]) -> frozenset[JobId]:
    """Of those that were told so."""
    return frozenset(job.id for job in jobs if isinstance(job, Told) and job.running)


def having(asked: Snapshot, jobs: Iterable[JobFacts], **facts: object) -> Snapshot:
    """The same with these jobs."""
    jobs = tuple(jobs)
    return replace(asked, jobs=jobs, running=in_turn(jobs), **facts)  # type: ignore[arg-type]  # the tests' own facts


def job(at: int, user: str = "A", gang: int = 1, **facts: object) -> Told:
    """`host`: the home of a job with one node."""
    if (home := facts.pop("host", None)) is not None:
        facts["hosts"] = (home,)
    made = Told(id=JobId(at), user=UserName(user), gang=gang, arrival_s=float(at))
    return replace(made, **facts)  # type: ignore[arg-type]  # the tests' own facts


def snapshot(
    hosts: list[HostFacts], jobs: list[JobFacts], tickets: Mapping[str, int] | None = None, **facts: object
) -> Snapshot:
    users = {job.user for job in jobs}
    made = Snapshot(
        now_s=0.0,
        quantum_s=60.0,
        quantum=0,
        hosts=tuple(hosts),
        jobs=tuple(jobs),
        running=in_turn(jobs),
        tickets={user: Fraction((tickets or {}).get(user, 100)) for user in users},
        seed=1,
    )
    return replace(made, **facts)  # type: ignore[arg-type]  # the tests' own facts


def on_four_gpus(sizes: Mapping[str, tuple[int, int]], tickets: Mapping[str, int] | None = None) -> Snapshot:
    """user → (gang, jobs)."""
    jobs = [(user, gang) for user, (gang, count) in sizes.items() for _ in range(count)]
    return snapshot([host("h")], [job(at, user, gang) for at, (user, gang) in enumerate(jobs)], tickets)


TABLE_2 = on_four_gpus({"A": (1, 2), "B": (2, 2), "C": (4, 2)})
FIGURE_4 = on_four_gpus({"A": (1, 4), "B": (2, 4), "C": (4, 4)})


class Strides:
    """One stride queue per server, fed with plans: what the agents do."""

    def __init__(self) -> None:
        self.queues: dict[HostName, StrideQueue[JobId]] = {}

    def run(self, asked: Snapshot, plan: Plan) -> dict[HostName, list[JobId]]:
        """The jobs that run on each server in this quantum."""
        jobs = {job.id: job for job in asked.jobs}
        return {host.name: self._run(host, plan, jobs, asked.running) for host in asked.hosts}

    def _run(
        self, at: HostFacts, plan: Plan, jobs: Mapping[JobId, JobFacts], running: frozenset[JobId]
    ) -> list[JobId]:
        turn = plan.turns.get(at.name, Turn())
        if not turn.local:
            return list(turn.gangs)
        queue = self.queues.setdefault(at.name, StrideQueue())
        home = {
            job_id
            for job_id, names in plan.homes.items()
            if at.name in names and jobs[job_id].nodes == 1 and job_id not in turn.gangs
        }
        for gone in set(queue.order()) - home:
            queue.remove(gone)
        queue.set_tickets({job_id: plan.tickets[job_id] for job_id in queue.order()})
        for job_id in sorted(home - set(queue.order())):
            job = jobs[job_id]
            queue.add(job_id, job.gang, plan.tickets[job_id], (job.arrival_s, job.id), kin=job.user)
        free = at.gpus - sum(jobs[job_id].per_node for job_id in turn.gangs)
        stuck = sorted(j for j in home & running if jobs[j].started and not jobs[j].sliceable)
        if sum(jobs[j].gang for j in stuck) > free:
            stuck = []
        return [*turn.gangs, *(queue.pick(free, forced=stuck) if len(queue) else ())]


def after(
    asked: Snapshot, verdict: Verdict, ran: Mapping[HostName, list[JobId]], *, quanta: int = 1
) -> Snapshot:
    """The next question, if nothing but time happens."""
    running = {job_id for jobs in ran.values() for job_id in jobs}
    jobs = tuple(
        replace(
            job,
            hosts=verdict.plan.homes.get(job.id, job.hosts),
            settled_s=asked.now_s
            if verdict.plan.homes.get(job.id, job.hosts) != job.hosts
            else job.settled_s,
            started=job.started or job.id in running,
            running=job.id in running,
            gang=verdict.plan.per_node(job) * verdict.plan.nodes(job),
            shape=(shape := verdict.plan.shapes.get(job.id, job.shape)),
            job_class=another(job.job_class, given) if (given := strategy_of(shape)) else job.job_class,
            nodes=verdict.plan.nodes(job),
            spreads=() if job.id in verdict.plan.homes else job.spreads,
            attained_gpu_s=job.attained_gpu_s
            + (job.gang * asked.quantum_s * quanta if job.id in running else 0.0),
            gpus=_seats_of(job, verdict.plan),
        )
        for job in asked.jobs
    )
    return having(asked, jobs, quantum=asked.quantum + quanta, now_s=asked.now_s + quanta * asked.quantum_s)


def _seats_of(job: JobFacts, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """What its process is bound to from now on: the GPUs that a turn named, else those that it had where it still is."""
    home = plan.homes.get(job.id, ())
    said = {
        name: seat.gpus for name in home for seat in plan.turns.get(name, Turn()).seats if seat.job == job.id
    }
    if said:  # of a server that is away nothing is said
        known = {**dict(zip(job.hosts, job.gpus, strict=False)), **said}
        return tuple(known[name] for name in home) if known.keys() >= set(home) else ()
    return job.gpus if home == job.hosts else ()


@dataclass
class Run:
    """A policy and a world, quantum after quantum: jobs run as agents would run them, and moves take `delay` quanta."""

    policy: Policy
    asked: Snapshot
    delay: int = 0
    memory: Memory = field(default_factory=dict)
    strides: Strides = field(default_factory=Strides)
    gpus: Counter[JobId] = field(default_factory=Counter)  # GPU-quanta received
    moved: list[tuple[int, JobId]] = field(
        default_factory=list
    )  # started jobs that were told to move, and when
    free_moves: int = 0  # of jobs not started
    idle: Counter[HostName] = field(default_factory=Counter)  # GPU-quanta
    _moving: dict[JobId, tuple[tuple[HostName, ...], int]] = field(default_factory=dict)

    def step(self) -> Verdict:
        asked = self.asked
        verdict = self.policy.decide(asked, json.loads(json.dumps(self.memory)))
        check(asked, verdict.plan, self.policy.needs)
        self.memory = verdict.memory
        present = {job.id: job for job in asked.jobs}
        for job_id, home in verdict.plan.homes.items():
            job = present[job_id]
            anew = verdict.plan.shapes.get(job_id, job.shape) != job.shape
            if job.hosts and (home != job.hosts or anew):
                if job.started:
                    self.moved.append((asked.quantum, job_id))
                    self._moving[job_id] = (home, asked.quantum + self.delay)
                else:
                    self.free_moves += 1
        ran = self.strides.run(asked, verdict.plan)
        for name, jobs in ran.items():
            for job_id in jobs:
                self.gpus[job_id] += verdict.plan.per_node(present[job_id])
            shared = sum(sum(guest.gpus) for guest in verdict.plan.turns.get(name, Turn()).guests)
            used = sum(verdict.plan.per_node(present[job_id]) for job_id in jobs) - shared
            self.idle[name] += next(h.gpus for h in asked.hosts if h.name == name) - used
        following = after(asked, verdict, ran)
        self.asked = having(following, jobs=tuple(self._arrive(job, present) for job in following.jobs))
        return verdict

    def _arrive(self, job: JobFacts, before: Mapping[JobId, JobFacts]) -> JobFacts:
        if job.id not in self._moving:
            return job
        to, ready = self._moving[job.id]
        if ready <= self.asked.quantum:
            del self._moving[job.id]
            return replace(job, hosts=to, movable=True, going=None, settled_s=self.asked.now_s)
        old = before[job.id]
        going = Going(hosts=to, gpus=job.per_node)
        return replace(
            job, hosts=old.hosts, movable=False, going=going, settled_s=old.settled_s, started=True
        )

    def go(self, quanta: int) -> Verdict:
        for _ in range(quanta):
            verdict = self.step()
        return verdict

    def change(self, **facts: object) -> None:
        self.asked = replace(self.asked, **facts)  # type: ignore[arg-type]  # the tests' own facts

    def by_user(self) -> Counter[str]:
        users = {job.id: job.user for job in self.asked.jobs}
        total: Counter[str] = Counter()
        for job_id, gpus in self.gpus.items():
            if job_id in users:
                total[users[job_id]] += gpus
        return total


@lru_cache(maxsize=None, typed=True)
def of(*values: T) -> st.SearchStrategy[T]:
    """One of them, drawn by the one strategy for these: to make a strategy takes longer than to draw from it."""
    return st.sampled_from(values)


@st.composite
def hosts_st(draw: st.DrawFn) -> list[HostFacts]:
    count = draw(st.integers(0, 4))
    made = [
        host(
            f"h{at}",
            draw(of(0, 1, 2, 3, 4, 8)),
            draw(of(*MODELS)),
            connected=draw(of(True, True, True, False)),
            accepts=draw(of(True, True, True, False)),
            starts=draw(of(True, True, True, False)),
        )
        for at in range(count)
    ]
    return [replace(one, datasets=frozenset(draw(of("", "d", "de")))) for one in made]


def _others_for(made: JobFacts, hosts: Iterable[HostFacts]) -> list[tuple[HostName, ...]]:
    """Where one that has run could be on its way to."""
    if not (made.started and made.sliceable and made.movable and made.going is None):
        return []
    homes = combinations([host for host in hosts if could_be(made, host)], made.nodes)
    named = [tuple(host.name for host in home) for home in homes if one_pool(home)]
    return [home for home in named if home != made.hosts]


def _newcomers(draw: st.DrawFn, asked: Snapshot) -> list[Told]:
    if not asked.tickets:
        return []
    last = max((job.id for job in asked.jobs), default=0)
    return [
        replace(
            job(last + at, draw(of(*sorted(asked.tickets))), arrival_s=asked.now_s),
            gang=(nodes := draw(of(1, 2, 2, 3))) * draw(of(1, 2, 4)),
            nodes=nodes,
        )
        for at in range(1, 1 + draw(st.integers(0, 2)))
    ]


def upset(draw: st.DrawFn, asked: Snapshot) -> Snapshot:
    """The same some time later: servers were drained or lost GPUs, or are taken into use again; jobs came up, or lost what they had, or ended, or are on their way to other servers;
    others can be moved now, or not; and some have come."""
    hosts = tuple(
        replace(
            one,
            accepts=draw(of(one.accepts, True, False)),
            starts=draw(of(one.starts, True, False)),
            gpus=one.gpus if asked.slowdowns else draw(of(one.gpus, one.gpus, max(0, one.gpus - 1))),
        )
        for one in asked.hosts
    )
    jobs = []
    for one in asked.jobs:
        what = draw(of("goes on", "goes on", "movable", "stays", "leaves", "lost", "suspended", "ended"))
        assert isinstance(one, Told)
        if what == "movable":
            jobs.append(replace(one, movable=True))
        elif what == "stays" and one.started:
            jobs.append(replace(one, movable=False))
        elif what == "lost":
            jobs.append(replace(one, hosts=(), started=False, running=False, movable=True, gpus=()))
        elif what == "suspended" and one.sliceable:
            jobs.append(replace(one, running=False))
        elif what == "leaves" and (homes := _others_for(one, hosts)):
            going = Going(hosts=draw(of(*homes)), gpus=one.per_node)
            jobs.append(replace(one, movable=False, going=going))
        elif what != "ended":
            jobs.append(one)
    jobs += _newcomers(draw, asked)
    gpus = {host.name: host.gpus for host in hosts}
    for one in jobs:
        for name in one.hosts if one.running else ():
            gpus[name] = gpus.get(name, 0) - one.per_node
    short = {name for name, left in gpus.items() if left < 0}
    jobs = [replace(one, running=one.running and short.isdisjoint(one.hosts)) for one in jobs]
    quantum = asked.quantum + draw(st.integers(0, 1))
    return having(replace(asked, hosts=hosts, quantum=quantum), jobs, now_s=asked.now_s + 30.0)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Anything a controller could ask: new jobs, placed and running ones, servers away, drained, shrunk, or gone."""
    hosts = draw(hosts_st())
    left = {host.name: host.gpus for host in hosts}
    jobs = []
    for at in range(draw(st.integers(0, 12))):
        made = job(
            at + 1,
            draw(of(*"ABC")),
            draw(of(1, 1, 2, 3, 4, 8)),
            arrival_s=float(draw(st.integers(0, 6))),
            priority=draw(st.integers(0, 1)),
            gpu_types=draw(of((), (), (), ("V100",), ("K80", "Q9"), ("X1",))),
            gpu_memory_bytes=draw(of(0, 0, 3 * GIB, 10 * GIB, 40 * GIB)),
            job_class=draw(of(*"xyz")),
            dataset=draw(of("", "", "d", "e")),
            steps=float(draw(of(0, 0, 3, 1_000, 50_000))),
            accumulation_max=draw(of(1, 1, 8)),
            migrations=draw(of(0, 0, 3)),
            sliceable=draw(of(True, True, True, False)),
            attained_gpu_s=float(draw(of(0, 0, 60, 120, 777))),
        )
        made = replace(_over_several(draw, made), memory_bytes=made.gpu_memory_bytes)
        if draw(of(False, False, True)):
            made = _elastic(draw, made)
        elif draw(of(False, False, True)):
            made = _with_strategies(made)
        made = _laid(draw, _live_somewhere(draw, made, hosts, left))
        if not (made.hosts or made.elastic) and draw(st.booleans()):
            made = replace(made, spreads=tuple(n for n in range(1, made.gang + 1) if made.gang % n == 0))
        jobs.append(made)
    barring = {user: frozenset(one.name for one in hosts if draw(of(*[False] * 7, True))) for user in "ABC"}
    jobs = [replace(made, barred=barring[made.user].difference(made.hosts)) for made in jobs]
    users = {job.user for job in jobs}
    tickets = {
        user: draw(st.fractions(Fraction(1, 9), Fraction(500), max_denominator=12)) for user in sorted(users)
    }
    made_of = snapshot(
        hosts,
        jobs,
        quantum=draw(st.integers(0, 5)),
        seed=draw(st.integers(0, 5)),
        migrations_left=draw(of(0, 1, 9)),
        now_s=1e6,
    )
    pairs = [(name, model) for name in "xyz" for model in MODELS]
    rates = {pair: rate for pair in pairs if (rate := draw(of(0.0, 0.5, 1.0, 3.0)))}
    times = draw(of(0.0, 0.5, 1.02, 2.0))
    rates |= {
        (class_as(name, one), model): rate * factor
        for (name, model), rate in rates.items()
        for one, factor in ((Strategy(data=2), 1.0), (Strategy(tensor=2), times), (Strategy(tensor=4), times))
    }
    slowed = draw(of(1.0, 1.2, 1.6, 2.5))
    interference = {("x", other, model): slowed for other in "xy" for model in MODELS}
    made_of = replace(made_of, tickets=tickets, rates=rates, interference=interference)
    return _uneven(draw, made_of) if draw(st.booleans()) else made_of


def _uneven(draw: st.DrawFn, asked: Snapshot) -> Snapshot:
    """GPUs of one model differ for some classes, and it is known who is bound to which."""
    times = of(1.0, 1.0, 1.3, 2.5)
    slowdowns = {
        (job_class, host.name): tuple(draw(times) for _ in range(host.gpus))
        for job_class in "xy"
        for host in asked.hosts
        if host.gpus
    }
    left = {host.name: list(range(host.gpus)) for host in asked.hosts}
    jobs = [_bound(draw, left, made) for made in asked.jobs]
    return having(asked, jobs=tuple(jobs), slowdowns=slowdowns)


def _bound(draw: st.DrawFn, left: dict[HostName, list[int]], made: JobFacts) -> JobFacts:
    """Those that run have GPUs of their own; who is suspended is bound to some; of some nobody has said to which."""
    known = made.started and left.keys() >= set(made.hosts) and draw(of(True, True, False))
    if not known:
        return made
    found = []
    for name in made.hosts:
        free = left[name]
        found.append(tuple(sorted((free if made.running else draw(st.permutations(free)))[: made.per_node])))
        if made.running:
            del free[: made.per_node]
    whole = all(len(gpus) == made.per_node for gpus in found)
    return replace(made, gpus=tuple(found) if whole else ())


def _over_several(draw: st.DrawFn, made: JobFacts) -> JobFacts:
    nodes = draw(of(1, 1, 1, 1, 2, 3))
    return replace(made, nodes=nodes, gang=made.gang * nodes)


def _live_somewhere(
    draw: st.DrawFn, made: JobFacts, hosts: list[HostFacts], left: dict[HostName, int]
) -> JobFacts:
    where = draw(of("nowhere", "nowhere", "home", "home", "gone"))
    facts = {
        "movable": draw(of(True, True, False)),
        "migrate": draw(of(Migrate.AUTO, Migrate.AUTO, Migrate.SAME_TYPE, Migrate.NEVER)),
    }
    made = replace(made, **facts)  # type: ignore[arg-type]  # the tests' own facts
    if where == "gone":
        gone = tuple(HostName(f"gone{at}") for at in range(made.nodes))
        return replace(made, hosts=gone, started=draw(st.booleans()))
    mixed = draw(of(False, False, True))  # another policy may have been in office before
    homes = [
        home
        for home in combinations([h for h in hosts if could_be(made, h)], made.nodes)
        if mixed or one_pool(home)
    ]
    if where == "nowhere" or not homes:
        return made
    home = draw(st.sampled_from(homes))
    started = draw(st.booleans())
    running = started and all(made.per_node <= left[host.name] for host in home) and draw(st.booleans())
    if running:
        for host in home:
            left[host.name] -= made.per_node
    lives = replace(made, hosts=tuple(host.name for host in home), started=started, running=running)
    leaves = started and not made.movable and draw(st.booleans())
    return replace(lives, going=_going(draw, lives, homes)) if leaves else lives


def _going(draw: st.DrawFn, made: JobFacts, homes: list[tuple[HostFacts, ...]]) -> Going:
    """Also back to where it is, in another shape; servers may have been drained since, or be away."""
    there = draw(st.sampled_from(homes))
    return Going(hosts=tuple(host.name for host in there), gpus=draw(of(made.per_node, 1)))


def _elastic(draw: st.DrawFn, made: JobFacts) -> JobFacts:
    """It may have been on another number of GPUs than it declared, and over several servers."""
    least = draw(st.integers(1, made.gang))
    elastic = Elastic(
        gpus_min=least,
        gpus_max=draw(st.integers(made.gang, max(made.gang, 8))),
        batch=32,
        batch_max=draw(of(32, 100, 512)),
        batch_per_gpu_max=draw(of(7, 32, 64)),
        noise_scale=float(draw(of(0, 300))),
    )
    shape = draw(st.sampled_from([None, elastic.on(made.gang, made.nodes)]))
    spans = made.nodes > 1 or draw(st.booleans())
    return replace(made, accumulation_max=1, elastic=elastic, spans=spans, shape=shape)


def _with_strategies(made: JobFacts) -> JobFacts:
    strategies = tuple(
        dict.fromkeys([Strategy(data=made.gang), Strategy(tensor=made.gang), Strategy(pipeline=made.gang)])
    )
    return replace(made, strategies=strategies, job_class=class_as(made.job_class, strategies[0]))


def _laid(draw: st.DrawFn, made: JobFacts) -> JobFacts:
    """It may have another one than its first: another policy may have been in office before."""
    if not (made.strategies and made.hosts and draw(st.booleans())):
        return made
    shape = draw(st.sampled_from(made.strategies))
    return replace(made, shape=shape, job_class=another(made.job_class, shape))


def could_be(job: JobFacts, host: HostFacts) -> bool:
    """Its GPUs may have been healthy once."""
    return (
        not job.gpu_types or host.model in job.gpu_types
    ) and job.gpu_memory_bytes <= host.gpu_memory_bytes


def one_pool(home: Iterable[HostFacts]) -> bool:
    return len({host.model for host in home}) == 1


def fits(job: JobFacts, host: HostFacts) -> bool:
    return job.per_node <= host.gpus and could_be(job, host) and host.name not in job.barred


def homes_of(verdict: Verdict) -> dict[int, str]:
    """Homes as words: "a", or "a+b" over several servers."""
    return {int(job): "+".join(home) for job, home in verdict.plan.homes.items()}
