"""Where the servers are: a network namespace each, joined by a bridge, where that is allowed; else all on loopback."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

SUBNETS = "10.213"  # each run has one of its own: on the bridge the controller is .1, servers follow


class Network(Protocol):
    """`words` says where it is, for people."""

    words: str

    @property
    def controller(self) -> str:
        """Address the controller listens at."""
        ...

    def address(self, server: str) -> str: ...

    def inside(self, server: str) -> list[str]:
        """What comes before a command that is to run on the server."""
        ...


@dataclass(slots=True)
class Loopback:
    words: str
    controller: str = "127.0.0.1"

    def address(self, server: str) -> str:
        del server
        return "127.0.0.1"

    def inside(self, server: str) -> list[str]:
        del server
        return []


@dataclass(slots=True)
class Namespaces:
    tag: str  # of this run, so that nothing of others is touched
    servers: tuple[str, ...]
    subnet: str
    words: str = "a network namespace for each server, on a bridge"

    @property
    def controller(self) -> str:
        return f"{self.subnet}.1"

    def address(self, server: str) -> str:
        return f"{self.subnet}.{self.servers.index(server) + 2}"

    def inside(self, server: str) -> list[str]:
        # Not `ip netns exec`: that puts another /sys in place, without control groups.
        return ["nsenter", f"--net=/run/netns/{self.namespace(server)}"]

    def namespace(self, server: str) -> str:
        return f"{self.tag}-{server}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@contextlib.contextmanager
def network(servers: Sequence[str], *, namespaces: bool) -> Iterator[Network]:
    """Taken down again at the end, with whatever was made of it."""
    if not namespaces:
        yield Loopback("all servers on loopback, as asked")
        return
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter"))):
        yield Loopback("all servers on loopback: network namespaces need root, ip(8) and nsenter(1)")
        return
    with ExitStack() as stack:
        pid = os.getpid()
        made = Namespaces(tag=f"hs{pid}", servers=tuple(servers), subnet=f"{SUBNETS}.{pid % 256}")
        try:
            _bridge(made, stack)
        except subprocess.SubprocessError as error:
            stack.close()
            said = str(getattr(error, "stderr", "") or error).strip()
            yield Loopback(f"all servers on loopback: no network namespace could be made ({said})")
            return
        yield made


def _bridge(made: Namespaces, stack: ExitStack) -> None:
    _ip("link", "add", made.tag, "type", "bridge")
    stack.callback(_quietly, "link", "del", made.tag)
    _ip("addr", "add", f"{made.controller}/24", "dev", made.tag)
    _ip("link", "set", made.tag, "up")
    for number, server in enumerate(made.servers):
        namespace, outer = made.namespace(server), f"{made.tag}v{number}"
        _ip("netns", "add", namespace)
        stack.callback(_quietly, "netns", "del", namespace)
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", outer, "master", made.tag, "up")
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "addr", "add", f"{made.address(server)}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")


def _quietly(*words: str) -> None:
    with contextlib.suppress(subprocess.SubprocessError):
        _ip(*words)
