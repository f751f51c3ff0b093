"""When gangs over several servers have their next turns, if nothing changes: split stride played on. Worked out when somebody asks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from hs_core.mechanism.split import Books, Few, Gang, Server
from hs_core.names import JobId

HORIZON = 16  # quanta; a gang that has none in these is told nothing
MOST = 100  # gangs and servers that take turns; of more it would take too long while somebody waits


class TurnsAhead(Mapping[JobId, int]):
    """Of gangs that have one within `HORIZON`: in how many quanta after the one that was planned."""

    def __init__(self, entities: Callable[[], tuple[Sequence[Gang], Sequence[Server]]], books: Books) -> None:
        """`books`: as the planned quantum leaves them."""
        self._entities, self._books = entities, books

    @cached_property
    def _first(self) -> dict[JobId, int]:
        gangs, servers = self._entities()
        if not gangs or len(gangs) + len(servers) > MOST:
            return {}
        table, found = Few(gangs, servers, self._books), dict[JobId, int]()
        for quanta in range(1, HORIZON + 1):
            for job, _ in table.play().gangs:
                found.setdefault(job, quanta)
            if len(found) == len(gangs):
                break
        return found

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, job: JobId) -> int:
        return self._first[job]
