"""The ranks of one job: who is there, how each stands, and what is said to them and of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hs_core.events.host import HostEvent, JobCapable, JobHeld, JobReady
from hs_core.gang.bound import Bound
from hs_core.gang.messages import Connection, MalformedError, Message
from hs_core.gang.said import Place
from hs_core.names import JobId
from hs_core.reports import Tier


class Standing(Enum):
    WAITING = "waiting"  # at its first suspend point
    RUNNING = "running"
    HELD = "held"


class Told(Enum):
    """What the hosts were told last of the whole job; repeats of it are not news."""

    NOTHING = "nothing"
    READY = "ready"
    HELD = "held"
    RUNNING = "running"
    LEAVING = "leaving"  # its checkpoint is durable


@dataclass(slots=True, kw_only=True)
class Process:
    """A connection that said hello. It counts as a rank once it arrived."""

    pid: int
    place: Place
    can: frozenset[str]
    generation: int  # highest on disk or asked for, but where it leaves that with which it does
    bound: Bound | None = None  # of several nodes, when it said hello
    blocked: bool = False  # in a call to other ranks


@dataclass(slots=True, kw_only=True)
class Rank:
    connection: Connection | None  # None: it left with a durable checkpoint, ahead of the others
    pid: int
    standing: Standing
    step: int
    can: frozenset[str]
    tier: Tier = Tier.HOLD
    generation: int = -1  # where it `leaves`: of its checkpoint
    going: int = 0  # told to go so often, and has not said `going`
    device_bytes: int = 0
    parked_bytes: int = 0
    done: bool = False  # stopped of its own accord: it has done the portion of a copy
    bound: Bound | None = None  # of several nodes, as it said itself

    @property
    def stopped(self) -> bool:
        return self.standing is not Standing.RUNNING

    @property
    def leaves(self) -> bool:
        """Its checkpoint is durable: it trains no more, whatever it is told."""
        return self.standing is Standing.HELD and self.tier is Tier.CHECKPOINT


@dataclass(slots=True, kw_only=True)
class Crew:
    job: JobId
    epoch: int
    now_s: float = 0.0
    processes: dict[Connection, Process] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    siblings: dict[Connection, Rank] = field(
        default_factory=dict
    )  # trains as well, under a rank's number: no stop is agreed on with it
    world: int = 0  # ranks on all nodes; 0: not known
    told: Told = Told.NOTHING
    capable: tuple[bool, bool, bool] | None = None
    tell: list[tuple[Connection, Message]] = field(default_factory=list)
    events: list[HostEvent] = field(default_factory=list)

    @property
    def at(self) -> Mapping[str, Any]:
        return {"now_s": self.now_s, "job": self.job, "epoch": self.epoch}

    @property
    def whole(self) -> bool:
        return 0 < self.world == len(self.ranks)

    @property
    def everyone(self) -> set[int]:
        return set(range(self.world))

    @property
    def stands(self) -> bool:
        return all(rank.stopped and not rank.going for rank in self.ranks.values())

    @property
    def stands_in_part(self) -> bool:
        """Some are at their first suspend point, and all others in calls to them: nobody comes further before they go on."""
        if any(rank.standing is not Standing.WAITING or rank.going for rank in self.ranks.values()):
            return False
        return bool(self.ranks) and not self.whole and self._to_come <= self._there(blocked=True)

    @property
    def trains_in_part(self) -> bool:
        """Some were let go, and the others are there, and have not come to a step."""
        goes = any(rank.standing is Standing.RUNNING or rank.going for rank in self.ranks.values())
        return goes and not self.whole and self._to_come <= self._there()

    @property
    def _to_come(self) -> set[int]:
        return self.everyone - self.ranks.keys()

    def _there(self, *, blocked: bool = False) -> set[int]:
        """Ranks whose processes have said hello; `blocked`: and are in a call to others."""
        there = (each for each in self.processes.values() if each.blocked or not blocked)
        return {each.place.rank for each in there if each.place.world == self.world}

    @property
    def is_bound(self) -> bool:
        """Some are to stop by the word of an agent that knows no more of it: nothing else can be asked of them."""
        return any(rank.bound is not None for rank in self.ranks.values())

    @property
    def step(self) -> int:
        """That all of them have done."""
        return min(rank.step for rank in self.ranks.values())

    @property
    def newest_step(self) -> int:
        return max(rank.step for rank in self.ranks.values())

    @property
    def able(self) -> tuple[bool, bool, bool]:
        """To swap, to write a checkpoint; and whether that has no average with those of copies."""
        can = [rank.can for rank in self.ranks.values()]
        return (
            all("swap" in c for c in can),
            all("checkpoint" in c for c in can),
            any("single" in c for c in can),
        )

    def parked_bytes(self, node: int = 0, nodes: int = 1) -> int:
        """What ranks of one of so many nodes hold in host memory. Every node has as many, in the order of their ranks."""
        there = (rank for number, rank in self.ranks.items() if number * nodes // self.world == node)
        return sum(rank.parked_bytes for rank in there if rank.tier is Tier.SWAP)

    def process(self, connection: Connection) -> Process:
        """Raises MalformedError: it has not said hello."""
        try:
            return self.processes[connection]
        except KeyError:
            raise MalformedError from None

    def rank_of(self, connection: Connection) -> Rank | None:
        return next((rank for rank in self.ranks.values() if rank.connection == connection), None)

    def ranked(self, connection: Connection) -> tuple[int, Rank]:
        """Raises MalformedError: it is no rank, or none any more."""
        for number, rank in self.ranks.items():
            if rank.connection == connection:
                return number, rank
        raise MalformedError

    @property
    def trains_beside(self) -> bool:
        """Who trains beside the ranks would do so on when all of them stand."""
        return any(not each.stopped or each.going for each in self.siblings.values())

    def joins(self, connection: Connection, sibling: Rank) -> None:
        """It trains when the ranks do."""
        self.siblings[connection] = sibling
        if sibling.stopped and not self.stands:
            sibling.going = 1
            self.send(connection, type="go")

    def is_followed(self, number: int) -> bool:
        """A rank is gone; whoever trained beside it under its number counts in its place."""
        place = Place(rank=number, world=self.world)
        for connection in self.siblings:
            if self.processes[connection].place == place:
                self.ranks[number] = self.siblings.pop(connection)
                return True
        return False

    def number_of(self, rank: Rank) -> int:
        return next(number for number, each in self.ranks.items() if each is rank)

    def remove(self, number: int) -> None:
        """What was told of the whole job is no longer so; whoever comes back is told it again."""
        del self.ranks[number]
        self.told, self.capable = Told.NOTHING, None
        if not self.is_followed(number) and not self.ranks:
            self.world = 0

    # --- to the ranks

    def send(self, connection: Connection | None, **message: Any) -> None:
        if connection is not None:
            self.tell.append((connection, message))

    def send_all(self, **message: Any) -> None:
        for rank in self.ranks.values():
            self.send(rank.connection, **message)

    def drop(self, stop: int, ranks: Iterable[Rank]) -> None:
        """Whoever has stopped for it stands, though it was about to leave."""
        for rank in ranks:
            self.send(rank.connection, type="drop", id=stop)
            rank.bound = None
            if rank.leaves:
                rank.tier = Tier.HOLD

    def let_go(self, ranks: Iterable[Rank]) -> None:
        self.told = Told.NOTHING
        for rank in (*ranks, *(each for each in self.siblings.values() if each.stopped and not each.going)):
            rank.going += 1
            self.send(rank.connection, type="go")

    # --- to the hosts

    def say_ready(self) -> None:
        self.told = Told.READY
        self.capable = self.able
        swap, checkpoint, single = self.capable
        ready = JobReady(**self.at, step=self.step, can_swap=swap, can_checkpoint=checkpoint, single=single)
        self.events.append(ready)

    def say_ready_in_part(self) -> None:
        """What all of them can is known when all have come."""
        self.told = Told.READY
        self.events.append(JobReady(**self.at, step=self.step))

    def say_held(self) -> None:
        if self.told in (Told.HELD, Told.LEAVING):
            return
        self.told = Told.HELD
        ranks = self.ranks.values()
        moved = all(rank.tier is Tier.SWAP for rank in ranks)
        tier = Tier.SWAP if moved else Tier.HOLD
        self.events.append(JobHeld(**self.at, step=self.step, tier=tier, parked_bytes=self.parked_bytes()))

    def say_capable(self) -> None:
        if self.whole and self.able != self.capable:
            self.capable = self.able
            swap, checkpoint, single = self.capable
            able = JobCapable(**self.at, can_swap=swap, can_checkpoint=checkpoint, single=single)
            self.events.append(able)
