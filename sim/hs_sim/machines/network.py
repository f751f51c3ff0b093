"""Lines between the controller and its agents: in order and whole, or cut; what is sent over a cut line waits, and then is lost.

A line is a TCP connection: a lost packet only delays. What the system sees of loss is a line that breaks with messages under way.
What it sees of repetition and disorder is a message that comes again, also after newer ones.
"""

from collections.abc import Callable
from typing import Any

from hs_core.dice import Random
from hs_core.names import HostName
from hs_sim.machines.clock import Clock
from hs_sim.machines.timing import Timing

Receive = Callable[..., None]

LATE_S = 20.0  # most that a repeated message is behind

UP, DOWN = 0, 1  # from the agent, from the controller


class Line:
    """One connection. Each end closes it by itself; what arrives at a closed end is gone."""

    __slots__ = ("buffers", "closed", "earliest_s", "full", "host", "number")

    def __init__(self, number: int, host: HostName) -> None:
        self.number = number
        self.host = host
        self.closed = [
            False,
            False,
        ]  # for what goes up (at the controller), for what goes down (at the agent)
        self.earliest_s = [0.0, 0.0]
        self.full = False  # the controller has not taken in the last report yet: the next one waits
        self.buffers: tuple[list[Any], list[Any]] = ([], [])

    @property
    def open(self) -> bool:
        return not (self.closed[UP] or self.closed[DOWN])


class Network:
    def __init__(self, clock: Clock, timing: Timing, dice: Random) -> None:
        self._clock = clock
        self._timing = timing
        self._dice = dice
        self._cut: dict[tuple[HostName, int], int] = {}  # how many partitions hold this direction
        self._lines: dict[HostName, Line] = {}
        self.repeat = 0.0  # how likely a message comes again
        self.sent = 0

    def delay_s(self) -> float:
        jitter_s = self._timing.jitter_s
        return self._timing.delay_s + (self._dice.random() * jitter_s if jitter_s else 0.0)

    def line(self, host: HostName) -> Line:
        old = self._lines.get(host)
        line = self._lines[host] = Line(old.number + 1 if old else 1, host)
        return line

    def send(self, line: Line, way: int, receive: Receive, *message: Any) -> None:
        """`receive(line, *message)` at the other end, unless the line is dead by then."""
        if line.closed[way]:
            return
        self.sent += 1
        if (line.host, way) in self._cut:
            line.buffers[way].append((receive, message))
            return
        self._carry(line, way, receive, message)

    def _carry(self, line: Line, way: int, receive: Receive, message: tuple[Any, ...]) -> None:
        at_s = max(self._clock.now_s + self.delay_s(), line.earliest_s[way])
        line.earliest_s[way] = at_s
        self._clock.at(at_s, self._arrive, line, way, receive, message)
        if self.repeat and self._dice.random() < self.repeat:
            # Reports mean what they say only in their order; what is wanted is numbered.
            again_s = at_s + (self._dice.random() * LATE_S if way == DOWN else 0.0)
            self._clock.at(again_s, self._arrive, line, way, receive, message)

    def _arrive(self, line: Line, way: int, receive: Receive, message: tuple[Any, ...]) -> None:
        if not line.closed[way]:
            receive(line, *message)

    def is_cut(self, host: HostName, way: int) -> bool:
        return (host, way) in self._cut

    def through(self, one: HostName, other: HostName) -> bool:
        """Whether two hosts reach each other: who cannot be reached by the controller is reached by nobody."""
        return not any((host, way) in self._cut for host in (one, other) for way in (UP, DOWN))

    def cut(self, host: HostName, ways: tuple[int, ...]) -> None:
        for way in ways:
            self._cut[host, way] = self._cut.get((host, way), 0) + 1

    def heal(self, host: HostName, ways: tuple[int, ...]) -> None:
        for way in ways:
            held = self._cut.pop((host, way), 0)
            if held > 1:
                self._cut[host, way] = held - 1
                continue
            line = self._lines.get(host)
            if line is not None:
                waiting = list(line.buffers[way])
                line.buffers[way].clear()
                for receive, message in waiting:
                    self._carry(line, way, receive, message)
