"""The ranks of one job as one: messages of its processes in, host events out, orders turned into messages per rank.

All ranks stop at one step (docs/job-protocol.md): a stop is proposed some steps ahead, agreed by every rank, then committed.
Gandiva_fair suspends each process by itself; ranks of a data-parallel job would then wait for one another inside
a collective, so they agree first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal

from hs_core.events import (
    Checkpoint,
    CheckpointFailed,
    HostEvent,
    JobCapable,
    JobCheckpointed,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
    Resume,
    Suspend,
    SuspendFailed,
)
from hs_core.model import JobId, Tier

PROTOCOL = 1
MAX_RANKS = 4096
MAX_MARGIN = 1 << 16
_HOOK_TIERS = (Tier.HOLD, Tier.SWAP, Tier.CHECKPOINT)

Message = Mapping[str, Any]
Order = Suspend | Resume | Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to send to which connection, in this order, and what happened to the job."""

    tell: tuple[tuple[int, Message], ...] = ()
    events: tuple[HostEvent, ...] = ()


class _Malformed(Exception):  # noqa: N818 - never leaves this module
    """A message that its sender should not have sent."""


class _Standing(Enum):
    WAITING = "waiting"  # at its first suspend point
    RUNNING = "running"
    HELD = "held"


class _Told(Enum):
    """What the host was told last of the whole job; repeats of it are not news."""

    NOTHING = "nothing"
    READY = "ready"
    HELD = "held"
    RUNNING = "running"


@dataclass(slots=True, kw_only=True)
class _Process:
    """A connection that said hello. It counts as a rank once it arrived."""

    pid: int
    rank: int
    world: int
    can: frozenset[str]


@dataclass(slots=True, kw_only=True)
class _Rank:
    connection: int
    pid: int
    standing: _Standing
    step: int
    can: frozenset[str]
    tier: Tier = Tier.HOLD
    going: int = 0  # told to go so often, and has not said `going`
    device_bytes: int = 0
    parked_bytes: int = 0

    @property
    def stopped(self) -> bool:
        return self.standing is not _Standing.RUNNING


@dataclass(slots=True, kw_only=True)
class _Agreement:
    """One stop (or save) under way."""

    id: int
    kind: Literal["stop", "save"]
    tier: Tier
    generation: int
    at_step: int
    margin: int
    was_stopped: bool  # asked of ranks that stand still: a failure leaves them standing
    raised: bool = False  # a rank was past a proposal
    committed: bool = False
    accepted: set[int] = field(default_factory=set)  # ranks
    done: set[int] = field(default_factory=set)


class GangMachine:
    """Pure; one per (job, epoch) and life of the agent. A new one learns all from the ranks' hellos."""

    def __init__(
        self,
        job: JobId,
        epoch: int,
        *,
        pace_s: float = 0.0,
        progress_s: float = 1.0,
        margin: int = 1,
        reserve: bool = False,
    ) -> None:
        """`reserve` lets the ranks set aside host memory for a swap before the first one is asked for."""
        assert pace_s >= 0, f"pace_s {pace_s} of job {job}: expected 0 or more"
        assert progress_s > 0, f"progress_s {progress_s} of job {job}: expected more than 0"
        assert margin >= 1, f"margin {margin} of job {job}: expected 1 or more"
        self.job = job
        self.epoch = epoch
        self.malformed = 0  # messages ignored because they made no sense
        self._welcome: Message = MappingProxyType(
            {"type": "welcome", "pace_s": pace_s, "progress_s": progress_s, "reserve": reserve}
        )
        self._margin = margin
        self._processes: dict[int, _Process] = {}
        self._ranks: dict[int, _Rank] = {}
        self._world = 0  # 0: not known
        self._agreement: _Agreement | None = None
        self._next: Order | None = None  # to be taken up when what is under way has ended
        self._turn = False  # Resume was the last word
        self._told = _Told.NOTHING
        self._hooked = False
        self._capable: tuple[bool, bool] | None = None
        self._restored: dict[int, tuple[int, int, str]] = {}
        self._last_id = 0
        self._generation = -1  # highest one known to be used, whatever came of it
        self._now_s = 0.0
        self._tell: list[tuple[int, Message]] = []
        self._events: list[HostEvent] = []

    # --- what comes in ---------------------------------------------------------------------------------------------

    def order(self, order: Order, now_s: float) -> Step:
        assert (order.job, order.epoch) == (self.job, self.epoch), (
            f"order {order} for job {self.job} epoch {self.epoch}"
        )
        self._now_s = now_s
        self._take(order)
        return self._step()

    def heard(self, connection: int, message: Message, now_s: float) -> Step:
        """Unknown kinds are ignored; what makes no sense is ignored and counted."""
        self._now_s = now_s
        try:
            self._hear(connection, message)
        except _Malformed:
            self.malformed += 1
        return self._step()

    def _hear(self, connection: int, message: Message) -> None:
        match message.get("type"):
            case "hello":
                self._heard_hello(connection, message)
            case "arrived":
                self._heard_arrived(connection, message)
            case "can":
                self._heard_can(connection, message)
            case "accept":
                self._heard_accept(connection, message)
            case "reject":
                self._heard_reject(connection, message)
            case "held":
                self._heard_held(connection, message)
            case "saved":
                self._heard_saved(connection, message)
            case "failed":
                self._heard_failed(connection, message)
            case "going":
                self._heard_going(connection, message)
            case "progress":
                self._heard_progress(connection, message)
            case "restored":
                self._heard_restored(connection, message)
            case _:
                pass

    def gone(self, connection: int, now_s: float) -> Step:
        self._now_s = now_s
        self._processes.pop(connection, None)
        rank = self._rank_of(connection)
        if rank is not None:
            self._lost(rank)
        return self._step()

    def check(self) -> None:
        """Every invariant, in one place."""
        links = [rank.connection for rank in self._ranks.values()]
        assert len(links) == len(set(links)), f"one connection is two ranks: {self._ranks}"
        assert all(0 <= number < self._world for number in self._ranks), (
            f"ranks {set(self._ranks)} of {self._world}"
        )
        agreed = self._agreement
        if agreed is not None:
            everyone = set(range(self._world))
            assert agreed.accepted <= everyone, f"accepted by strangers: {agreed}"
            assert not agreed.committed or agreed.accepted == everyone, f"committed without all: {agreed}"
            assert agreed.done <= everyone, f"done by strangers: {agreed}"
            assert not agreed.done or agreed.committed, f"done before the commit: {agreed}"

    # --- orders ----------------------------------------------------------------------------------------------------

    def _take(self, order: Order) -> None:
        match order:
            case Suspend():
                assert order.tier in _HOOK_TIERS, (
                    f"tier {order.tier} of job {self.job} is not done by the job itself"
                )
                self._turn = False
                self._suspend(order)
            case Resume():
                self._turn = True
                self._resume(order)
            case Checkpoint():
                if self._agreement is None and self._whole:
                    self._propose_new("save", Tier.CHECKPOINT)
                elif self._next is None:
                    self._next = order

    def _suspend(self, order: Suspend) -> None:
        agreed = self._agreement
        if agreed is not None or not self._whole:
            same = agreed is not None and agreed.kind == "stop" and agreed.tier is order.tier
            self._next = None if same else order
        elif order.tier is Tier.HOLD and all(r.stopped and not r.going for r in self._ranks.values()):
            self._told = _Told.NOTHING
            self._say_held()
        else:
            self._next = None
            self._propose_new("stop", order.tier)

    def _resume(self, order: Resume) -> None:
        agreed = self._agreement
        if not self._whole or (agreed is not None and not self._can_take_back(agreed)):
            self._next = order
            return
        self._next = None
        self._agreement = None
        self._let_go(self._ranks.values())

    def _can_take_back(self, agreed: _Agreement) -> bool:
        """Past the commit some ranks may already have stopped: let all stop, then let all go."""
        if agreed.kind == "save" or agreed.tier is Tier.CHECKPOINT:
            return agreed.kind == "stop" and not agreed.committed
        return self._world == 1 or not agreed.committed

    def _let_go(self, ranks: Iterable[_Rank]) -> None:
        self._told = _Told.NOTHING
        for rank in ranks:
            rank.going += 1
            self._send(rank.connection, type="go")

    # --- the agreement ---------------------------------------------------------------------------------------------

    def _propose_new(self, kind: Literal["stop", "save"], tier: Tier) -> None:
        assert self._whole, f"job {self.job} has {len(self._ranks)} of {self._world} ranks"
        self._last_id += 1
        if tier is Tier.CHECKPOINT:
            self._generation += 1
        standing = all(rank.stopped and not rank.going for rank in self._ranks.values())
        # A rank alone stops wherever it is next able to; one that stands still is there already.
        ahead = 0 if standing or self._world == 1 else self._margin
        self._agreement = _Agreement(
            id=self._last_id,
            kind=kind,
            tier=tier,
            generation=self._generation if tier is Tier.CHECKPOINT else -1,
            at_step=max(rank.step for rank in self._ranks.values()) + ahead,
            margin=self._margin,
            was_stopped=standing,
        )
        self._propose()

    def _propose(self) -> None:
        agreed = self._agreement
        assert agreed is not None
        agreed.accepted.clear()
        for rank in self._ranks.values():
            self._send(
                rank.connection,
                type=agreed.kind,
                id=agreed.id,
                at_step=agreed.at_step,
                tier=agreed.tier.value,
                generation=agreed.generation,
            )
        if self._world == 1:
            # A rank alone never rejects: asking first would cost it a round trip.
            agreed.accepted.add(0)
            self._commit(agreed)

    def _commit(self, agreed: _Agreement) -> None:
        agreed.committed = True
        for each in self._ranks.values():
            self._send(each.connection, type="commit", id=agreed.id, at_step=agreed.at_step)

    def _drop(self, agreed_id: int, connections: Iterable[int]) -> None:
        for connection in connections:
            self._send(connection, type="drop", id=agreed_id)

    def _fail(self, why: str) -> None:
        """What was under way will not be; ranks that stood still stay so, the others go on."""
        agreed = self._agreement
        assert agreed is not None
        self._agreement = None
        if agreed.tier is Tier.CHECKPOINT:
            self._events.append(CheckpointFailed(**self._at, why=why))
        if agreed.kind == "stop":
            self._events.append(SuspendFailed(**self._at, why=why))
            self._turn = self._turn or not agreed.was_stopped
        self._drop(agreed.id, [rank.connection for rank in self._ranks.values()])
        if not agreed.was_stopped:
            self._let_go(r for r in self._ranks.values() if r.stopped)

    def _finish(self) -> None:
        agreed = self._agreement
        assert agreed is not None
        self._agreement = None
        step = min((rank.step for rank in self._ranks.values()), default=agreed.at_step)
        if agreed.tier is Tier.CHECKPOINT:
            self._events.append(JobCheckpointed(**self._at, step=step, generation=agreed.generation))
        if agreed.kind == "save":
            self._take_next()
            return
        if agreed.tier is Tier.CHECKPOINT:
            # Their state is on disk: they exit when all of them have said so, none before.
            self._next = None
            self._told = _Told.HELD
            self._events.append(
                JobHeld(**self._at, step=step, tier=Tier.CHECKPOINT, generation=agreed.generation)
            )
            ranks = {rank.connection for rank in self._ranks.values()}
            for connection in sorted(self._processes, key=lambda each: each in ranks):
                self._send(
                    connection, type="leave"
                )  # a launcher before its ranks: it would report them as failed
            return
        self._told = _Told.NOTHING
        self._say_held()
        self._take_next()

    def _take_next(self) -> None:
        order, self._next = self._next, None
        if order is not None:
            self._take(order)

    # --- what ranks say --------------------------------------------------------------------------------------------

    def _heard_hello(self, connection: int, message: Message) -> None:
        if _whole_number(message, "protocol") != PROTOCOL:
            raise _Malformed
        state = message.get("state")
        if state not in {"new", "running", "held"}:
            raise _Malformed
        rank, world = _place(message)
        step = _whole_number(message, "step")
        process = _Process(pid=_whole_number(message, "pid"), rank=rank, world=world, can=_abilities(message))
        tier = _tier(message) if state == "held" else Tier.HOLD
        self._last_id = max(self._last_id, _whole_number(message, "id", 0))
        self._generation = max(self._generation, _whole_number(message, "generation", -1, least=-1))
        self._processes[connection] = process
        self._tell.append((connection, self._welcome))
        if not self._hooked:
            self._hooked = True
            self._events.append(JobHooked(**self._at))
        if state != "new":
            standing = _Standing.HELD if state == "held" else _Standing.RUNNING
            self._admit(connection, process, standing, step, tier)

    def _heard_arrived(self, connection: int, message: Message) -> None:
        process = self._processes.get(connection)
        if process is None:
            raise _Malformed
        step = _whole_number(message, "step")
        if "rank" in message or "world" in message:
            process.rank, process.world = _place(message)
        process.can = _abilities(message)
        known = self._rank_of(connection)
        if known is None or known.standing is _Standing.WAITING:
            self._admit(connection, process, _Standing.WAITING, step, Tier.HOLD)

    def _admit(self, connection: int, process: _Process, standing: _Standing, step: int, tier: Tier) -> None:
        own = self._rank_of(connection)
        if own is not None and own is not self._ranks.get(process.rank):
            raise _Malformed  # a rank does not change its number
        known = self._ranks.get(process.rank)
        if (
            known is not None
            and known.connection not in (connection, -1 - process.rank)
            and known.pid != process.pid
        ):
            # A second process with this number (a helper that a rank started): it never counts.
            if standing is not _Standing.RUNNING:
                self._send(connection, type="go")
            return
        if process.world != self._world:
            self._ranks = {n: r for n, r in self._ranks.items() if n < process.world}
            self._world = process.world
        if known is not None and known.connection != connection and self._agreement is not None:
            self._fail(f"rank {process.rank} connected anew while all were to stop")
        self._ranks[process.rank] = _Rank(
            connection=connection, pid=process.pid, standing=standing, step=step, can=process.can, tier=tier
        )
        if self._agreement is None:
            self._settle()

    def _heard_can(self, connection: int, message: Message) -> None:
        able = _abilities(message)
        process, rank = self._processes.get(connection), self._rank_of(connection)
        if process is not None:
            process.can = able
        if rank is not None:
            rank.can = able
            self._say_capable()

    def _heard_accept(self, connection: int, message: Message) -> None:
        number, rank = self._ranked(connection)
        asked, at_step = _whole_number(message, "id"), _whole_number(message, "at_step")
        rank.step = max(rank.step, _whole_number(message, "step"))
        agreed = self._agreement
        if agreed is None or agreed.id != asked:
            self._drop(asked, [connection])
        elif at_step == agreed.at_step and not agreed.committed:
            agreed.accepted.add(number)
            if agreed.accepted == set(range(self._world)):
                self._commit(agreed)

    def _heard_reject(self, connection: int, message: Message) -> None:
        _, rank = self._ranked(connection)
        asked, step = _whole_number(message, "id"), _whole_number(message, "step")
        rank.step = max(rank.step, step)
        agreed = self._agreement
        # A reject of a lower proposal that was raised meanwhile is no longer news.
        if (
            agreed is None
            or agreed.id != asked
            or agreed.committed
            or _whole_number(message, "at_step") != agreed.at_step
        ):
            return
        self._raise(agreed, step)

    def _raise(self, agreed: _Agreement, step: int) -> None:
        # What was known of the ranks may be a second old: the first reject tells, and says nothing of their speed yet.
        if agreed.raised:
            agreed.margin = min(agreed.margin * 2, MAX_MARGIN)
        agreed.raised = True
        agreed.at_step = (
            max(step, agreed.at_step, *(each.step for each in self._ranks.values())) + agreed.margin
        )
        self._propose()

    def _heard_held(self, connection: int, message: Message) -> None:
        number, rank = self._ranked(connection)
        step, tier = _whole_number(message, "step"), _tier(message)
        rank.parked_bytes = _whole_number(message, "bytes", 0)
        rank.step, rank.tier, rank.standing = step, tier, _Standing.HELD
        agreed = self._agreement
        if agreed is not None and agreed.committed and agreed.id == _whole_number(message, "id"):
            self._did(number)
        elif agreed is None:
            self._settle()  # a stop that an agent before us had ordered
        elif not agreed.committed and not agreed.was_stopped:
            # Likewise, while we ask for another: it can't answer that, so it goes on and all are asked anew.
            if not rank.going:
                self._let_go([rank])
            self._raise(agreed, step)

    def _heard_saved(self, connection: int, message: Message) -> None:
        number, rank = self._ranked(connection)
        rank.step = max(rank.step, _whole_number(message, "step"))
        agreed = self._agreement
        if agreed is not None and agreed.committed and agreed.id == _whole_number(message, "id"):
            self._did(number)

    def _did(self, number: int) -> None:
        agreed = self._agreement
        assert agreed is not None
        agreed.done.add(number)
        if agreed.done == set(range(self._world)):
            self._finish()

    def _heard_failed(self, connection: int, message: Message) -> None:
        self._ranked(connection)
        what, why, asked = message.get("what"), message.get("why"), _whole_number(message, "id")
        if what not in {"swap", "checkpoint"} or not isinstance(why, str):
            raise _Malformed
        if what == "swap":
            return  # it says `held` with the tier it could do
        agreed = self._agreement
        if agreed is not None and agreed.id == asked:
            self._fail(why)
            self._take_next()
            return
        self._events.append(CheckpointFailed(**self._at, why=why))
        self._drop(asked, [rank.connection for rank in self._ranks.values()])

    def _heard_going(self, connection: int, message: Message) -> None:
        rank = self._rank_of(connection)
        if rank is None:
            return  # a process that never counted
        rank.step = _whole_number(message, "step")
        rank.standing, rank.going = _Standing.RUNNING, max(0, rank.going - 1)
        if self._agreement is None:
            self._settle()

    def _heard_progress(self, connection: int, message: Message) -> None:
        number, rank = self._ranked(connection)
        step, steps = _whole_number(message, "step"), _whole_number(message, "steps")
        seconds = message.get("seconds")
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not isfinite(seconds)
            or seconds < 0
        ):
            raise _Malformed
        rank.device_bytes = max(rank.device_bytes, _whole_number(message, "device_bytes", 0))
        rank.step = max(rank.step, step)
        if number == 0 and seconds > 0:
            self._events.append(
                JobProgressed(
                    **self._at,
                    step=min(each.step for each in self._ranks.values()),
                    steps_per_s=steps / seconds,
                    device_memory_bytes=max(each.device_bytes for each in self._ranks.values()),
                )
            )

    def _heard_restored(self, connection: int, message: Message) -> None:
        process = self._processes.get(connection)
        note = message.get("note", "")
        if process is None or not isinstance(note, str):
            raise _Malformed
        rank, world = _place(message) if "rank" in message else (process.rank, process.world)
        self._restored[rank] = (
            _whole_number(message, "step"),
            _whole_number(message, "generation", least=-1),
            note,
        )
        if len(self._restored) >= world:
            step, generation, _ = min(self._restored.values())
            notes = "; ".join(sorted({n for _, _, n in self._restored.values() if n}))
            self._restored.clear()
            self._events.append(JobRestored(**self._at, step=step, generation=generation, note=notes))

    # --- the whole job ---------------------------------------------------------------------------------------------

    @property
    def _at(self) -> dict[str, Any]:
        return {"now_s": self._now_s, "job": self.job, "epoch": self.epoch}

    @property
    def _whole(self) -> bool:
        return 0 < self._world == len(self._ranks)

    def _settle(self) -> None:
        """With nothing under way and everyone there: say how the job stands, and mend what stands half."""
        assert self._agreement is None
        ranks = self._ranks.values()
        if not self._whole or any(rank.going for rank in ranks):
            return
        if self._told is not _Told.NOTHING or any(rank.standing is not _Standing.WAITING for rank in ranks):
            self._say_capable()
        stopped = [rank for rank in ranks if rank.stopped]
        if not stopped:
            if self._told is not _Told.RUNNING:
                self._told = _Told.RUNNING
                self._events.append(JobWentOn(**self._at, step=min(rank.step for rank in ranks)))
        elif len(stopped) < len(ranks):
            # An agent before us left off in the middle: whole or not at all.
            self._let_go(stopped)
        elif all(rank.standing is _Standing.WAITING for rank in ranks):
            if self._told is not _Told.READY:
                self._say_ready()
            if self._turn and self._next is None:
                self._let_go(ranks)  # a new process of a job that is in its turn
        else:
            self._say_held()
        if self._agreement is None:
            self._take_next()

    def _say_ready(self) -> None:
        self._told = _Told.READY
        self._capable = self._able()
        swap, checkpoint = self._capable
        step = min(rank.step for rank in self._ranks.values())
        self._events.append(JobReady(**self._at, step=step, can_swap=swap, can_checkpoint=checkpoint))

    def _say_held(self) -> None:
        if self._told is _Told.HELD:
            return
        self._told = _Told.HELD
        ranks = self._ranks.values()
        moved = all(rank.tier is Tier.SWAP for rank in ranks)
        self._events.append(
            JobHeld(
                **self._at,
                step=min(rank.step for rank in ranks),
                tier=Tier.SWAP if moved else Tier.HOLD,
                parked_bytes=sum(rank.parked_bytes for rank in ranks if rank.tier is Tier.SWAP),
            )
        )

    def _able(self) -> tuple[bool, bool]:
        ranks = self._ranks.values()
        return all("swap" in r.can for r in ranks), all("checkpoint" in r.can for r in ranks)

    def _say_capable(self) -> None:
        if self._whole and self._able() != self._capable:
            self._capable = self._able()
            swap, checkpoint = self._capable
            self._events.append(JobCapable(**self._at, can_swap=swap, can_checkpoint=checkpoint))

    def _lost(self, rank: _Rank) -> None:
        number = next(n for n, each in self._ranks.items() if each is rank)
        agreed = self._agreement
        if (
            agreed is not None
            and agreed.tier is Tier.CHECKPOINT
            and agreed.kind == "stop"
            and number in agreed.done
        ):
            rank.connection = -1 - number  # durable and gone ahead: it still counts for this stop
            return
        del self._ranks[number]
        if self._told is not _Told.NOTHING and self._ranks:
            self._told = _Told.NOTHING
        if not self._ranks:
            self._world, self._told, self._capable = 0, _Told.NOTHING, None
        if agreed is not None:
            self._fail(f"rank {number} left before all had stopped")

    def _rank_of(self, connection: int) -> _Rank | None:
        return next((rank for rank in self._ranks.values() if rank.connection == connection), None)

    def _ranked(self, connection: int) -> tuple[int, _Rank]:
        for number, rank in self._ranks.items():
            if rank.connection == connection:
                return number, rank
        raise _Malformed

    def _send(self, connection: int, **message: Any) -> None:
        if connection >= 0:
            self._tell.append((connection, message))

    def _step(self) -> Step:
        step = Step(tell=tuple(self._tell), events=tuple(self._events))
        self._tell, self._events = [], []
        return step


def _whole_number(message: Message, name: str, default: int | None = None, *, least: int = 0) -> int:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
        raise _Malformed
    return value


def _place(message: Message) -> tuple[int, int]:
    rank, world = _whole_number(message, "rank"), _whole_number(message, "world", least=1)
    if not rank < world <= MAX_RANKS:
        raise _Malformed
    return rank, world


def _abilities(message: Message) -> frozenset[str]:
    can = message.get("can", [])
    if not isinstance(can, list | tuple) or not all(isinstance(word, str) for word in can):
        raise _Malformed
    return frozenset(can)


def _tier(message: Message) -> Tier:
    tier = message.get("tier")
    if tier not in {each.value for each in _HOOK_TIERS}:
        raise _Malformed
    return Tier(tier)
