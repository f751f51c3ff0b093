"""Whatever the delays: all ranks stop at one step, and nobody waits for ever.

Simulated data-parallel ranks: a step ends with a collective, which a rank can only leave when all have entered it. A rank that stands still
enters none, so a stop that not all ranks take at one step would hang the job; that shows as ranks that never finish.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.events import Checkpoint, JobHeld, JobWentOn, Resume, Suspend
from hs_core.gang import GangMachine, Step
from hs_core.names import JobId
from hs_core.reports import Tier

JOB = JobId(1)


@dataclass
class Rank:
    """One rank's runtime and script, as docs/job-protocol.md has them."""

    number: int
    count: int = 0
    passed: int = -1
    phase: str = "new"  # new, waiting, running, collective, parked, held, done
    stop: dict[str, Any] | None = None
    committed: bool = False
    go: int = 0
    outbox: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, message: dict[str, Any], world: int) -> None:
        match message["type"]:
            case "stop" | "save":
                if self.phase == "held" and not self.go and message["at_step"] > self.count:
                    return
                standing = self.phase in ("waiting", "parked", "held") and not self.go
                accepts = standing or world == 1 or self.passed < message["at_step"]
                self.stop, self.committed = (message, False) if accepts else (None, False)
                answer = {"type": "accept" if accepts else "reject", "id": message["id"]}
                self.outbox.append({**answer, "at_step": message["at_step"], "step": self.count})
            case "commit":
                if self.stop is not None and self.stop["id"] == message["id"]:
                    assert self.stop["at_step"] == message["at_step"]
                    self.committed = True
            case "go":
                self.stop = None
                if self.phase in ("running", "collective"):
                    self.outbox.append({"type": "going", "step": self.count, "seconds": 0.0})
                elif self.phase in ("waiting", "parked", "held"):
                    self.go += 1
            case "drop":
                if self.stop is not None and self.stop["id"] == message["id"]:
                    self.stop = None

    def stand(self) -> bool:
        """At a suspend point: whether it goes on."""
        while True:
            if self.go:
                self.phase = "running"
                self.outbox += [{"type": "going", "step": self.count, "seconds": 0.0}] * self.go
                self.go = 0
                return True
            stop = self.stop
            if stop is not None and self.committed:
                self.stop, self.committed = None, False
                if stop["type"] == "save":
                    self.outbox.append({"type": "saved", "id": stop["id"], "step": self.count})
                    continue
                self.phase = "held"
                self.outbox.append(
                    {"type": "held", "id": stop["id"], "step": self.count, "tier": stop["tier"], "bytes": 0}
                )
            elif self.phase == "parked" and (stop is None or self.count < stop["at_step"]):
                self.phase = "running"
                return True
            else:
                return False


class World:
    def __init__(
        self, ranks: int, steps: int, dice: Random, spread: float, lag: float = 0.25, *, nodes: int = 1
    ) -> None:
        self.machine = GangMachine(JOB, 1, margin=1, nodes=nodes)
        self.lag = lag  # of messages, in steps
        self.ranks = [Rank(number) for number in range(ranks)]
        self.steps = steps
        self.dice = dice
        self.spread = spread
        self.now = 0.0
        self.events: list[Any] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._arrival: dict[tuple[str, int], float] = {}
        for rank in self.ranks:
            self.after(self.delay(), lambda rank=rank: self.begin(rank))

    def delay(self) -> float:
        return self.dice.uniform(0.01, 1.0) ** self.spread

    def after(self, delay: float, act: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay, self._sequence, act))

    def run(self) -> None:
        turns = 0
        while self._queue:
            turns += 1
            assert turns < 200_000, "the agreement never ends"
            self.now, _, act = heapq.heappop(self._queue)
            act()

    def send(self, lane: tuple[str, int], act: Callable[[], None]) -> None:
        """In order on each connection, each way."""
        at = max(self._arrival.get(lane, 0.0), self.now + self.delay() * self.lag)
        self._arrival[lane] = at
        self.after(at - self.now, act)

    def do(self, step: Step) -> None:
        self.machine.check()
        for event in step.events:
            self.events.append(event)
            if isinstance(event, JobHeld):
                self.all_stand_at(event.step)
        for connection, message in step.tell:
            rank = self.ranks[connection]
            self.send(
                ("down", connection), lambda rank=rank, message=dict(message): self.deliver(rank, message)
            )

    def all_stand_at(self, step: int) -> None:
        assert {rank.phase for rank in self.ranks} <= {"held", "waiting"}, [vars(r) for r in self.ranks]
        assert {rank.count for rank in self.ranks} == {step}

    def deliver(self, rank: Rank, message: dict[str, Any]) -> None:
        if rank.phase == "done":
            return
        rank.hear(message, len(self.ranks))
        if rank.phase in ("waiting", "parked", "held") and rank.stand():
            self.compute(rank)
        self.flush(rank)

    def flush(self, rank: Rank) -> None:
        said, rank.outbox = rank.outbox, []
        for message in said:
            self.send(
                ("up", rank.number), lambda m=message: self.do(self.machine.heard(rank.number, m, self.now))
            )

    # --- the script ------------------------------------------------------------------------------------------------

    def begin(self, rank: Rank) -> None:
        world = len(self.ranks)
        rank.phase, rank.passed = "waiting", 0
        rank.outbox += [
            {
                "type": "hello",
                "protocol": 1,
                "pid": rank.number,
                "rank": rank.number,
                "world": world,
                "step": 0,
                "state": "new",
                "tier": "hold",
                "can": ["hold"],
            },
            {"type": "arrived", "step": 0, "can": ["hold"], "rank": rank.number, "world": world},
        ]
        self.flush(rank)

    def compute(self, rank: Rank) -> None:
        self.after(self.delay(), lambda: self.enter(rank))

    def enter(self, rank: Rank) -> None:
        rank.phase = "collective"
        if all(each.phase == "collective" and each.count == rank.count for each in self.ranks):
            for each in self.ranks:
                self.after(self.delay() / 8, lambda each=each: self.leave(each))

    def leave(self, rank: Rank) -> None:
        rank.count += 1
        rank.phase = "running"
        self.after(self.delay() / 8, lambda: self.point(rank))

    def point(self, rank: Rank) -> None:
        if rank.count == self.steps:
            rank.phase = "done"
            self.send(("up", rank.number), lambda: self.do(self.machine.gone(rank.number, self.now)))
            return
        rank.passed = rank.count
        if rank.stop is not None and rank.count >= rank.stop["at_step"]:
            rank.phase = "parked"
            goes_on = rank.stand()
            self.flush(rank)
            if not goes_on:
                return
        self.compute(rank)

    def order(self, what: str, node: int = 0) -> None:
        if all(rank.phase == "done" for rank in self.ranks):
            return
        orders = {
            "hold": Suspend(job=JOB, epoch=1, tier=Tier.HOLD),
            "swap": Suspend(job=JOB, epoch=1, tier=Tier.SWAP),
            "save": Checkpoint(job=JOB, epoch=1),
            "resume": Resume(job=JOB, epoch=1),
        }
        self.do(self.machine.order(orders[what], self.now, node=node))


ORDERS = st.lists(
    st.tuples(st.floats(0.0, 8.0), st.sampled_from(["hold", "swap", "save", "resume", "resume"])), max_size=14
)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 60),
    ORDERS,
    st.integers(0, 2**32),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([0.1, 1.0, 10.0]),
)
def test_all_ranks_stop_at_one_step_and_none_waits_for_ever(  # noqa: PLR0917 - hypothesis names them
    ranks: int, steps: int, orders: list[tuple[float, str]], seed: int, spread: float, lag: float
) -> None:
    world = World(ranks, steps, Random(seed), spread, lag)
    at = 0.0
    for pause, what in orders:
        at += pause
        world.after(at, lambda what=what: world.order(what))
    world.after(at + 5.0, lambda: world.order("resume"))
    world.run()
    if any(rank.phase != "done" for rank in world.ranks):
        # An order may have failed because a rank had ended already: the host would let the job go on.
        world.order("resume")
        world.run()
    assert [rank.phase for rank in world.ranks] == ["done"] * ranks, [vars(rank) for rank in world.ranks]
    assert {rank.count for rank in world.ranks} == {steps}


NODE_ORDERS = st.lists(
    st.tuples(
        st.floats(0.0, 4.0),
        st.integers(0, 2),
        st.sampled_from(["hold", "swap", "save", "resume", "resume"]),
    ),
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 3),
    st.integers(1, 60),
    NODE_ORDERS,
    st.integers(0, 2**32),
    st.sampled_from([0.1, 1.0, 10.0]),
)
def test_whatever_each_node_orders_all_ranks_stop_at_one_step_and_go_on_when_all_say_so(
    nodes: int, steps: int, orders: list[tuple[float, int, str]], seed: int, lag: float
) -> None:
    world = World(nodes + 1, steps, Random(seed), 1.0, lag, nodes=nodes)
    at = 0.0
    for pause, node, what in orders:
        at += pause
        world.after(at, lambda what=what, node=node: world.order(what, node % nodes))

    def all_go_on() -> None:
        for node in range(nodes):
            world.order("resume", node)

    world.after(at + 5.0, all_go_on)
    world.run()
    if any(rank.phase != "done" for rank in world.ranks):
        all_go_on()
        world.run()
    assert [rank.phase for rank in world.ranks] == ["done"] * (nodes + 1), [vars(r) for r in world.ranks]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32))
def test_every_suspend_of_a_running_gang_is_answered_and_undone(ranks: int, seed: int) -> None:
    world = World(ranks, 10_000, Random(seed), 1.0)
    world.do(world.machine.order(Resume(job=JOB, epoch=1), 0.0))
    seen = {"held": 0, "on": 0}

    def turn() -> None:
        held = sum(isinstance(event, JobHeld) for event in world.events)
        went_on = sum(isinstance(event, JobWentOn) for event in world.events)
        if went_on > seen["on"]:
            seen["on"] = went_on
            if seen["on"] > 12:
                world.steps = max(rank.count for rank in world.ranks) + 3
                return
            world.order("hold")
        elif held > seen["held"]:
            seen["held"] = held
            world.order("resume")
        world.after(0.05, turn)

    world.after(0.0, turn)
    world.run()
    assert seen == {"held": 12, "on": 13}
    assert [rank.phase for rank in world.ranks] == ["done"] * ranks
