"""Ports where jobs over several servers find one another: held from the promise until just before the launch, and nobody else's until the job is
forgotten, since it is launched there again after it has left through a checkpoint.

Outside the range that the kernel gives to outgoing connections, so that in the moment between nobody gets it by chance.
"""

import contextlib
import errno
import fcntl
import random
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from hs_agent.config import split_address
from hs_agent.folder import Key
from hs_core.errors import Kind, RefusedError

_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")


def bound_everywhere(port: int) -> socket.socket:
    """Holds a port at all addresses of this host, IPv4 and IPv6, as torch listens; 0: one that is free at all of them. Raises OSError where it is taken at one."""
    if socket.has_dualstack_ipv6():
        try:
            return _bound(socket.AF_INET6, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return _bound(socket.AF_INET, port)  # IPv6 is switched off


def _bound(family: socket.AddressFamily, port: int) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", port))
    except OSError:
        held.close()
        raise
    return held


class Rendezvous:
    def __init__(self, ports: range) -> None:
        self._ports = ports
        self._held: dict[Key, socket.socket] = {}
        self._given: dict[Key, int] = {}

    def reserve(self, key: Key, peer_address: str) -> str:
        """ "address:port", at the address where peers reach this host; the same one for the same incarnation."""
        place = split_address(peer_address)
        if place is None:
            raise RefusedError("peer_listen is not set: no job over several servers can begin here")
        if key not in self._held:
            self._held[key] = self._bind([self._given[key]] if key in self._given else self._free())
            self._given[key] = self._held[key].getsockname()[1]
        host = f"[{place[0]}]" if ":" in place[0] else place[0]
        return f"{host}:{self._given[key]}"

    def _free(self) -> list[int]:
        taken = set(self._given.values())
        return [port for port in random.sample(self._ports, len(self._ports)) if port not in taken]

    def _bind(self, ports: Iterable[int]) -> socket.socket:
        for port in ports:
            with contextlib.suppress(OSError):
                return bound_everywhere(port)
        raise RefusedError(
            f"none of the ports {self._ports.start}-{self._ports.stop - 1} is free", Kind.UNAVAILABLE
        )

    def release(self, key: Key) -> None:
        """To its processes."""
        held = self._held.pop(key, None)
        if held is not None:
            held.close()

    def forget(self, key: Key) -> None:
        self.release(key)
        self._given.pop(key, None)

    def close(self) -> None:
        for key in list(self._held):
            self.release(key)


def interface_of(peer_address: str) -> str:
    """The network interface that has this address, where that can be told."""
    place = split_address(peer_address)
    if place is None:
        return ""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(place[0], None, type=socket.SOCK_STREAM)
        for family, look in ((socket.AF_INET, _interface_of_4), (socket.AF_INET6, _interface_of_6)):
            for address in (str(each[4][0]) for each in found if each[0] == family):
                if name := look(address):
                    return name
    return ""


def _interface_of_4(wanted: str) -> str:
    if wanted.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                if socket.inet_ntoa(found[20:24]) == wanted:
                    return name
    return ""


def _interface_of_6(wanted: str) -> str:
    number = socket.inet_pton(socket.AF_INET6, wanted.partition("%")[0]).hex()
    for line in _IF_INET6.read_text().splitlines():  # address, then four numbers, then the name
        if line.startswith(number):
            return line.split()[-1]
    return ""
