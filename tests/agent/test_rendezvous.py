"""Ports where the nodes of a job meet."""

import errno
import socket
from pathlib import Path

import pytest

from hs_agent import rendezvous
from hs_agent.folder import Key
from hs_agent.program import free_port
from hs_agent.rendezvous import Rendezvous, interface_of
from hs_core.errors import RefusedError
from hs_core.names import JobId

ONE, OTHER = Key(JobId(1), 1), Key(JobId(2), 1)
HERE = "127.0.0.1:7444"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def test_the_port_of_a_job_that_left_through_a_checkpoint_is_nobody_elses_until_it_is_forgotten(
    port: int,
) -> None:
    """It is launched there again, in the same incarnation."""
    ports = Rendezvous(range(port, port + 1))
    where = ports.reserve(ONE, HERE)
    ports.release(ONE)
    with pytest.raises(RefusedError, match="none of the ports"):
        ports.reserve(OTHER, HERE)
    assert ports.reserve(ONE, HERE) == where == f"127.0.0.1:{port}"
    ports.forget(ONE)
    assert ports.reserve(OTHER, HERE) == where
    ports.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
def test_a_port_that_somebody_has_at_addresses_of_ipv6_alone_is_given_to_no_job(port: int) -> None:
    ports = Rendezvous(range(port, port + 1))
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::1", port))
        with pytest.raises(RefusedError, match="none of the ports"):
            ports.reserve(ONE, "[::1]:7444")
    assert ports.reserve(ONE, "[::1]:7444") == f"[::1]:{port}"
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("::1", port))
    ports.close()


def test_a_port_that_somebody_has_at_one_address_is_not_free_for_torch_which_listens_at_all(
    port: int,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))
        with pytest.raises(OSError, match="in use"):
            rendezvous.bound_everywhere(port)
    assert free_port() != 0


@pytest.mark.parametrize("there", [True, False], ids=["no address of it", "not in the kernel"])
def test_a_port_is_held_where_ipv6_is_switched_off(
    *, there: bool, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(family: socket.AddressFamily, port: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return known(family, port)

    known = rendezvous._bound
    monkeypatch.setattr(rendezvous, "_bound", bound)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: there)
    with rendezvous.bound_everywhere(port), socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_the_interface_of_an_address_is_found_also_where_that_is_of_ipv6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "if_inet6"
    known.write_text(
        "fe800000000000000000000000000007 02 40 20 80     eth0\n"
        "fd000000000000000000000000000007 03 40 00 82     eth1\n"
    )
    monkeypatch.setattr(rendezvous, "_IF_INET6", known)
    assert interface_of("127.0.0.1:7444") == "lo"
    assert interface_of("[fd00::7]:7444") == "eth1"
    assert interface_of("[fd00::8]:7444") == ""
    monkeypatch.setattr(rendezvous, "_IF_INET6", tmp_path / "none")
    assert interface_of("[fd00::7]:7444") == ""
