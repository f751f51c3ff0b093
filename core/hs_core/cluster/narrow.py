"""Servers whose own memory is less than what a job may take of it."""

from bisect import bisect_left
from collections.abc import Iterable

from hs_core.model import Host
from hs_core.names import HostName


def is_narrow(server_bytes: int, job_bytes: int) -> bool:
    """All of the server's own memory would not be what the job may take of it. 0: the one is not known, the other asks for none."""
    return 0 < server_bytes < job_bytes


class Narrow:
    """All that are: by what their agents said when they came."""

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
        """Those that are narrow for such a job: the very same answer to all who ask for about as much."""
        count = bisect_left(self._sizes, memory_bytes)
        found = self._below.get(count)
        if found is None:
            found = self._below[count] = frozenset(name for _, name in self._servers[:count])
        return found
