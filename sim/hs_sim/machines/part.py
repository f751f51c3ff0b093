"""One node's part of a modelled incarnation."""

from collections.abc import Callable
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any

from hs_core.events.host import HostEvent, JobExited
from hs_core.names import GpuId, JobId
from hs_core.reports import Exit

if TYPE_CHECKING:
    from hs_sim.machines.agent import Agent
    from hs_sim.machines.gang import Gang


class Way(Enum):
    """How a part stands."""

    COMING = "coming"
    UP = "up"  # its part of the start is done; the others' perhaps not
    STANDING = "standing"  # at a step edge
    GOING = "going"  # let go
    STOPPING = "stopping"
    GONE = "gone"


class Part:
    """One node's process (with all of its ranks)."""

    __slots__ = (
        "agent",
        "arrives_s",
        "asked",
        "exit",
        "frozen",
        "gang",
        "gpus",
        "heard",
        "hooked",
        "in_touch",
        "lacks",
        "launched_s",
        "needs_bytes",
        "newest",
        "occupied_s",
        "parked_bytes",
        "rank",
        "share",
        "unsaid",
        "up_s",
        "way",
    )

    def __init__(self, gang: "Gang", agent: "Agent", rank: int, gpus: tuple[GpuId, ...]) -> None:
        self.gang = gang
        self.agent = agent
        self.rank = rank
        self.gpus = gpus
        self.way = Way.COMING
        self.hooked = False
        self.frozen = False
        self.newest = 0  # number of the order given last on its host
        self.arrives_s = 0.0  # the newest order, over the link to node 0
        self.heard = -1  # number of the newest that reached node 0
        self.asked = -1  # the generation that it is to go on from
        self.occupied_s: float | None = None  # its GPUs are its own since
        self.share = float(len(gpus))  # and it is charged for so many of them
        self.launched_s = inf
        self.lacks = False  # what it trained with is not there
        self.up_s = inf  # stands since then, or did once
        self.parked_bytes = 0  # of its GPUs' memory that it has moved: that much of its host's stays its own
        self.needs_bytes = 0  # of each of its GPUs, for want of which it ended
        self.exit: Exit | None = None
        self.in_touch = False  # with the agents of the other parts, when it ended
        self.unsaid: list[
            tuple[Callable[..., HostEvent], dict[str, Any]]
        ] = []  # for want of a link to node 0

    @property
    def gone(self) -> bool:
        return self.way is Way.GONE

    @property
    def key(self) -> tuple[JobId, int]:
        return self.gang.key

    def exited(self, now_s: float) -> JobExited:
        """What its agent finds of it once it is gone."""
        job, epoch = self.key
        assert self.exit is not None
        return JobExited(
            now_s=now_s, job=job, epoch=epoch, exit=self.exit, in_touch=self.in_touch, needs_bytes=self.needs_bytes
        )  # fmt: skip
