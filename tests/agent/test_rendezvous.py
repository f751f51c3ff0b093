"""Ports where the nodes of a job meet."""

import socket
from pathlib import Path

import pytest

from hs_agent import rendezvous
from hs_agent.folder import Key
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
