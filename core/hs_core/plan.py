"""What a plan must never say."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import compress, filterfalse, repeat
from math import ceil
from operator import attrgetter, is_not

import numpy as np

from hs_core.errors import BrokenError
from hs_core.forms import Spread, strategy_of
from hs_core.job_tickets import JobTickets
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.pairs import check_guests
from hs_core.policy import HostFacts, JobFacts, Needs, Plan, Snapshot
from hs_core.strategy import Strategy
from hs_core.wanted import Turn

PLAIN = Needs()
FEW = 10_000  # jobs

_id_of, _hosts_of, _is_sliceable = attrgetter("id"), attrgetter("hosts"), attrgetter("sliceable")


Homed = tuple[JobFacts, tuple[HostName, ...] | None]
"""A job and the home that a plan gives it."""


def check(snapshot: Snapshot, plan: Plan, needs: Needs = PLAIN) -> list[Homed]:
    """All but those who stay as they are. Raises BrokenError if the plan breaks a law: a policy that does so is stopped before anybody acts on it."""
    hosts = {host.name: host for host in snapshot.hosts}
    jobs = _ById(snapshot.jobs)
    homed = _check_homes(snapshot, plan, hosts, jobs, needs)
    _check_copies(plan, jobs, needs)
    _check_shapes(plan, jobs, needs)
    _check_tickets(plan)
    _check_turns(snapshot, plan, hosts, jobs)
    _check_seats(plan, hosts, jobs, needs)
    check_guests(snapshot, plan, hosts, jobs, sharing=needs.sharing)
    _check_accumulation(plan, jobs)
    _check_trials(plan, hosts, needs)
    return homed


class _ById(Mapping[JobId, JobFacts]):
    """A snapshot's jobs. Where they are many, a check asks for few of them."""

    def __init__(self, jobs: Sequence[JobFacts]) -> None:
        self.jobs = jobs
        self.ids = list(map(_id_of, jobs))

    @cached_property
    def _by_id(self) -> dict[JobId, JobFacts] | None:
        """None: they are many, and in that order, as a driver has them."""
        if len(self.ids) > FEW and self.ids == sorted(self.ids):
            return None
        return dict(zip(self.ids, self.jobs, strict=True))

    def __getitem__(self, job_id: JobId) -> JobFacts:
        if self._by_id is not None:
            return self._by_id[job_id]
        at = bisect_left(self.ids, job_id)
        if at == len(self.ids) or self.ids[at] != job_id:
            raise KeyError(job_id)
        return self.jobs[at]

    def __iter__(self) -> Iterator[JobId]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def _check_homes(
    snapshot: Snapshot, plan: Plan, hosts: Mapping[HostName, HostFacts], jobs: _ById, needs: Needs
) -> list[Homed]:
    homes = plan.homes
    all_in_order = list(homes) == jobs.ids  # as most often
    given: list[tuple[HostName, ...] | None]
    given = list(homes.values()) if all_in_order else list(map(homes.get, jobs.ids))
    if not all_in_order and len(given) - given.count(None) < len(homes):
        job_id = min(homes.keys() - jobs.keys())
        raise BrokenError(
            f"job {job_id} has a home on {', '.join(homes[job_id])}; the snapshot has no such job"
        )
    moved = 0
    shapes = plan.shapes
    known = hosts.keys() >= set().union(*homes.values())
    # Who stays, as nearly all do, and in no other shape, was looked at when it came.
    stays = known and not shapes and not plan.copies
    others = map(is_not, given, map(_hosts_of, jobs.jobs)) if stays else repeat(True)
    homed = list(compress(zip(jobs.jobs, given, strict=True), others))
    for job, home in homed:
        anew = bool(shapes) and shapes.get(job.id, job.shape) != job.shape
        if home is not None:
            _check_home(job, home, plan, hosts, mixed=needs.mixed)
        if job.started and (home != job.hosts or anew) and all(name in hosts for name in job.hosts):
            _check_move(job, plan, hosts)
            moved += plan.moves[job.id][0] is not MoveReason.DRAIN  # an administrator's word is not budgeted
    if moved > snapshot.migrations_left:
        raise BrokenError(f"{moved} started jobs move; the budget allows {snapshot.migrations_left}")
    return homed


def _check_home(
    job: JobFacts, home: Sequence[HostName], plan: Plan, hosts: Mapping[HostName, HostFacts], *, mixed: bool
) -> None:
    copies = len(plan.copies.get(job.id, ()))
    if unknown := [name for name in home if name not in hosts]:
        raise BrokenError(f"job {job.id} has a home on {unknown[0]}; the snapshot has no such server")
    servers = copies or plan.nodes(job)
    if (len(home) != servers and home != job.hosts) or len(set(home)) != len(home):
        raise BrokenError(f"job {job.id} needs {servers} servers; its home is {', '.join(home)}")
    if home != job.hosts or plan.per_node(job) > job.per_node:
        models = {hosts[name].model for name in home}
        if len(models) > 1 and not copies and not mixed:
            raise BrokenError(
                f"job {job.id} is placed on {' and '.join(sorted(models))}; one pool was expected"
            )
        _check_entrance(job, plan.per_node(job), [hosts[name] for name in home])


def _check_move(job: JobFacts, plan: Plan, hosts: Mapping[HostName, HostFacts]) -> None:
    home = plan.homes.get(job.id)
    if home is None or not (job.movable or (job.restartable and home == job.hosts)):
        raise BrokenError(f"job {job.id} runs on {job.hosts} and is planned on {home}; it cannot move")
    if job.id not in plan.moves:
        raise BrokenError(f"job {job.id} moves from {job.hosts} to {home} without a reason")
    there, here = [hosts[name].model for name in home], [hosts[name].model for name in job.hosts]
    same = there == here or (job.spans and set(there) == set(here))  # over another number of them
    if job.migrate is Migrate.NEVER or (job.migrate is Migrate.SAME_TYPE and not same):
        raise BrokenError(f"job {job.id} may migrate {job.migrate} and moves from {job.hosts} to {home}")


def _check_entrance(job: JobFacts, per_node: int, home: Sequence[HostFacts]) -> None:
    """A job that is new to hosts must fit them; one that is there stays, whatever became of the host."""
    for host in home:
        if not host.connected or not host.accepts:
            raise BrokenError(
                f"job {job.id} is placed on {host.name}, which is {'drained' if host.connected else 'away'}"
            )
        if not host.starts or host.name in job.barred:
            raise BrokenError(f"job {job.id} is placed on {host.name}, which cannot start it")
        if per_node > host.gpus:
            raise BrokenError(
                f"job {job.id} needs {per_node} GPUs and is placed on {host.name}, which has {host.gpus}"
            )
        if job.gpu_types and host.model not in job.gpu_types:
            raise BrokenError(
                f"job {job.id} is for {' or '.join(job.gpu_types)} and is placed on {host.name} ({host.model})"
            )
        if job.gpu_memory_bytes > host.gpu_memory_bytes:
            raise BrokenError(
                f"job {job.id} needs {job.gpu_memory_bytes} bytes of GPU memory and is placed on {host.name}, "
                f"which has {host.gpu_memory_bytes}"
            )


def _check_copies(plan: Plan, jobs: Mapping[JobId, JobFacts], needs: Needs) -> None:
    for job_id, steps in plan.copies.items():
        home = plan.homes.get(job_id, ())
        if not needs.copies:
            raise BrokenError(
                f"job {job_id} has {len(steps)} copies; the policy does not say that it makes any"
            )
        job = jobs[job_id]
        if job.nodes != 1:
            raise BrokenError(f"job {job_id} has copies and {job.nodes} nodes; one was expected")
        if not job.started and len(job.hosts) < 2:
            raise BrokenError(f"job {job_id} has copies and was never started: they would not begin alike")
        if len(steps) < 2 or len(steps) != len(home):
            raise BrokenError(
                f"job {job_id} has {len(steps)} copies on {len(home)} servers; expected one on each of several"
            )
        if min(steps) < 1:
            raise BrokenError(f"a copy of job {job_id} has {min(steps)} steps to do; expected at least 1")
        least = ceil(job.steps_left) if job.steps_left is not None else 0
        if not least <= sum(steps) <= job.steps:
            raise BrokenError(
                f"the copies of job {job_id} do {sum(steps)} steps; expected {least}, which are left"
            )


def _check_shapes(plan: Plan, jobs: Mapping[JobId, JobFacts], needs: Needs) -> None:
    for job_id, shape in plan.shapes.items():
        job = jobs[job_id]
        if job_id not in plan.homes:
            raise BrokenError(f"job {job_id} is given {shape} and no home")
        if isinstance(shape, Strategy | Spread):
            _check_form(job, shape, needs)
            continue
        if not needs.elastic and shape != job.declared:
            raise BrokenError(f"job {job_id} is given {shape}; the policy does not say that it gives shapes")
        if job.elastic is None:
            raise BrokenError(f"job {job_id} is given {shape}; it is not elastic")
        if not job.elastic.allows(shape):
            raise BrokenError(
                f"job {job_id} is given {shape}, {shape.per_gpu} on a GPU; it allows {job.elastic}"
            )
        if shape.nodes != 1 and not job.spans:
            raise BrokenError(f"job {job_id} is given {shape}; it is on one server")


def _check_form(job: JobFacts, form: Strategy | Spread, needs: Needs) -> None:
    """A strategy and a number of servers are chosen apart: who has one keeps it where the other is chosen."""
    strategy = strategy_of(form)
    if strategy is not None and strategy != job.strategy:
        if not needs.strategies:
            raise BrokenError(
                f"job {job.id} is given {form}; the policy does not say that it gives strategies"
            )
        if strategy not in job.strategies:
            declared = ", ".join(each.text for each in job.strategies) or "none"
            raise BrokenError(f"job {job.id} is given {form}; it declares {declared}")
    now = job.shape.nodes if isinstance(job.shape, Spread) else None
    given = form.nodes if isinstance(form, Spread) else None
    if given != now and given not in job.spreads:
        raise BrokenError(
            f"job {job.id} is given {form}; expected a number among {job.spreads or (job.nodes,)}"
        )


def _check_tickets(plan: Plan) -> None:
    tickets = plan.tickets
    numbers: Iterable[Fraction] = tickets.values()
    if isinstance(tickets, JobTickets):
        numbers = [tickets.numbers[at] for at in np.flatnonzero(np.bincount(tickets.which)).tolist()]
        homes = np.fromiter(plan.homes, dtype=np.int64, count=len(plan.homes))
        if not (np.array_equal(homes, tickets.ids) or np.array_equal(np.sort(homes), tickets.ids)):
            _check_who_has_tickets(plan, tickets.by_id)
    else:
        _check_who_has_tickets(plan, tickets)
        # Most jobs share a few numbers: each is looked at once.
        numbers = dict(zip(map(id, numbers), numbers, strict=True)).values()
    if any(value.numerator <= 0 for value in numbers):
        job_id = next(job for job, value in tickets.items() if value <= 0)
        raise BrokenError(f"job {job_id} has {tickets[job_id]} tickets; expected more than 0")


def _check_who_has_tickets(plan: Plan, tickets: Mapping[JobId, Fraction]) -> None:
    homes = plan.homes.keys()
    if homes != tickets.keys():
        if missing := homes - tickets.keys():
            raise BrokenError(f"job {min(missing)} has a home and no tickets")
        raise BrokenError(f"job {min(tickets.keys() - homes)} has tickets and no home")


def _check_turns(snapshot: Snapshot, plan: Plan, hosts: Mapping[HostName, HostFacts], jobs: _ById) -> None:
    if unknown := sorted(plan.turns.keys() - hosts.keys()):
        raise BrokenError(f"a turn for {unknown[0]}; the snapshot has no such server")
    if unknown := sorted(plan.in_step - hosts.keys()):
        raise BrokenError(f"{unknown[0]} is to be in step; the snapshot has no such server")
    where: dict[JobId, list[HostName]] = {}
    needs: dict[JobId, int] = {}
    for name, turn in plan.turns.items():
        if not turn.gangs:
            continue
        if len(set(turn.gangs)) != len(turn.gangs):
            raise BrokenError(f"a job is twice in the turn of {name}: {list(turn.gangs)}")
        for job_id in turn.gangs:
            if name not in (home := plan.homes.get(job_id, ())):
                raise BrokenError(f"job {job_id} is in the turn of {name}; its home is {home}")
            if job_id not in where:
                where[job_id], needs[job_id] = [], plan.per_node(jobs[job_id])
            where[job_id].append(name)
        needed = sum(map(needs.__getitem__, turn.gangs))
        needed -= sum([sum(guest.gpus) for guest in turn.guests])
        if needed > hosts[name].gpus:
            raise BrokenError(
                f"a GPU of {name} is promised twice: its turn needs {needed}, it has {hosts[name].gpus}"
            )
    for job_id, names in where.items():
        if others := [at for at in plan.homes[job_id] if at not in names]:
            raise BrokenError(
                f"job {job_id} is in the turn of {names[0]} and not of {others[0]}: gangs run whole"
            )
    if not all(turn.local for turn in plan.turns.values()):
        _check_unsliceable(plan, hosts, jobs.jobs, snapshot.running)


def _check_seats(
    plan: Plan, hosts: Mapping[HostName, HostFacts], jobs: Mapping[JobId, JobFacts], needs: Needs
) -> None:
    """GPUs that a turn names are there, as many as the gang has on a server, and each named once but for a guest beside its partner."""
    for name, turn in plan.turns.items():
        if not turn.seats:
            continue
        if not needs.by_gpu:
            raise BrokenError(f"the turn of {name} names GPUs; the policy does not say that it does so")
        there, owners = hosts[name].numbers, dict[int, JobId]()
        mates = {(guest.job, other) for guest in turn.guests for other in guest.beside}
        seated = [seat.job for seat in turn.seats]
        for seat in turn.seats:
            if seat.job not in turn.gangs or seated.count(seat.job) > 1:
                raise BrokenError(
                    f"job {seat.job} has a seat on {name}; expected one for each gang of its turn at most"
                )
            if len(set(seat.gpus)) != len(seat.gpus) or len(seat.gpus) != plan.per_node(jobs[seat.job]):
                raise BrokenError(
                    f"job {seat.job} has GPUs {list(seat.gpus)} of {name}; expected {plan.per_node(jobs[seat.job])} different ones"
                )
            for gpu in seat.gpus:
                if gpu not in there:
                    raise BrokenError(
                        f"job {seat.job} has GPU {gpu} of {name}; expected one of {list(there)}"
                    )
                other = owners.setdefault(gpu, seat.job)
                if other != seat.job and not {(seat.job, other), (other, seat.job)} & mates:
                    raise BrokenError(f"GPU {gpu} of {name} is named for jobs {other} and {seat.job}")


def _check_accumulation(plan: Plan, jobs: Mapping[JobId, JobFacts]) -> None:
    for job_id, accumulation in plan.accumulation.items():
        job = jobs[job_id]
        if not 1 <= accumulation <= job.accumulation_max:
            raise BrokenError(
                f"job {job_id} is told {accumulation} sub-batches; expected 1 to {job.accumulation_max}"
            )
        if job.started and accumulation != job.accumulation:
            raise BrokenError(
                f"job {job_id} is told {accumulation} sub-batches and runs with {job.accumulation}"
            )


def _check_trials(plan: Plan, hosts: Mapping[HostName, HostFacts], needs: Needs) -> None:
    for job_id, trial in plan.trials.items():
        if needs.profiles is None:
            raise BrokenError(f"job {job_id} is profiled; the policy does not say that it does so")
        home = plan.homes.get(job_id, ())
        if not home or any(job_id not in _gangs(plan, name) for name in home):
            raise BrokenError(f"job {job_id} is profiled on {trial.model} and has no turn")
        if {hosts[name].model for name in home} != {trial.model}:
            raise BrokenError(f"job {job_id} is profiled on {trial.model}; its home is {', '.join(home)}")
        guests = [guest for name in home for guest in plan.turns[name].guests]
        if any(job_id in (guest.job, *guest.beside) for guest in guests):
            raise BrokenError(f"job {job_id} is profiled on {trial.model} and shares GPUs; expected it alone")


def _check_unsliceable(
    plan: Plan, hosts: Mapping[HostName, HostFacts], jobs: Sequence[JobFacts], running: frozenset[JobId]
) -> None:
    bound: dict[HostName, list[JobFacts]] = {}
    for job in filterfalse(_is_sliceable, jobs):
        if job.started and job.id in running:
            for name in job.hosts:
                if name in hosts:
                    bound.setdefault(name, []).append(job)
    # Where GPUs were lost under them, not all can go on, nor can a gang's parts elsewhere: that is no fault of the plan.
    short = {name for name, stuck in bound.items() if sum(job.per_node for job in stuck) > hosts[name].gpus}
    for name, stuck in bound.items():
        turn = plan.turns.get(name)
        if turn is None or turn.local:
            continue
        left_out = [j.id for j in stuck if j.id not in turn.gangs and short.isdisjoint(j.hosts)]
        if left_out and not _says_too_much(hosts[name], turn, jobs, running):
            raise BrokenError(f"job {left_out[0]} cannot be suspended and is not in the turn of {name}")


def _says_too_much(host: HostFacts, turn: Turn, jobs: Sequence[JobFacts], running: frozenset[JobId]) -> bool:
    """By the word of its agent, which may say what it likes, more runs there than it has GPUs for: no turn has them all."""
    there = (job.per_node for job in jobs if job.started and job.id in running and host.name in job.hosts)
    return not turn.guests and sum(there) > host.gpus


def _gangs(plan: Plan, name: HostName) -> tuple[JobId, ...]:
    turn = plan.turns.get(name)
    return turn.gangs if turn is not None else ()
