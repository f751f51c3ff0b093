"""When the machine is to be woken: once the first of all that has a time is due."""

from collections.abc import Iterator

from hs_core.cluster.contents import Contents
from hs_core.cluster.drains import Drains
from hs_core.cluster.moves import Moves
from hs_core.cluster.pace import Pace
from hs_core.events.cluster import Wake


class Wakes:
    def __init__(self, contents: Contents, moves: Moves, drains: Drains, pace: Pace) -> None:
        self._absent = contents.absent
        self._asking = contents.asking
        self._backup = contents.backup
        self._edges = contents.edges
        self._moves = moves
        self._drains = drains
        self._pace = pace
        self._at_s: float | None = None  # what the driver was last told

    def woken(self) -> None:
        self._at_s = None

    def due(self, now_s: float) -> Iterator[Wake]:
        times = [*self._absent.deadlines(), *self._moves.deadlines(now_s), *self._drains.deadlines(now_s)]
        if self._edges.at_s is not None:
            times.append(self._edges.at_s)
        if self._backup.awaits:
            times.append(self._backup.until_s)
        times += [until_s for _, until_s in self._absent.expected.values()]
        if (again_s := self._asking.next_s(self._pace.settle_s())) is not None:
            times.append(again_s)
        if not times:
            return
        at_s = max(now_s, min(times))
        if self._at_s is None or at_s != self._at_s:
            self._at_s = at_s
            yield Wake(at_s=at_s)
