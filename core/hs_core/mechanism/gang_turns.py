"""The turns of a quantum in which servers run whole gangs first and share out the rest themselves: known by gang, and by server for who asks."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from hs_core.events import Turn
from hs_core.names import HostName, JobId


class GangTurns(Mapping[HostName, Turn]):
    """A value. Servers that are left out: LOCAL."""

    def __init__(self, gangs: Sequence[tuple[JobId, tuple[HostName, ...]]]) -> None:
        """`gangs`: each with its servers; by the first of their servers by name, then by id."""
        self.gangs = gangs

    @cached_property
    def _by_server(self) -> dict[HostName, Turn]:
        found: dict[HostName, list[JobId]] = {}
        for job, servers in self.gangs:
            for name in servers:
                found.setdefault(name, []).append(job)
        return {name: Turn(gangs=tuple(sorted(found[name])), local=True) for name in sorted(found)}

    def __getitem__(self, name: HostName) -> Turn:
        return self._by_server[name]

    def __iter__(self) -> Iterator[HostName]:
        return iter(self._by_server)

    def __len__(self) -> int:
        return len(self._by_server)

    def __repr__(self) -> str:
        return f"GangTurns({self._by_server!r})"
