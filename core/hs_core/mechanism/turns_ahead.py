"""When gangs over several servers have their next turns, if nothing changes: split stride played on. Worked out when somebody asks."""

from collections.abc import Callable, Mapping, Sequence

from hs_core.mechanism.later import Later
from hs_core.mechanism.split import Books, Few, Gang, Server
from hs_core.names import JobId

HORIZON = 16  # quanta; a gang that has none in these is told nothing
MOST = 100  # gangs and servers that take turns; of more it would take too long while somebody waits


def turns_ahead(
    entities: Callable[[], tuple[Sequence[Gang], Sequence[Server]]], books: Books
) -> Mapping[JobId, int]:
    """Of gangs that have one within `HORIZON`: in how many quanta after the one that was planned. `books`: as that one leaves them."""

    def played() -> dict[JobId, int]:
        gangs, servers = entities()
        if not gangs or len(gangs) + len(servers) > MOST:
            return {}
        table, found = Few(gangs, servers, books), dict[JobId, int]()
        for quanta in range(1, HORIZON + 1):
            for job, _ in table.play().gangs:
                found.setdefault(job, quanta)
            if len(found) == len(gangs):
                break
        return found

    return Later(played)
