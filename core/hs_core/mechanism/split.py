"""Split stride (Gandiva_fair, 3.1, figure 3): which gangs over several servers run in a quantum, and which servers are left to themselves.

The same gang-aware stride as on a server, over two kinds of entities: each gang, and of each server that has a part of one the small jobs that are
alike in width, together (the aggregates). They are walked by (pass, order); one that finds its GPUs free on all of its servers runs. GPUs that
gangs leave to a server go to its small jobs, which are charged for them.

Instead of passes the books hold GPU-quanta: what an entity was given, less its tickets' part of what all those that compete with it
(its *component*: entities that share servers, directly or not) were given. That over its tickets is its pass less the virtual time; kept so,
a change of tickets scales the difference with the stride by itself, and components may split and join.
Departures from the paper as in `mechanism.stride`; besides, an aggregate takes the GPUs that its jobs can use, not always all of them, and a user's gangs of
one size enter spread over one stride (`mechanism.phases`): many that came together would have all servers to themselves for as many quanta.
The paper has one aggregate a server. With jobs of several widths in it, narrow ones that run beside the gangs in every quantum make up what is due to all of them together, and one that has
no room beside the gangs never runs. Which of the small jobs run where several could is the server's own stride's.

Numbers are exact fractions; where denominators grow beyond 64 bits (tickets changed often), they are rounded to 2^-48 once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from math import gcd, lcm
from typing import Any, NamedTuple

from hs_core.errors import BrokenError
from hs_core.mechanism.gang_turns import GangTurns
from hs_core.mechanism.phases import gaps
from hs_core.mechanism.stride import DEBT
from hs_core.mechanism.together import together
from hs_core.names import HostName, JobId, UserName
from hs_core.wanted import Turn

ZERO, ONE = Fraction(0), Fraction(1)
FINEST = 64  # bits of a denominator
ROUNDED = 1 << 48
TIE = 9  # digits, of a turn among the same others: passes that agree so far are equal, and walked by order

Own = tuple[HostName, int]
"""Small jobs of a server, by their width in GPUs."""
Key = JobId | Own
Kind = tuple[UserName, int, int]
"""Of gangs: (user, servers, GPUs on each)."""
Books = Mapping[str, str | float]
"""JSON-able: by `name_of`; text where it is exact."""


class Gang(NamedTuple):
    job: JobId
    arrival_s: float
    servers: tuple[HostName, ...]
    per_node: int
    tickets: Fraction
    user: UserName = UserName("")
    forced: bool = False  # runs and cannot be suspended
    able: bool = True  # False: one of its servers is away or lost GPUs; it waits along

    @property
    def kind(self) -> Kind:
        return self.user, len(self.servers), self.per_node


class Small(NamedTuple):
    """A server's small jobs of one width."""

    width: int  # GPUs of each
    jobs: int  # how many
    tickets: Fraction  # of all of them
    stuck: int = 0  # GPUs of those that run and cannot be suspended


class Server(NamedTuple):
    name: HostName
    gpus: int
    small: tuple[Small, ...] = ()  # by width

    @property
    def stuck(self) -> int:
        return min(self.gpus, sum([small.stuck for small in self.small]))

    def wants(self, small: Small) -> int:
        """GPUs that those jobs can use."""
        return min(self.gpus // small.width, small.jobs) * small.width


@dataclass(slots=True)
class _Entity:
    key: Key
    order: tuple[int, float, Key]
    servers: tuple[HostName, ...]
    gpus: int  # on each of its servers
    tickets: Fraction
    got: Fraction  # GPU-quanta, less its part of its component's
    kind: Kind | None = None  # of a gang
    width: int = 0  # of small jobs
    stuck: int = 0  # GPUs of small jobs that run and cannot be suspended
    new: bool = True
    given: int = 0  # GPUs in this quantum
    forced: bool = False
    could: bool = True  # run in this quantum, had it come first
    lag: float = 0.0
    place: float = 0.0  # its lag in mean strides of its component: who is first
    stride: int = field(init=False)  # times tickets: GPUs
    needs: int = field(init=False)  # free GPUs on each of its servers

    def __post_init__(self) -> None:
        self.stride = self.gpus * len(self.servers)
        self.needs = max(0, self.gpus - self.stuck)


def _entities(gangs: Sequence[Gang], at: Mapping[HostName, Server], books: Books) -> list[_Entity]:
    entities = []
    used: set[HostName] = set()
    for gang in gangs:
        if gang.tickets <= 0:
            raise BrokenError(f"job {gang.job} has {gang.tickets} tickets; expected more than 0")
        if not gang.able:
            continue
        used.update(gang.servers)
        entity = _Entity(
            gang.job,
            (1, gang.arrival_s, gang.job),
            gang.servers,
            gang.per_node,
            gang.tickets,
            ZERO,
            gang.kind,
            forced=gang.forced,
        )
        entities.append(entity)
    for name in sorted(used):
        server = at[name]
        for small in server.small:
            if small.tickets > 0 and (wants := server.wants(small)):
                key, stuck = (name, small.width), min(server.gpus, small.stuck)
                order = (0, 0.0, key)
                entities.append(
                    _Entity(key, order, (name,), wants, small.tickets, ZERO, width=small.width, stuck=stuck)
                )
    for entity in entities:
        kept = books.get(name_of(entity.key))
        if kept is not None:
            entity.got = _exact(kept) if isinstance(kept, str) else Fraction(kept)
            entity.new = False
    return entities


def _exact(kept: str) -> Fraction:
    over, _, under = kept.partition("/")
    return Fraction(int(over), int(under))


def _components(entities: Sequence[_Entity]) -> list[list[_Entity]]:
    of = together(entity.servers for entity in entities)
    groups: dict[HostName, list[_Entity]] = {}
    for entity in entities:
        groups.setdefault(of[entity.servers[0]], []).append(entity)
    return list(groups.values())


def _spread(members: Sequence[_Entity]) -> None:
    """Newcomers of a component, by kind; the first of a kind enters at the virtual time."""
    kinds: dict[Kind, list[_Entity]] = {
        entity.kind: [] for entity in members if entity.new and entity.kind is not None
    }
    for entity in members if kinds else ():
        if entity.kind in kinds:
            kinds[entity.kind].append(entity)
    for kin in kinds.values():
        came = sorted((entity for entity in kin if entity.new), key=lambda entity: entity.order)
        taken = [entity.got / entity.stride % 1 for entity in kin if not entity.new]
        for entity, phase in zip(came, gaps(taken, len(came), ONE), strict=True):
            entity.got = phase * entity.stride


class _Group:
    """The books of a component, in whole numbers over one unit: exact where the unit is short, else rounded to 2^-48."""

    def __init__(self, members: list[_Entity]) -> None:
        self.members = members
        had = _clamped(members, [_rounded(entity.got) for entity in members])
        unit = lcm(*[e.tickets.denominator for e in members], *[got.denominator for got in had])
        self.exact = unit.bit_length() <= FINEST
        self.unit = unit if self.exact else ROUNDED
        self.tickets = [self._whole(entity.tickets) for entity in members]
        self.got = [self._whole(got) for got in had]
        self.mean = sum(entity.stride for entity in members) * self.unit / sum(self.tickets)  # stride
        for entity, got, tickets in zip(members, self.got, self.tickets, strict=True):
            entity.lag = got / tickets
            entity.place = round(entity.lag / self.mean, TIE)

    def _whole(self, value: Fraction) -> int:
        over, under = value.as_integer_ratio()
        return over * self.unit // under or (1 if over > 0 else 0)

    def charge(self) -> None:
        """Each is charged what it was given, less its part of what all were given."""
        handed = sum(entity.given for entity in self.members)
        total = sum(self.tickets)
        # Parts are fractions of the sum of tickets: over a unit so much finer they are whole.
        finer = total // gcd(total, handed * self.unit) if self.exact else 1
        if (self.unit * finer).bit_length() > 2 * FINEST:
            finer = 1
        unit = self.unit * finer
        for entity, got, tickets in zip(self.members, self.got, self.tickets, strict=True):
            now = got * finer + entity.given * unit - handed * unit * tickets // total
            entity.got = Fraction(now, unit)
        could = [entity.lag for entity in self.members if entity.could]
        if could and self._is_far(min(could), handed * self.unit / total):
            _bound(self.members, min(could) - handed * self.unit / total)

    def _is_far(self, last: float, advance: float) -> bool:
        """Somebody is beyond its bounds, by about what that takes: nearly never."""
        for entity, tickets in zip(self.members, self.tickets, strict=True):
            stride = entity.stride * self.unit / tickets
            after = entity.lag + entity.given * self.unit / tickets
            if after - last > DEBT * max(stride, self.mean) or (
                not entity.could and after - advance < -stride
            ):
                return True
        return False


def _clamped(members: Sequence[_Entity], had: list[Fraction]) -> list[Fraction]:
    """Virtual time stays among the passes of those who are here: departures leave no debt to newcomers, nor credit."""
    signs = [got.numerator for got in had]
    if min(signs) <= 0 <= max(signs):
        return had
    lags = [got / entity.tickets for entity, got in zip(members, had, strict=True)]
    shift = min(lags) if signs[0] > 0 else max(lags)
    return [_rounded(got - shift * entity.tickets) for entity, got in zip(members, had, strict=True)]


def _bound(members: Sequence[_Entity], last: float) -> None:
    """As `mechanism.stride` has it: who could not have run banks no more than one stride, and nobody is ahead of who was the last (its lag) by more than `DEBT`.

    Strides of its own, or mean ones, whichever are longer: the last one may have next to no tickets and be thousands of quanta behind (once
    tickets fall, or components join). All the others are beyond their bounds then, and bounds of their own strides alone would put those of short
    strides before those of long ones, each time anew. What is beyond moves the virtual time instead, and takes along who is behind. So nobody's
    debt need be kept from being forgiven below it, as on a server, where only of those that ran debts are forgiven.
    """
    since = Fraction(round(last * ROUNDED), ROUNDED)
    mean = Fraction(sum(entity.stride for entity in members)) / sum(entity.tickets for entity in members)
    beyond = ZERO
    for entity in members:
        now = min(
            entity.got, since * entity.tickets + DEBT * max(Fraction(entity.stride), mean * entity.tickets)
        )
        if not entity.could:
            now = max(now, Fraction(-entity.stride))
        beyond += entity.got - now
        entity.got = now
    if beyond:
        back = beyond / sum(entity.tickets for entity in members)
        for entity in members:
            entity.got += back * entity.tickets


def _see_who_could(entities: Sequence[_Entity], room: Mapping[HostName, int]) -> None:
    """Run in a quantum, had it come first. From one to the next that is the same. `room`: GPUs of servers beside what is stuck there."""
    held = Counter[HostName]()
    for entity in entities:
        for name in entity.servers if entity.forced else ():
            held[name] += entity.gpus
    for entity in entities:
        entity.could = entity.needs <= min([room[name] - held[name] for name in entity.servers])


def _walk(entities: Sequence[_Entity], room: Mapping[HostName, int]) -> set[JobId]:
    """The gangs that run. Marks in the entities what they are given."""
    free = dict(room)
    runs: set[JobId] = set()
    short: list[_Entity] = []  # small jobs that have what is left
    for entity in sorted(entities, key=lambda entity: (not entity.forced, entity.place, entity.order)):
        needs = entity.needs
        if min(map(free.__getitem__, entity.servers)) >= needs:
            for name in entity.servers:
                free[name] -= needs
            entity.given = entity.stride
            if not isinstance(entity.key, tuple):
                runs.add(entity.key)
        elif isinstance(entity.key, tuple):
            short.append(entity)
    for entity in short:
        (name,), width = entity.servers, entity.width
        more = min(entity.needs, free[name]) // width * width
        free[name] -= more
        entity.given = entity.stuck + more
    return runs


def name_of(key: Key) -> str:
    return f"h:{key[0]}/{key[1]}" if isinstance(key, tuple) else f"j:{key}"


def _rounded(number: Fraction) -> Fraction:
    return number if number.denominator.bit_length() <= FINEST else Fraction(round(number * ROUNDED), ROUNDED)


class Few:
    """Gangs and servers that take turns quantum after quantum, as `Crowd` has them, exactly."""

    def __init__(self, gangs: Sequence[Gang], servers: Iterable[Server], books: Books) -> None:
        self._gangs = gangs
        self._at = {server.name: server for server in servers}
        self._books = books
        self._played = False
        self._entities = _entities(gangs, self._at, books)
        self._components = _components(self._entities)  # what an entity has got is in there from now on
        used = {name for entity in self._entities for name in entity.servers}
        self._room = {name: self._at[name].gpus - self._at[name].stuck for name in used}
        _see_who_could(self._entities, self._room)
        for members in self._components:
            _spread(members)

    @property
    def gangs(self) -> list[JobId]:
        """That have a turn of their own."""
        return [gang.job for gang in self._gangs]

    @property
    def small(self) -> list[Own]:
        """Whose turns go together, on servers with a part of a gang."""
        return [(name, small.width) for name in sorted(self._at) for small in self._at[name].small]

    def weigh(self, tickets: Mapping[Key, Fraction]) -> None:
        """These have so many from now on; those that take no turns here are passed over."""
        for entity in self._entities:
            if (now := tickets.get(entity.key)) is not None:
                entity.tickets = now

    def play(self) -> GangTurns:
        """One quantum: chooses, and charges."""
        self._played = True
        for entity in self._entities:
            entity.given = 0
        groups = [_Group(members) for members in self._components]
        ran = _walk(self._entities, self._room)
        for group in groups:
            group.charge()
        chosen = [(gang.job, gang.servers) for gang in self._gangs if gang.job in ran]
        return GangTurns(sorted(chosen, key=lambda gang: (min(gang[1]), gang[0])))

    def books(self) -> Books:
        if not self._played:
            return dict(self._books)
        books: dict[str, str | float] = {
            name_of(entity.key): f"{entity.got.numerator}/{entity.got.denominator}"
            for entity in chain.from_iterable(self._components)
        }
        for gang in self._gangs:
            if not gang.able and (kept := self._books.get(name_of(gang.job))) is not None:
                books[name_of(gang.job)] = kept
        return books


def dump_turns(turns: Mapping[HostName, Turn]) -> dict[str, list[int]]:
    """JSON-able."""
    return {name: list(turn.gangs) for name, turn in turns.items()}


def keep_turns(
    dumped: Mapping[str, Any], homes: Mapping[JobId, tuple[HostName, ...]]
) -> dict[HostName, Turn]:
    """The turns of a quantum that was decided before, less the jobs that are gone or live elsewhere now."""
    turned: dict[JobId, set[str]] = {}
    for name, jobs in dumped.items():
        for job in jobs:
            turned.setdefault(job, set()).add(name)
    still = {job for job, names in turned.items() if set(homes.get(job, ())) == names}
    turns = {}
    for name, jobs in dumped.items():
        if kept := tuple(JobId(job) for job in jobs if job in still):
            turns[HostName(name)] = Turn(gangs=kept, local=True)
    return turns


def that_fit(
    turns: Mapping[HostName, Turn], takes: Mapping[JobId, int], gpus: Mapping[HostName, int]
) -> dict[HostName, Turn]:
    """Less the gangs that a server has lost too many GPUs for since that was decided: the lowest ids stay. `takes`: GPUs per server."""
    left = dict(gpus)
    fit: set[JobId] = set()
    for job in sorted({job for turn in turns.values() for job in turn.gangs}):
        servers = [name for name, turn in turns.items() if job in turn.gangs]
        if all(left.get(name, 0) >= takes[job] for name in servers):
            fit.add(job)
            for name in servers:
                left[name] -= takes[job]
    kept = {name: tuple(job for job in turn.gangs if job in fit) for name, turn in turns.items()}
    return {name: Turn(gangs=jobs, local=True) for name, jobs in kept.items() if jobs}


def with_idle(
    turns: Mapping[HostName, Turn], gangs: Iterable[Gang], servers: Iterable[Server]
) -> dict[HostName, Turn]:
    """And with gangs for which there are GPUs that nobody else on their servers can use, since somebody left, or they came, after that was decided.

    Who came first is first. They are not charged: it is at nobody's expense.
    """
    idle = {
        server.name: server.gpus - sum([small.width * small.jobs for small in server.small])
        for server in servers
    }
    chosen = {name: turn.gangs for name, turn in turns.items()}
    waiting = []
    for gang in gangs:
        if gang.job in chosen.get(gang.servers[0], ()):
            for name in gang.servers:
                idle[name] -= gang.per_node
        elif gang.able:
            waiting.append(gang)
    for gang in sorted(waiting, key=lambda gang: (gang.arrival_s, gang.job)):
        if all(idle[name] >= gang.per_node for name in gang.servers):
            for name in gang.servers:
                idle[name] -= gang.per_node
                chosen[name] = tuple(sorted((*chosen.get(name, ()), gang.job)))
    return {name: Turn(gangs=jobs, local=True) for name, jobs in chosen.items()}
