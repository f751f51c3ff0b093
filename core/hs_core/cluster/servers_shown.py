"""What a policy is shown of servers."""

from collections.abc import Collection

from hs_core.cluster.absent import Absent
from hs_core.cluster.book import Book
from hs_core.cluster.unable import Unable
from hs_core.model import Host
from hs_core.names import HostName
from hs_core.policy import HostFacts


class ServersShown:
    def __init__(self, book: Book, connected: Collection[HostName], absent: Absent, unable: Unable) -> None:
        self._book = book
        self._connected = connected
        self._absent = absent
        self._unable = unable
        self._hosts: dict[HostName, tuple[Host, HostFacts]] = {}

    def all(self) -> tuple[HostFacts, ...]:
        """By name."""
        if len(self._hosts) > 2 * len(self._book.hosts):
            self._hosts.clear()  # most of them were removed
        return tuple(self._host(host) for host in self._book.hosts_sorted())

    def _host(self, host: Host) -> HostFacts:
        """Made again only where the server is another: there are thousands, and few change between two decisions."""
        connected, starts = host.name in self._connected, not self._unable.starts_none(host.name)
        expected = host.name in self._absent.expected
        known = self._hosts.get(host.name)
        if (
            known is None
            or known[0] is not host
            or known[1].connected is not connected
            or known[1].expected is not expected
            or known[1].starts is not starts
        ):
            facts = _host_facts(host, connected=connected, expected=expected, starts=starts)
            known = self._hosts[host.name] = (host, facts)
        return known[1]


def _host_facts(host: Host, *, connected: bool, expected: bool, starts: bool) -> HostFacts:
    healthy = host.healthy_gpus
    return HostFacts(
        name=host.name,
        model=host.model,
        gpus=len(healthy),
        gpu_memory_bytes=min((gpu.memory_bytes for gpu in healthy), default=0),
        connected=connected,
        expected=expected,
        accepts=host.schedulable,
        starts=starts,
        indices=tuple(gpu.index for gpu in healthy),
        datasets=frozenset(data.name for data in host.datasets),
    )
