"""The turns of a quantum in which servers run whole gangs first, and share out the rest themselves or leave it: known by gang, and by server for who asks."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hs_core.lazy import lazy
from hs_core.names import HostName, JobId
from hs_core.wanted import Turn


class GangTurns(Mapping[HostName, Turn]):
    """A value. Servers that are left out: LOCAL."""

    def __init__(
        self,
        table: Sequence[tuple[JobId, tuple[HostName, ...]]],
        chosen: NDArray[np.int64] | None = None,
        *,
        whole: Sequence[HostName] = (),
    ) -> None:
        """`table`: gangs, each with its servers; by the first of their servers by name, then by id. It is the same one quantum after quantum
        where `chosen` says which of them, by place, have their turn; None: all. `whole`: servers that share nothing out beside."""
        self.table, self.chosen, self.whole = table, chosen, whole

    @lazy
    def gangs(self) -> Sequence[tuple[JobId, tuple[HostName, ...]]]:
        """Those that have their turn, each with its servers."""
        return self.table if self.chosen is None else [self.table[at] for at in self.chosen.tolist()]

    @lazy
    def _by_server(self) -> dict[HostName, Turn]:
        found: dict[HostName, list[JobId]] = {name: [] for name in self.whole}
        for job, servers in self.gangs:
            for name in servers:
                found.setdefault(name, []).append(job)
        whole = frozenset(self.whole)
        return {name: _turn(tuple(sorted(found[name])), name not in whole) for name in sorted(found)}

    def __getitem__(self, name: HostName) -> Turn:
        return self._by_server[name]

    def __iter__(self) -> Iterator[HostName]:
        return iter(self._by_server)

    def __len__(self) -> int:
        return len(self._by_server)

    # As a mapping has them, without a look at each server: plans are checked in every decision.

    def keys(self) -> KeysView[HostName]:
        return self._by_server.keys()

    def values(self) -> ValuesView[Turn]:
        return self._by_server.values()

    def items(self) -> ItemsView[HostName, Turn]:
        return self._by_server.items()

    def __repr__(self) -> str:
        return f"GangTurns({self._by_server!r})"


@lru_cache(maxsize=1 << 12)  # of servers' turns few are others than some quanta ago
def _turn(gangs: tuple[JobId, ...], local: bool) -> Turn:
    return Turn(gangs=gangs, local=local)
