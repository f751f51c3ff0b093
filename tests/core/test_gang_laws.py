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

from hs_core.events.host import Checkpoint, JobHeld, JobWentOn, Resume, Suspend
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
    node: int = 0
    doing: dict[str, Any] | None = None  # writes its part
    writes: bool = False  # … and it is known when it will have
    abandoned: bool = False
    written: dict[str, Any] | None = None  # leaves when it is told to
    before: str = ""
    connection: int = 0
    last_id: int = 0
    generation: int = -1
    outbox: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bound(self) -> bool:
        """By a stop that it has accepted, whether or not it knows that all have."""
        return self.stop is not None and self.stop["type"] == "stop" and self.stop["tier"] == "checkpoint"

    def lost(self) -> None:
        """The agent is gone, or node 0's."""
        if not self.bound and not self.committed:
            self.stop = None

    def hello(self, world: int) -> list[dict[str, Any]]:
        state = {"new": "new", "waiting": "new", "held": "held"}.get(self.phase, "running")
        hello = {
            "type": "hello", "protocol": 1, "pid": self.number, "rank": self.number, "world": world, "step": self.count,
            "state": state, "tier": "checkpoint" if self.written else "hold", "can": ["hold"], "id": self.last_id,
            "generation": self.written["generation"] if self.written else self.generation,
        }  # fmt: skip
        doing = None if self.abandoned else self.doing
        bound = self.written or doing or (self.stop if self.bound else None)
        if bound is not None and bound["type"] == "stop":
            hello["bound"] = {
                **{name: bound[name] for name in ("id", "at_step", "generation")},
                "committed": bound is not self.stop or self.committed,
            }
        arrived = {
            "type": "arrived",
            "step": self.count,
            "can": ["hold"],
            "rank": self.number,
            "world": world,
        }
        return [hello, arrived] if self.phase == "waiting" else [hello]

    def hear(self, message: dict[str, Any], world: int) -> None:
        match message["type"]:
            case "stop" | "save":
                self.last_id = max(self.last_id, message["id"])
                self.generation = max(self.generation, message["generation"])
                if self.phase == "held" and not self.go and message["at_step"] > self.count:
                    return
                if self.bound and self.committed:
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
                if self.doing is not None and self.doing["id"] == message["id"]:
                    self.abandoned = True
                if self.written is not None and self.written["id"] == message["id"]:
                    self.written, self.phase = None, self.before
            case "leave":
                self.phase = "left"

    def wrote(self, *, well: bool) -> None:
        stop, self.doing, self.writes = self.doing, None, False
        assert stop is not None
        if not well or self.abandoned:
            self.outbox.append({"type": "failed", "id": stop["id"], "what": "checkpoint", "why": "disk full"})
            return
        self.before, self.phase, self.written = self.phase, "held", stop
        self.outbox.append(
            {
                "type": "held", "id": stop["id"], "step": self.count, "tier": "checkpoint", "bytes": 0,
                "generation": stop["generation"],
            }
        )  # fmt: skip

    def stand(self) -> bool:
        """At a suspend point: whether it goes on."""
        while True:
            if self.written is not None or self.doing is not None:
                return False
            if self.go:
                self.phase = "running"
                self.outbox += [{"type": "going", "step": self.count, "seconds": 0.0}] * self.go
                self.go = 0
                return True
            stop = self.stop
            if self.phase == "parked" and (stop is None or self.count < stop["at_step"]):
                self.phase = "running"
                return True
            if stop is None or not self.committed:
                return False
            self.stop, self.committed = None, False
            if stop["type"] == "save":
                self.outbox.append({"type": "saved", "id": stop["id"], "step": self.count})
            elif stop["tier"] == "checkpoint":
                self.doing, self.abandoned = stop, False
            else:
                self.phase = "held"
                self.outbox.append(
                    {"type": "held", "id": stop["id"], "step": self.count, "tier": stop["tier"], "bytes": 0}
                )


class World:
    def __init__(
        self, ranks: int, steps: int, dice: Random, spread: float, lag: float = 0.25, *, nodes: int = 1
    ) -> None:
        self.nodes = nodes
        self.machine = GangMachine(JOB, 1, margin=1, nodes=nodes)
        self.lag = lag  # of messages, in steps
        self.ranks = [Rank(number, node=number * nodes // ranks) for number in range(ranks)]
        self.standing: dict[int, str] = {}  # newest order of each node
        self.full = 0.0  # how many of the writes fail
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
        for (number, link), message in step.tell:
            rank = self.ranks[number]
            self.send(
                ("down", number),
                lambda rank=rank, link=link, message=dict(message): self.deliver(rank, link, message),
            )

    def all_stand_at(self, step: int) -> None:
        # Said again to who comes back, where others have left.
        assert {rank.phase for rank in self.ranks} <= {"held", "waiting", "left"}, [
            vars(r) for r in self.ranks
        ]
        assert {rank.count for rank in self.ranks} == {step}

    def deliver(self, rank: Rank, link: int, message: dict[str, Any]) -> None:
        if rank.phase in ("done", "left") or link != rank.connection:
            return
        rank.hear(message, len(self.ranks))
        self.look(rank)
        if rank.phase == "left":
            self.send(("up", rank.number), lambda: self.end(rank, link))

    def look(self, rank: Rank) -> None:
        """Whether it goes on from where it stands."""
        if rank.phase in ("waiting", "parked", "held") and rank.stand():
            self.compute(rank)
        self.write(rank)
        self.flush(rank)

    def write(self, rank: Rank) -> None:
        if rank.doing is None or rank.writes:
            return
        rank.writes = True
        well = self.dice.random() >= self.full

        def wrote() -> None:
            rank.wrote(well=well)
            self.look(rank)

        self.after(4 * self.delay(), wrote)

    def flush(self, rank: Rank) -> None:
        if rank.connection < 0:  # its agent has no link: what the next hello does not say is kept
            rank.outbox = [said for said in rank.outbox if said["type"] in ("held", "failed", "saved")]
            return
        said, rank.outbox = rank.outbox, []
        for message in said:
            self.send(("up", rank.number), lambda m=message, link=rank.connection: self.hear(rank, link, m))

    def hear(self, rank: Rank, link: int, message: dict[str, Any]) -> None:
        if link == rank.connection:
            self.do(self.machine.heard((rank.number, link), message, self.now))

    def end(self, rank: Rank, link: int) -> None:
        if link == rank.connection:
            self.do(self.machine.gone((rank.number, link), self.now))

    # --- trouble ---------------------------------------------------------------------------------------------------

    def lose_link(self, node: int) -> None:
        """Between a node and node 0. What was on the way is lost."""
        for rank in self.ranks:
            if rank.node == node and rank.connection >= 0:
                self.cut(rank, lambda rank, link: self.do(self.machine.gone((rank.number, link), self.now)))

    def restart_head(self) -> None:
        """The agent of node 0 dies, and one that knows nothing takes its place."""
        self.machine = GangMachine(JOB, 1, margin=1, nodes=self.nodes)
        for rank in self.ranks:
            if rank.connection >= 0:
                self.cut(rank, lambda _rank, _link: None)

    def cut(self, rank: Rank, gone: Callable[[Rank, int], None]) -> None:
        link = rank.connection
        rank.connection = -1 - link
        gone(rank, link)

        def notice() -> None:
            rank.lost()
            self.look(rank)

        def dial() -> None:
            rank.connection = link + 1
            if rank.phase not in ("done", "left", "new"):
                rank.outbox = [*rank.hello(len(self.ranks)), *rank.outbox]
                self.flush(rank)
            if rank.node in self.standing:
                self.send(("up", rank.number), lambda: self.order(self.standing[rank.node], rank.node))

        self.after(self.delay() / 4, notice)
        self.after(self.delay() / 4 + self.dice.choice((0.3, 4.0, 20.0)), dial)

    # --- the script ------------------------------------------------------------------------------------------------

    def begin(self, rank: Rank) -> None:
        world = len(self.ranks)
        rank.phase, rank.passed = "waiting", 0
        if rank.connection >= 0:
            rank.outbox += rank.hello(world)
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
            link = rank.connection
            if link >= 0:
                self.send(("up", rank.number), lambda: self.end(rank, link))
            return
        rank.passed = rank.count
        if rank.stop is not None and rank.count >= rank.stop["at_step"]:
            rank.phase = "parked"
            self.look(rank)
        else:
            self.compute(rank)

    def order(self, what: str, node: int = 0) -> None:
        if all(rank.phase in ("done", "left") for rank in self.ranks):
            return
        orders = {
            "hold": Suspend(job=JOB, epoch=1, tier=Tier.HOLD),
            "swap": Suspend(job=JOB, epoch=1, tier=Tier.SWAP),
            "checkpoint": Suspend(job=JOB, epoch=1, tier=Tier.CHECKPOINT),
            "save": Checkpoint(job=JOB, epoch=1),
            "resume": Resume(job=JOB, epoch=1),
        }
        if what != "save":
            self.standing[node] = what
        self.do(self.machine.order(orders[what], self.now, node=node))

    def all_go_on(self) -> None:
        for node in range(self.nodes):
            self.order("resume", node)

    def happens(self, acts: list[tuple[float, int, str]]) -> float:
        """Each so long after the one before, at a node or the link to it. When the last one does."""
        at = 0.0
        for pause, node, what in acts:
            at += pause
            if what == "link":
                self.after(at, lambda node=node: self.lose_link(1 + node % (self.nodes - 1)))
            elif what == "head":
                self.after(at, self.restart_head)
            else:
                self.after(at, lambda what=what, node=node: self.order(what, node % self.nodes))
        return at


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


def acts_st(most: int, *what: str) -> st.SearchStrategy[list[tuple[float, int, str]]]:
    """Pauses, nodes, and what happens there."""
    return st.lists(st.tuples(st.floats(0.0, 4.0), st.integers(0, 2), st.sampled_from(what)), max_size=most)


NODE_ORDERS = acts_st(20, "hold", "swap", "save", "resume", "resume")
TROUBLE = acts_st(16, "hold", "save", "resume", "checkpoint", "checkpoint", "link", "link", "head")


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
    world.after(world.happens(orders) + 5.0, world.all_go_on)
    world.run()
    if any(rank.phase != "done" for rank in world.ranks):
        world.all_go_on()
        world.run()
    assert [rank.phase for rank in world.ranks] == ["done"] * (nodes + 1), [vars(r) for r in world.ranks]


@settings(max_examples=400, deadline=None)
@given(
    st.integers(2, 3),
    st.integers(1, 60),
    TROUBLE,
    st.integers(0, 2**32),
    st.sampled_from([0.1, 1.0, 10.0]),
    st.sampled_from([0.0, 0.3]),
)
def test_all_ranks_leave_with_one_checkpoint_or_train_on_whatever_is_lost_between_their_nodes(  # noqa: PLR0917 - hypothesis names them
    nodes: int, steps: int, trouble: list[tuple[float, int, str]], seed: int, lag: float, full: float
) -> None:
    world = World(nodes + 1, steps, Random(seed), 1.0, lag, nodes=nodes)
    world.full = full
    world.happens(trouble)
    world.run()
    for _ in range(3):
        world.all_go_on()
        world.run()
    phases = {rank.phase for rank in world.ranks}
    if "left" in phases:  # who does not hear that all have written leaves by itself after a while
        written = {(rank.count, rank.written["generation"]) for rank in world.ranks if rank.written}
        assert len(written) == 1, [vars(rank) for rank in world.ranks]
        assert all(rank.written for rank in world.ranks), [vars(rank) for rank in world.ranks]
    else:
        assert phases == {"done"}, [vars(rank) for rank in world.ranks]


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


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 1 << 64)
    | st.floats()
    | st.sampled_from(["held", "checkpoint", "swap", ""]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "at_step"]), inner, max_size=2)
    ),
    max_leaves=3,
)
WORDS = [
    "hello",
    "arrived",
    "blocked",
    "can",
    "accept",
    "reject",
    "held",
    "saved",
    "failed",
    "going",
    "progress",
    "restored",
]
FIELDS = [
    "protocol", "pid", "rank", "world", "step", "state", "tier", "can", "id", "generation", "bound", "at_step", "bytes",
    "what", "why", "seconds", "steps", "device_bytes", "noise_scale", "noise_samples", "note", "portion", "on",
]  # fmt: skip
SOUND = {
    "protocol": 1, "pid": 9, "rank": 0, "world": 1, "step": 3, "state": "new", "tier": "hold", "can": ["hold"], "id": 1, "generation": 0,
    "at_step": 3, "what": "swap", "why": "", "seconds": 1.0, "steps": 1,
}  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(WORDS),
    st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=3),
    st.sets(st.sampled_from(FIELDS), max_size=2),
    st.integers(1, 2),
)
def test_whatever_a_process_says_it_is_understood_or_counted_as_malformed(
    word: str, odd: dict[str, Any], left_out: set[str], nodes: int
) -> None:
    machine = GangMachine(JOB, 1, nodes=nodes)
    machine.heard(0, {"type": "hello", **SOUND}, 0.0)
    machine.heard(0, {"type": "arrived", **SOUND}, 0.0)
    message = {name: value for name, value in (SOUND | odd).items() if name not in left_out}
    for connection in (0, 1):
        machine.heard(connection, {**message, "type": word}, 1.0)
        machine.check()
