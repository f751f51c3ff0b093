"""A backup of the journal: made whole, put back above all that there was, on another machine too."""

import asyncio
import contextlib
import hashlib
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from hs_controller import backup, pki
from hs_controller.config import Config
from hs_controller.journal import Journal
from hs_controller.sqlite import StoreUnavailableError
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.daemons import Daemon
from tests.controller.kit import audited, refused_as, spec, started, until


async def backup_of(config: Config, jobs: int) -> bytes:
    async with started(config) as here:
        for number in range(jobs):
            await here.client.submit(spec(f"job-{number}"))
        data, digest = b"", ""
        async for chunk in here.client.stub.Backup(pb.BackupRequest()):
            assert not digest, "the digest comes with the last chunk"
            data, digest = data + chunk.data, chunk.sha256
        assert hashlib.sha256(data).hexdigest() == digest
        assert ("backup", (await here.client.stub.Info(pb.InfoRequest())).you) in await audited(here)
        await here.client.submit(spec("after the backup"))
    return data


def test_a_backup_that_is_not_made_is_not_in_the_audit_as_one(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_folder: Path) -> None:
        raise StoreUnavailableError("no room")

    async def told(here) -> list[str]:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await anext(aiter(here.client.stub.Backup(pb.BackupRequest())))
        refused_as(error, grpc.StatusCode.UNAVAILABLE, "no backup could be made: no room")
        return [kind for kind, _ in await audited(here) if kind.startswith("backup")]

    async def story() -> None:
        async with started(config) as here:
            with monkeypatch.context() as patch:
                patch.setattr(backup, "check_room", refuse)
                assert await told(here) == []
            monkeypatch.setattr(backup, "take", refuse)
            assert await told(here) == ["backup", "backup-failed"]

    asyncio.run(story())


def test_a_backup_is_put_back_whole_and_above_all_terms_and_numbers_before(
    config: Config, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(asyncio.run(backup_of(config, 3)))
    assert not list(config.state_dir.glob("backup*"))
    config.file.write_text(f'state_dir = "{config.state_dir}"\n')
    argv = [
        sys.executable,
        "-m",
        "hs_controller",
        "restore",
        "--config",
        str(config.file),
        "--from",
        str(copy),
    ]

    def restore(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *more], capture_output=True, text=True, timeout=120, check=False)

    there = restore()
    assert (there.returncode, "--force" in there.stderr) == (1, True)
    held = Journal.open(config.state_dir)
    term = held.begin_term()
    locked = restore("--force")
    assert (locked.returncode, "another controller" in locked.stderr) == (1, True)
    held.close()
    torn = tmp_path / "torn.db"
    torn.write_bytes(copy.read_bytes()[:5000])
    before = {file.name: file.read_bytes() for file in config.state_dir.glob("journal*")}
    argv[-1] = str(torn)
    refused = restore("--force")
    assert refused.returncode == 1
    assert refused.stderr == f"hs-controller: {torn}: cannot be put back: database disk image is malformed\n"
    after = {file.name: file.read_bytes() for file in config.state_dir.glob("journal*")}
    assert after == before, "what cannot be put back changes nothing, and leaves nothing behind"
    argv[-1] = str(copy)
    done = restore("--force")
    assert done.returncode == 0, done.stderr
    assert "restored, with 3 jobs" in done.stdout

    async def story() -> None:
        async with started(config) as here:
            jobs = (await here.client.stub.ListJobs(pb.ListJobsRequest())).jobs
            assert sorted(job.name for job in jobs) == ["job-0", "job-1", "job-2"]
            assert here.loop.mind.machine.term > term + 1_000_000
            *_, backed_up, put_back = await audited(here)
            me = (await here.client.stub.Info(pb.InfoRequest())).you
            assert (backed_up, put_back) == (("backup", me), ("journal-restored", me))
            assert await here.client.submit(spec()) == [1_000_004]

    asyncio.run(story())


def test_a_backup_is_whole_though_one_before_it_was_cancelled_while_it_was_made(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, making, made, take = threading.Event(), list[int](), list[int](), backup.take

    def slow(folder: Path) -> backup.Copy:
        making.append(len(making) - len(made))  # others that are being made
        if len(making) == 1:
            assert gate.wait(60.0)
        copy = take(folder)
        made.append(len(made))
        return copy

    monkeypatch.setattr(backup, "take", slow)

    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            first = asyncio.create_task(anext(aiter(stub.Backup(pb.BackupRequest()))))
            await until(lambda: bool(making))
            first.cancel()
            await asyncio.wait({first})
            await until(lambda: not here.controller._service._copies.sending.locked())
            asked = here.loop.onlookers.last_seq
            second = stub.Backup(pb.BackupRequest())
            await until(lambda: here.loop.onlookers.last_seq > asked)
            gate.set()
            chunks = [chunk async for chunk in second]
            assert hashlib.sha256(b"".join(chunk.data for chunk in chunks)).hexdigest() == chunks[-1].sha256
            assert making == [0, 0], "one after the other: they have one name"

    asyncio.run(story())


def test_a_backup_goes_to_a_new_machine(config: Config, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(asyncio.run(backup_of(config, 1)))
    new = tmp_path / "new"
    new.mkdir()
    daemon = Daemon(new)
    argv = [sys.executable, "-m", "hs_controller", "restore", "--config", str(daemon.file), "--from"]
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign, isolation_level=None)) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    wrong = subprocess.run([*argv, str(foreign)], capture_output=True, text=True, timeout=120, check=False)
    assert (wrong.returncode, "not a HeteroShare journal" in wrong.stderr) == (1, True)
    done = subprocess.run([*argv, str(copy)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with daemon.file.open("a") as file:
        file.write('\nlisten = "127.0.0.1:0"\n')
    bare = subprocess.run(daemon.argv(), capture_output=True, text=True, timeout=120, check=False)
    assert bare.returncode == 1
    assert f"put {new}/state/pki back from where you keep it" in bare.stderr, "a new CA would lock all out"
    shutil.copytree(made_pki(tmp_path), new / "state" / "pki")
    daemon.start()
    assert daemon.end() == 0


def made_pki(folder: Path) -> Path:
    pki.init(folder / "of-before")
    return folder / "of-before" / "pki"
