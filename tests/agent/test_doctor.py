"""What `hs-agent doctor` finds out by trying."""

import re
import socket

import pytest

from hs_agent import cgroup
from hs_agent.doctor import examine


def lines(said: str) -> dict[str, str]:
    return {line[6:21].strip(): line[:5].strip() + " " + line[22:] for line in said.splitlines()}


def test_it_measures_how_long_suspending_takes_and_leaves_no_group_behind(settings, capsys) -> None:
    config = settings()
    examine(config)
    said = lines(capsys.readouterr().out)["suspending"]
    if "no freezer" in said:
        pytest.skip("no control group with a freezer can be made here")
    assert re.search(r"^(ok|warn) a process is frozen in [\d.]+ ms and goes on in [\d.]+ ms", said), said
    assert not cgroup.names(cgroup.probe(config.cgroup, config.state_dir))


def test_it_says_whether_the_ports_are_free_that_other_servers_need(settings, capsys) -> None:
    examine(settings())
    assert lines(capsys.readouterr().out)["ports"].startswith(
        "warn peer_listen is not set: no checkpoint can leave"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = {"dev": True, "peer_listen": f"127.0.0.1:{port}", "rendezvous_ports": f"{port}-{port}"}
        assert examine(settings(**said)), "it fails"
        assert lines(capsys.readouterr().out)["ports"] == (
            f"fail peer_listen 127.0.0.1:{port} is taken, or no address of this host; 0 of 1 of rendezvous_ports are free"
        )
    examine(settings(**said))
    assert lines(capsys.readouterr().out)["ports"].startswith(f"ok peer_listen 127.0.0.1:{port}; 1 of 1 of ")
