"""Ports where the nodes of a job meet."""

import socket

import pytest

from hs_agent.folder import Key
from hs_agent.rendezvous import Rendezvous
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
