"""Servers whose own memory is less than what a job may take of it."""

from bisect import bisect_left
from collections.abc import Iterable

from hs_core.model import Host
from hs_core.names import HostName


class Narrow:
    """By what their agents said when they came; of who said nothing nothing is assumed."""

    def __init__(self) -> None:
        self._servers: list[tuple[int, HostName]] = []  # by memory
        self._sizes: list[int] = []
        self._below: dict[int, frozenset[HostName]] = {}  # the first so many of them

    def see(self, hosts: Iterable[Host]) -> bool:
        """The servers that there are; the answer is whether that makes a difference."""
        servers = sorted((host.memory_bytes, host.name) for host in hosts if host.memory_bytes)
        if servers == self._servers:
            return False
        self._servers = servers
        self._sizes = [size for size, _ in servers]
        self._below.clear()
        return True

    def below(self, memory_bytes: int) -> frozenset[HostName]:
        """Those that have less: the very same answer to all who ask for about as much."""
        count = bisect_left(self._sizes, memory_bytes)
        found = self._below.get(count)
        if found is None:
            found = self._below[count] = frozenset(name for _, name in self._servers[:count])
        return found
