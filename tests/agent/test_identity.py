"""How the agent keeps its certificate fresh, whatever comes in between."""

import asyncio
import errno
import io
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hs_agent import __main__ as program
from hs_agent import identity, joining, renewal
from hs_agent.identity import CERTIFICATE, KEY, Identity
from hs_agent.renewal import Keeper
from hs_core.errors import RefusedError
from hs_core.names import HostName


def due(folder: Path) -> Identity:
    now_s = time.time()
    return Identity(
        node=HostName("v1"),
        folder=folder,
        key_pem=b"the key",
        chain_pem=b"a new certificate",
        ca_pem=b"",
        not_before_s=now_s - 90.0,
        not_after_s=now_s + 10.0,
    )


def test_whatever_keeps_a_certificate_from_being_renewed_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, done = Keeper(due(tmp_path), "nobody:1"), asyncio.Event()
    fails = [RefusedError("nobody is there"), RuntimeError("of this nobody had thought")]

    async def renew() -> Identity:
        if fails:
            raise fails.pop()
        done.set()
        return await asyncio.get_running_loop().create_future()

    async def story() -> None:
        keeping = asyncio.create_task(keeper.run())
        await asyncio.wait({keeping, asyncio.create_task(done.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert done.is_set()
        keeping.cancel()

    monkeypatch.setattr(renewal, "RETRY_S", (0.0, 0.0))
    monkeypatch.setattr(keeper, "renew", renew)
    asyncio.run(story())


def test_a_certificate_that_a_full_disk_does_not_take_is_in_force_and_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = due(tmp_path)
    new = replace(old, chain_pem=b"the newest", not_before_s=time.time(), not_after_s=time.time() + 100.0)
    (tmp_path / KEY).write_bytes(old.key_pem)
    (tmp_path / CERTIFICATE).write_bytes(old.chain_pem)
    full, asked, told, write = [True, True], [], [], identity.write_new

    async def certified(_: Identity) -> bytes:
        asked.append(time.time())
        return new.chain_pem

    def writes(file: Path, data: bytes) -> None:
        if full:
            full.pop()
            file.touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, data)

    async def story() -> None:
        keeper = Keeper(old, "nobody:1", told.append)
        keeping = asyncio.create_task(keeper.run())
        async with asyncio.timeout(60):
            while (tmp_path / CERTIFICATE).read_bytes() != b"the newest":
                keeper.look()
                await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert keeper.identity == new
        assert told == [new]
        assert len(asked) == 1, "the controller gave one, and was asked for no other"

    monkeypatch.setattr(renewal, "RETRY_S", (0.01, 0.01))
    monkeypatch.setattr(identity, "write_new", writes)
    monkeypatch.setattr(renewal, "load_identity", lambda _folder: old)
    monkeypatch.setattr(renewal, "parsed", lambda *_: new)
    monkeypatch.setattr(Keeper, "_certified", lambda _keeper, was: certified(was))
    asyncio.run(story())


def test_a_host_whose_clock_is_days_ahead_renews_its_certificate_no_more_often_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = replace(due(tmp_path), not_before_s=time.time(), not_after_s=time.time() + 1000.0)
    (tmp_path / KEY).write_bytes(issued.key_pem)
    booted_s, slept, told = [0.0], [], []

    async def certified(_keeper: Keeper, was: Identity) -> bytes:
        return was.chain_pem

    async def sleep(for_s: float) -> None:
        slept.append(for_s)
        booted_s[0] += for_s

    def changed(new: Identity) -> None:
        told.append(new)
        if len(told) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(renewal, "boot_s", lambda: booted_s[0])
    monkeypatch.setattr(renewal, "parsed", lambda *_: replace(issued))
    monkeypatch.setattr(Keeper, "_certified", certified)
    monkeypatch.setattr(renewal.asyncio, "sleep", sleep)
    keeper = Keeper(due(tmp_path), "nobody:1", changed, now_s=lambda: time.time() + 5000.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keeper.run())
    assert slept == [pytest.approx(1000.0 * 2 / 3)] * 2


def test_who_was_certified_while_the_clock_was_ahead_is_told_what_helps_where_it_is_right_again(
    tmp_path: Path,
) -> None:
    certified = due(tmp_path)
    why = certified.why_not_good(certified.not_before_s - 86_400)
    assert f"`hsctl node enroll {certified.node}`" in why
    assert "`hs-agent join --replace`" in why


def test_a_renewal_that_comes_after_its_host_joined_anew_spoils_nothing(tmp_path: Path) -> None:
    (tmp_path / KEY).write_bytes(b"another key")
    (tmp_path / CERTIFICATE).write_bytes(b"of that key")
    with pytest.raises(RefusedError, match="this host has joined anew meanwhile"):
        identity.put_certificate(due(tmp_path))
    assert (tmp_path / CERTIFICATE).read_bytes() == b"of that key"


def test_an_identity_is_on_the_disk_by_name_before_its_host_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after that would take it back, and the token is used up."""
    synced: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(
        identity, "sync_folder", lambda folder: synced.append((folder, sorted(names_in(folder))))
    )
    folder, fresh = tmp_path / "node", tmp_path / "fresh"
    fresh.mkdir()
    (fresh / KEY).write_bytes(b"the key")
    (fresh / identity.ROOM).write_bytes(b"")
    identity.fill(fresh, due(folder))
    assert synced == [(fresh, sorted([CERTIFICATE, identity.CA, KEY])), (tmp_path, ["node"])]
    identity.put_certificate(due(folder))
    assert synced[2:] == [(folder, sorted([CERTIFICATE, identity.CA, KEY]))]


def test_a_configuration_that_is_not_there_is_no_reason_to_join_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "join", lambda **_: pytest.fail("the token would be used up"))
    words = ["join", "--controller", "a:1", "--token", "t", "--ca-sha256", "00"]
    missing = tmp_path / "agent.toml"
    monkeypatch.setattr("sys.argv", ["hs-agent", *words, "--config", str(missing)])
    told: list[str] = []
    monkeypatch.setattr("hs_daemon.notify.complain", told.append)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert (ended.value.code, told) == (
        2,
        [f"hs-agent: {missing}: cannot be read: No such file or directory"],
    )
    monkeypatch.setattr("sys.argv", [*sys.argv, "--identity", str(tmp_path / "identity")])
    with pytest.raises(SystemExit):
        program.main()
    assert told[1:] == told[:1], "where it is to go makes no difference"
    monkeypatch.setattr(identity, "DEFAULT_FILE", missing)
    place = identity.configured(missing)
    assert place == identity.Place(
        name=socket.gethostname(), folder=Path("/var/lib/heteroshare/agent/identity")
    )


def test_a_token_may_come_on_standard_input_where_nobody_else_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of a command are seen by every account of the host."""
    joined: list[object] = []

    def join(**said: object) -> SimpleNamespace:
        joined.append(said["token"])
        return SimpleNamespace(node=said["name"], folder=said["folder"], not_after_s=0.0)

    monkeypatch.setattr(joining, "join", join)
    told: list[str] = []
    monkeypatch.setattr("hs_daemon.notify.complain", told.append)
    words = ["join", "--controller", "a:1", "--token", "-", "--ca-sha256", "00"]
    monkeypatch.setattr("sys.argv", ["hs-agent", *words, "--identity", str(tmp_path / "identity")])

    def run(typed: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            program.main()
        return int(ended.value.code or 0)

    assert run("hsj_abc\n") == 0
    assert joined == ["hsj_abc"]
    for typed in ("", "\n", "x" * 2_000):
        assert run(typed) == 2
    assert set(told) == {"hs-agent: --token -: a token was expected on standard input, in one line"}
    assert joined == ["hsj_abc"]


def test_a_host_joins_by_the_name_and_into_the_folder_that_its_configuration_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f'name = "gpu7"\nstate_dir = "{tmp_path}/state"\n')
    joined: list[dict[str, object]] = []

    def join(**said: object) -> SimpleNamespace:
        joined.append(said)
        return SimpleNamespace(node=said["name"], folder=said["folder"], not_after_s=0.0)

    monkeypatch.setattr(joining, "join", join)
    told: list[str] = []
    monkeypatch.setattr("hs_daemon.notify.complain", told.append)
    words = ["hs-agent", "join", "--controller", "a:1", "--token", "t", "--ca-sha256", "00"]

    def run(*more: str) -> int:
        monkeypatch.setattr("sys.argv", [*words, *more])
        with pytest.raises(SystemExit) as ended:
            program.main()
        return int(ended.value.code or 0)

    assert run("--config", str(file)) == 0
    assert run("--config", str(file), "--identity", str(tmp_path / "state/identity"), "--name", "gpu8") == 0
    assert [(said["name"], said["folder"]) for said in joined] == [
        ("gpu7", tmp_path / "state/identity"),
        ("gpu8", tmp_path / "state/identity"),
    ]
    assert run("--config", str(file), "--identity", str(tmp_path / "elsewhere")) == 2
    assert told == [
        f"hs-agent: --identity {tmp_path}/elsewhere: expected {tmp_path}/state/identity, where the agent of {file} looks for it"
    ]
    file.write_text('name = "gpu 7"\n')
    assert run("--config", str(file), "--identity", str(tmp_path / "elsewhere")) == 2
    assert "name = 'gpu 7': expected a host name" in told[1]


def test_a_join_that_is_refused_leaves_no_folder_behind_and_one_that_is_not_leaves_its_own(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "var" / "agent" / "identity"
    with pytest.raises(RefusedError, match="no"), identity.fresh(folder, b"the key"):
        raise RefusedError("no")
    assert names_in(tmp_path) == []
    (tmp_path / "var").mkdir()
    with pytest.raises(RefusedError, match="no"), identity.fresh(folder, b"the key"):
        raise RefusedError("no")
    assert names_in(tmp_path / "var") == [], "what was there stays"
    with identity.fresh(folder, b"the key") as fresh:
        identity.fill(fresh, due(folder))
    assert sorted(names_in(folder)) == sorted([CERTIFICATE, identity.CA, KEY])


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
