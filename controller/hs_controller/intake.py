"""What waits to be taken into a batch: requests, whose callers wait for answers, and what agents and timers tell.

Somebody waits for the answer to a request, and nobody for what an agent or a timer tells: a batch has the requests first, all of them, and then of
what was told, in its order, as much as can be handled in a moment; little, where a long batch (a decision) has kept the requests waiting. The
rest is of the next batch, behind the requests that came meanwhile.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hs_controller.rows import Kept
from hs_core.cluster import ClusterMachine, Outcome
from hs_core.events.cluster import ClusterEvent
from hs_core.model import Job

BATCH = 1024  # items, so that one transaction stays short
LONG_S = 0.03  # of a batch: who asked meanwhile has waited for long enough
TURN_S = 0.01  # from a batch's beginning what was told may be taken in, or as long as the last commit: on a slow disk it must not pile up between commits

Make = Callable[[float, ClusterMachine], Sequence[ClusterEvent | Kept]]
Render = Callable[[Sequence[Outcome]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What makes a request the same when it is sent again."""

    caller: str
    key: str
    digest: bytes


def _future() -> asyncio.Future[bytes]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Item:
    make: Make
    render: Render | None = None  # None: nobody is answered
    key: Key | None = None
    recalled: Sequence[Job] = ()
    done: asyncio.Future[bytes] = field(default_factory=_future)

    def settle(self, answer: bytes | Exception) -> None:
        if self.done.done():
            return
        if isinstance(answer, bytes):
            self.done.set_result(answer)
        else:
            self.done.set_exception(answer)
            self.done.exception()  # seen: an answer that nobody waits for any more is no error of the loop


class Intake:
    def __init__(self) -> None:
        self._asked: deque[Item] = deque()
        self._told: deque[Item] = deque()
        self._broken: Exception | None = None
        self.something = asyncio.Event()
        """To do: this, or what else its owner has."""

    @property
    def waiting(self) -> bool:
        return bool(self._asked or self._told)

    @property
    def requests(self) -> int:
        return len(self._asked)

    def ask(self, item: Item) -> asyncio.Future[bytes]:
        return self._put(self._asked, item)

    def tell(self, item: Item) -> asyncio.Future[bytes]:
        return self._put(self._told, item)

    def _put(self, queue: deque[Item], item: Item) -> asyncio.Future[bytes]:
        if self._broken is not None:
            item.settle(self._broken)
            return item.done
        queue.append(item)
        self.something.set()
        return item.done

    def batch(self, step_s: float, commit_s: float) -> Iterator[Item]:
        """Requests first; of what was told at least one, so that requests without end don't keep it waiting for ever.

        `step_s`: what the batch before took, and `commit_s` its commit.
        """
        late = bool(self._asked) and step_s > LONG_S
        until_s = time.perf_counter() + (0.0 if late else max(TURN_S, commit_s))
        for _ in range(min(BATCH, len(self._asked))):
            yield self._asked.popleft()
        for _ in range(BATCH):
            if self._told:
                yield self._told.popleft()
            if not self._told or time.perf_counter() >= until_s:
                return

    def refuse(self, why: Exception) -> None:
        """All that waits."""
        for queue in (self._asked, self._told):
            while queue:
                queue.popleft().settle(why)

    def shut(self, why: Exception) -> None:
        """That, and whatever comes."""
        self._broken = why
        self.refuse(why)
