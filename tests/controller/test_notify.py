"""systemd's notification socket and watchdog: what of their variables cannot be used is told, once."""

import socket
from pathlib import Path

import pytest

from hs_daemon import notify


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    notify._complain_once.cache_clear()


@pytest.mark.parametrize("said", ["/nowhere/notify", "not-a-path", "/" + "x" * 200])
def test_a_socket_that_nobody_reads_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], said: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", said)
    notify.notify("READY=1")
    notify.notify("READY=1")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"NOTIFY_SOCKET={said!r}: systemd hears nothing of us")


def test_a_socket_that_is_read_gets_the_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "n"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        notify.notify("READY=1")
        assert heard.recv(100) == b"READY=1"
    assert capfd.readouterr().err == ""


def test_who_gives_up_says_why_to_people_and_in_one_line_to_systemd(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "n"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        notify.give_up("hs-agent", ValueError("agent.toml: a key\nREADY=1"))
        assert heard.recv(100) == b"STATUS=agent.toml: a key READY=1"
    assert capfd.readouterr().err == "hs-agent: agent.toml: a key\nREADY=1\n"


@pytest.mark.parametrize("said", ["soon", "-1", "1.5", "9" * 40])
def test_a_watchdog_of_no_microseconds_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], said: str
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", said)
    assert notify.watchdog_s() is None
    assert f"WATCHDOG_USEC={said!r}: expected microseconds" in capfd.readouterr().err


@pytest.mark.parametrize(("said", "every_s"), [("30000000", 30.0), ("0", None), ("", None)])
def test_a_watchdog_hears_as_often_as_it_wants(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], said: str, every_s: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", said)
    assert notify.watchdog_s() == every_s
    assert capfd.readouterr().err == ""
