"""A GangMachine, what was told to its ranks, and what it said to its host."""

from typing import Any

from hs_core.events.host import Checkpoint, Resume, Suspend
from hs_core.gang import GangMachine, Step
from hs_core.names import JobId
from hs_core.reports import Tier

JOB = JobId(3)
HOLD, SWAP, CHECKPOINT = Tier.HOLD, Tier.SWAP, Tier.CHECKPOINT


class Gang:
    """A machine and what it said; connection = 10 + rank."""

    def __init__(self, world: int = 1, *, arrived: bool = True, going: bool = True, **machine: Any) -> None:
        self.machine = GangMachine(JOB, 1, **machine)
        self.world = world
        self.told: list[tuple[Any, dict[str, Any]]] = []
        self.events: list[Any] = []
        for rank in range(world):
            self.hello(rank)
        if arrived:
            for rank in range(world):
                self.say(rank, type="arrived", step=0, can=["hold", "swap"], rank=rank, world=world)
            if going:
                self.order(Resume(job=JOB, epoch=1))
                for rank in range(world):
                    self.say(rank, type="going", step=0, seconds=0.0)

    def hello(self, rank: int, connection: Any = None, **more: Any) -> None:
        hello = {
            "type": "hello",
            "protocol": 1,
            "pid": 100 + rank,
            "rank": rank,
            "world": self.world,
            "step": 0,
            "state": "new",
            "tier": "hold",
            "can": ["hold", "swap"],
            "id": 0,
            "generation": -1,
        }
        self.say_on(10 + rank if connection is None else connection, **{**hello, **more})

    def say(self, rank: int, /, **message: Any) -> None:
        self.say_on(10 + rank, **message)

    def say_on(self, connection: Any, /, **message: Any) -> None:
        self._keep(self.machine.heard(connection, message, 1.0))

    def order(self, order: Suspend | Resume | Checkpoint) -> None:
        self._keep(self.machine.order(order, 1.0))

    def suspend(self, tier: Tier = HOLD) -> None:
        self.order(Suspend(job=JOB, epoch=1, tier=tier))

    def gone(self, rank: int) -> None:
        self._keep(self.machine.gone(10 + rank, 1.0))

    def _keep(self, step: Step) -> None:
        self.machine.check()
        self.told += [(connection, dict(message)) for connection, message in step.tell]
        self.events += step.events

    def newest(self, kind: str) -> dict[int, dict[str, Any]]:
        """The last message of that type to each rank."""
        return {
            connection - 10: message
            for connection, message in self.told
            if message["type"] == kind and isinstance(connection, int)
        }

    def agree(self, kind: str = "stop") -> int:
        proposal = self.newest(kind)
        for rank in range(self.world):
            asked = proposal[rank]
            self.say(rank, type="accept", id=asked["id"], at_step=asked["at_step"], step=0)
            self.machine.check()
        assert set(self.newest("commit")) == set(range(self.world))
        return int(proposal[0]["at_step"])

    def held(self, rank: int, step: int, tier: str = "hold", **more: Any) -> None:
        stop = more.pop("id") if "id" in more else self.newest("stop")[rank]["id"]
        size = more.pop("bytes", 5)
        self.say(rank, type="held", id=stop, step=step, tier=tier, bytes=size, seconds=0.0, **more)

    def forget(self) -> None:
        self.told, self.events = [], []


def kinds(events: list[Any]) -> list[type]:
    return [type(event) for event in events]
