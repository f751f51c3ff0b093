"""Checkpoints between agents: whole or not at all, only to who was granted them, never through a link."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hs_agent import accounts, carrier, trip
from hs_agent.bare import generation
from hs_agent.carried import Carrier, manifest_name
from hs_agent.folder import Key
from hs_agent.sending import SENT_AT_ONCE, Sender
from hs_agent.trip import Trip
from hs_core.events.host import CheckpointFetched, FetchFailed, Lack
from hs_core.names import HostName, JobId
from hs_core.reports import NO_ACCOUNT, NO_ROOM_FOR
from hs_core.wanted import Peer, SourcePart
from tests.agent.lending import GENERATION, MIB, STEP, Two, contents, run, write


def test_a_checkpoint_arrives_whole_and_belongs_to_the_jobs_user(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 3 * MIB + 17, "rank1.pt": 0, "rank2.pt": 5})
    (two.folders[0] / f"gen-{GENERATION}" / "rank0.json").write_text("{}")
    (two.folders[1] / "gen-2").mkdir(parents=True)
    two.lend()
    event = run(two.fetch())
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step, event.epoch) == (GENERATION, STEP, 2)
    sent = contents(two.folders[0])
    del sent["rank0.json"]
    assert contents(two.folders[1]) == sent
    assert (two.folders[1] / f"gen-{GENERATION}/rank0.pt").stat().st_uid == os.geteuid()
    assert not (two.folders[1] / "gen-2").exists(), "what an earlier stay left is nothing to fall back to"


@pytest.mark.parametrize("damaged", ["", "{}", '{"folder": "/", "who": {"name": "ann"}}'])
def test_where_the_note_of_whose_checkpoints_these_are_is_damaged_there_are_none(
    two: Two, damaged: str
) -> None:
    write(two.folders[0], {"rank0.pt": 5})
    (two.launchers[0].checkpoints / "7.json").write_text(damaged)
    two.lend()
    two.give_up_s = 0.3
    event = run(two.fetch())
    assert isinstance(event, FetchFailed), event
    assert "job 7 has no checkpoints here" in event.why
    assert event.lack is Lack.GONE


def test_what_was_cut_in_the_middle_goes_on_where_it_was(two: Two) -> None:
    size = 24 * MIB
    write(two.folders[0], {"rank0.pt": size // 2, "rank1.pt": size // 2})
    two.lend()
    two.cut_after = 16 * MIB
    event = run(two.fetch())
    assert isinstance(event, CheckpointFetched), event
    assert contents(two.folders[1]) == contents(two.folders[0])
    assert len(two.carried) >= 2
    assert two.had[-1] > MIB, "what was on its way is lost with the connection, not what had come"
    assert two.carried[-1] < size - two.had[-1] + MIB


SLOW = """
import os, sys, time
sys.path.append({package!r})
from hs_agent import carrier
from hs_agent.bare import generation
pread, fsync = os.pread, os.fsync

def slow_pread(*args):
    time.sleep(0.06)
    return pread(*args)

def slow_fsync(fd):
    time.sleep({fsync_s} if os.fstat(fd).st_size == 1 << 20 else 0.0)
    fsync(fd)

os.pread, os.fsync = slow_pread, slow_fsync
generation.SIGN_EVERY_S = 0.1
carrier.main()
"""


def slow_disks(place: Path, monkeypatch: pytest.MonkeyPatch, fsync_s: float) -> None:
    """Which take longer than a peer may be silent."""
    script = place / "slow.py"
    script.write_text(SLOW.format(package=str(Path(carrier.__file__).parents[1]), fsync_s=fsync_s))
    monkeypatch.setattr(carrier, "__file__", str(script))
    monkeypatch.setattr(trip, "STALLED_S", 1.0)


def test_a_large_file_is_gone_on_with_though_it_takes_long_to_read_what_is_there_already(
    two: Two, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(two.folders[0], {"rank0.pt": 16 * MIB})
    slow_disks(place, monkeypatch, fsync_s=0.0)
    whole, here = two.folders[0] / f"gen-{GENERATION}", two.folders[1] / f"gen-{GENERATION}"
    here.mkdir(parents=True)
    (here / ".of.part").write_text(hashlib.sha256((whole / "manifest.json").read_bytes()).hexdigest())
    (here / "rank0.pt.part").write_bytes((whole / "rank0.pt").read_bytes()[: 12 * MIB])
    two.lend()
    event = run(two.fetch())
    assert isinstance(event, CheckpointFetched), event
    assert contents(two.folders[1]) == contents(two.folders[0])
    assert sum(two.carried) < 8 * MIB


def test_a_disk_that_takes_long_to_take_in_a_file_is_waited_for(
    two: Two, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(two.folders[0], {"rank0.pt": MIB, "rank1.pt": 8 * MIB})
    slow_disks(place, monkeypatch, fsync_s=2.5)
    two.lend()
    event = run(two.fetch())
    assert isinstance(event, CheckpointFetched), event
    assert contents(two.folders[1]) == contents(two.folders[0])


def test_who_waits_until_others_have_been_sent_theirs_does_not_give_up(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    monkeypatch.setattr(trip, "STALLED_S", 1.0)
    monkeypatch.setattr(generation, "SIGN_EVERY_S", 0.1)
    two.lend()

    async def waits() -> Any:
        two.sender = Sender(two.launchers[0])
        room, account = two.sender._room, os.getuid()
        others = [room.enter(account) for _ in range(SENT_AT_ONCE)]
        asyncio.get_running_loop().call_later(3.0, room.leave, account, others[0])
        return await two.fetch()

    event = run(waits())
    assert isinstance(event, CheckpointFetched), event


def test_nobody_waits_until_all_that_is_sent_for_another_account_has_been(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    two.lend()

    async def beside_others() -> Any:
        two.sender = Sender(two.launchers[0])
        for _ in range(2 * SENT_AT_ONCE):
            two.sender._room.enter(os.getuid() + 1)
        return await two.fetch()

    event = run(beside_others())
    assert isinstance(event, CheckpointFetched), event


def test_a_half_fetched_generation_of_another_content_is_begun_anew(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": MIB})
    here = two.folders[1] / f"gen-{GENERATION}"
    here.mkdir(parents=True)
    (here / ".of.part").write_text("0" * 64)
    (here / "rank0.pt.part").write_bytes(b"x" * 4096)
    two.lend()
    assert isinstance(run(two.fetch()), CheckpointFetched)
    assert contents(two.folders[1]) == contents(two.folders[0])


def test_a_flipped_byte_is_refused_at_its_source_and_when_it_was_flipped_here(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": MIB})
    file = two.folders[0] / f"gen-{GENERATION}/rank0.pt"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    two.lend()
    event = run(two.fetch())
    assert isinstance(event, FetchFailed)
    assert "rank0.pt has another SHA-256" in event.why
    assert event.lack is Lack.DAMAGED
    assert not (two.folders[1] / f"gen-{GENERATION}/manifest.json").exists()
    file.write_bytes(good)
    # Half of it lies here, and a bit of that is wrong.
    part = two.folders[1] / f"gen-{GENERATION}/rank0.pt.part"
    manifest = (two.folders[0] / f"gen-{GENERATION}/manifest.json").read_bytes()
    part.with_name(".of.part").write_text(hashlib.sha256(manifest).hexdigest())
    part.write_bytes(b"?" + good[1 : MIB // 2])
    event = run(two.fetch())
    assert isinstance(event, FetchFailed)
    assert "arrived with another SHA-256" in event.why
    assert event.lack is Lack.UNREACHED
    assert isinstance(run(two.fetch()), CheckpointFetched), "what was wrong is not kept"


@pytest.mark.parametrize("grant", ["", "sesamE", "other"])
def test_without_the_grant_there_is_no_such_thing(two: Two, grant: str) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    two.lend()
    two.give_up_s = 0.3
    event = run(two.fetch(grant))
    assert isinstance(event, FetchFailed)
    assert "NOT_FOUND: there is no such thing here" in event.why


def test_an_empty_grant_opens_nothing_even_where_nothing_else_was_given(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    two.lend("")
    two.give_up_s = 0.3
    assert "NOT_FOUND" in run(two.fetch("")).why


def test_the_one_before_what_is_lent_may_be_had_as_well_and_takes_the_place_of_what_came_of_that(
    two: Two,
) -> None:
    """As the job's processes would begin from it, where the newest is torn."""
    here, there = two.folders
    write(here, {"rank0.pt": 3 * MIB, "rank1.pt": 30}, at=(3, 100))
    write(here, {"rank0.pt": 3 * MIB, "rank1.pt": 30}, seed=2)
    (here / f"gen-{GENERATION}" / "rank1.pt").write_bytes(b"?" * 30)
    two.lend()
    torn = run(two.fetch())
    assert (torn.why, torn.lack) == (
        "host-a: rank1.pt has another SHA-256 than its manifest says",
        Lack.DAMAGED,
    )
    two.known = (3, 0)
    event = run(two.fetch())
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (3, 100)
    assert {path.name for path in there.glob("gen-*")} == {"gen-3"}
    for name in ("rank0.pt", "rank1.pt", "manifest.json"):
        assert (there / "gen-3" / name).read_bytes() == (here / "gen-3" / name).read_bytes()


@pytest.mark.parametrize(
    ("asked", "copy"),
    [
        pytest.param(GENERATION - 2, -1, id="older-than-that"),
        pytest.param(GENERATION + 1, -1, id="newer"),
        pytest.param(GENERATION - 1, 0, id="before-a-copys"),
    ],
)
def test_what_else_lies_there_is_not_lent(two: Two, asked: int, copy: int) -> None:
    folder = two.folders[0] if copy < 0 else two.folders[0] / f"copy-1.{copy}"
    write(folder, {"rank0.pt": 10}, at=(asked, STEP))
    two.lend(copy=copy)
    two.known, two.give_up_s = (asked, 0), 0.3
    event = run(two.fetch())
    assert isinstance(event, FetchFailed)
    assert "NOT_FOUND: there is no such thing here" in event.why


@pytest.mark.parametrize("trap", ["link", "fifo", "folder-link", "escape", "absurd", "huge"])
def test_traps_in_the_jobs_folder_lead_nowhere(two: Two, place: Path, trap: str) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    here = two.folders[0] / f"gen-{GENERATION}"
    secret = place / "secret"
    secret.write_bytes(b"0123456789")
    match trap:
        case "link":
            (here / "rank0.pt").unlink()
            (here / "rank0.pt").symlink_to(secret)
        case "fifo":
            (here / "rank0.pt").unlink()
            os.mkfifo(here / "rank0.pt")
        case "folder-link":
            here.rename(place / "elsewhere")
            here.symlink_to(place / "elsewhere")
        case "escape":
            text = (here / "manifest.json").read_text()
            (here / "manifest.json").write_text(text.replace("rank0.pt", "../../../secret"))
        case "absurd":
            (here / "manifest.json").write_text("[" * 5000)
        case "huge":
            (here / "manifest.json").write_bytes(b" " * (2 * MIB))
    two.lend()
    two.give_up_s = 0.3
    event = run(two.fetch())
    assert isinstance(event, FetchFailed), event
    there = two.folders[1] / f"gen-{GENERATION}"
    assert not list(there.glob("rank*.pt")), event
    assert not (there / "manifest.json").exists()


def test_why_a_fetch_failed_is_text_that_goes_over_any_wire_whatever_the_job_calls_its_files(
    two: Two,
) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    (two.folders[1] / f"gen-{GENERATION}" / os.fsdecode(b"\xff.part")).mkdir(parents=True)
    two.lend()
    event = run(two.fetch())
    assert isinstance(event, FetchFailed), event
    assert event.why.endswith(": ?.part")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk_is_the_hosts_fault_but_not_in_a_folder_that_the_user_named(
    two: Two, place: Path, named: bool
) -> None:
    folder = place / "small" if named else two.folders[1]
    folder.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    if subprocess.run(small, check=False, capture_output=True).returncode:
        pytest.skip("this sandbox does not let root mount a tmpfs")
    try:
        write(two.folders[0], {"rank0.pt": 8 * MIB})
        two.lend()
        spec = replace(two.job.spec, checkpoint_dir=str(folder) if named else "")
        event = run(two.fetch(spec=spec))
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    assert isinstance(event, FetchFailed), event
    assert event.why == f"{NO_ROOM_FOR}: it takes {8 * MIB} bytes; {MIB} are free here"
    assert event.host_fault is not named


def test_an_account_that_the_server_does_not_know_is_its_fault(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    two.lend()
    two.job = replace(two.job, run_as="no-such-user")
    event = run(two.fetch())
    assert isinstance(event, FetchFailed), event
    assert event.why.startswith(f"{NO_ACCOUNT} 'no-such-user' on ")
    assert event.host_fault


def test_on_a_shared_folder_nothing_is_copied(two: Two, place: Path) -> None:
    shared = place / "shared"
    two.job = replace(two.job, spec=replace(two.job.spec, checkpoint_dir=str(shared)))
    write(shared, {"rank0.pt": 8 * MIB})
    (shared / "gen-3").mkdir()
    two.launchers[0].make_checkpoint_dir(two.job, accounts.account(two.job.run_as, two.configs[0]))
    two.lend()
    assert isinstance(run(two.fetch()), CheckpointFetched)
    assert sum(two.carried) < 2 * MIB
    assert (shared / "gen-3").exists(), "what a user keeps in a folder of theirs is theirs"


def test_each_node_of_a_job_gets_its_own_part(two: Two) -> None:
    nodes = tuple(Peer(host=HostName(f"host-{n}"), address="127.0.0.1:1") for n in "ab")
    two.job = replace(two.job, nodes=nodes, node_rank=1)
    two.launchers[0].make_checkpoint_dir(two.job, accounts.account(two.job.run_as, two.configs[0]))
    write(two.folders[0], {"rank2.pt": 20, "rank3.pt": 30}, manifest="manifest-1.json")
    two.lend()
    two.written_by = (1, 2)
    assert isinstance(run(two.fetch()), CheckpointFetched)
    assert set(contents(two.folders[1])) == {"rank2.pt", "rank3.pt", "manifest-1.json"}


@pytest.mark.parametrize("written_by", [(0, 1), (1, 2)])
def test_what_another_node_wrote_is_kept_as_the_part_of_the_node_that_goes_on_from_it(
    two: Two, written_by: tuple[int, int]
) -> None:
    nodes = tuple(Peer(host=HostName(f"host-{name}"), address="127.0.0.1:1") for name in "cdb")
    two.job = replace(two.job, nodes=nodes, node_rank=2)
    two.written_by = written_by
    write(two.folders[0], {"rank2.pt": 20}, manifest=manifest_name(written_by[1], written_by[0]))
    two.lend()
    assert isinstance(run(two.fetch()), CheckpointFetched)
    assert set(contents(two.folders[1])) == {"rank2.pt", "manifest-2.json"}


def test_a_host_that_has_it_as_another_part_takes_it_from_itself_and_copies_no_state(two: Two) -> None:
    two.written_by, two.onto = (1, 2), 0
    write(two.folders[0], {"rank2.pt": 2 * MIB}, manifest="manifest-1.json")
    before = (two.folders[0] / f"gen-{GENERATION}" / "rank2.pt").stat().st_ino
    two.lend()
    assert isinstance(run(two.fetch()), CheckpointFetched)
    found = contents(two.folders[0])
    assert set(found) == {"rank2.pt", "manifest-1.json", "manifest.json"}
    assert found["manifest.json"] == found["manifest-1.json"]
    assert (two.folders[0] / f"gen-{GENERATION}" / "rank2.pt").stat().st_ino == before


def test_parts_of_an_average_are_fetched_or_named_where_they_lie_and_word_is_left_of_them(two: Two) -> None:
    write(two.folders[0] / "copy-1.0", {"rank0.pt": 2 * MIB}, seed=1)
    write(two.folders[1] / "copy-1.1", {"rank0.pt": 30}, seed=2)
    two.launchers[1].make_checkpoint_dir(two.job, accounts.account(two.job.run_as, two.configs[1]))
    two.lend(copy=0)

    def parts(peer: Peer) -> tuple[SourcePart, ...]:
        own = Peer(host=HostName("host-b"), address="127.0.0.1:1")
        return (
            SourcePart(peer=peer, epoch=1, generation=GENERATION, copy=0, steps=80),
            SourcePart(peer=own, epoch=1, generation=GENERATION, copy=1, steps=40),
        )

    two.parts = parts
    spec = replace(two.job.spec, steps=800)
    event = run(two.fetch(copy=1, copies=3, last_step=500, spec=spec))
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (9, STEP)
    place = two.folders[1] / "copy-2.1" / "gen-9"
    asked = json.loads((place / "average.json").read_text())
    assert (asked["step"], asked["copy"], asked["copies"], asked["before"]) == (STEP, 1, 3, 1)
    assert asked["beside"] == 300, "of all steps the other copies are to do those"
    assert asked["parts"] == [
        {"folder": str(place / "part-0"), "generation": GENERATION, "steps": 80},
        {"folder": str(two.folders[1] / "copy-1.1"), "generation": GENERATION, "steps": 40},
    ]
    assert contents(place / "part-0") == contents(two.folders[0] / "copy-1.0")
    assert contents(place / "part-0") != contents(two.folders[1] / "copy-1.1")
    two.launchers[1].forget(Key(JobId(7), 1))
    assert not (two.folders[1] / "copy-1.1").exists(), "the last epoch's copies are nobody's any more"
    assert place.exists()


def test_a_part_that_is_torn_leaves_no_word_of_an_average(two: Two) -> None:
    write(two.folders[0] / "copy-1.0", {"rank0.pt": 100})
    (two.folders[0] / "copy-1.0" / f"gen-{GENERATION}" / "rank0.pt").write_bytes(b"?" * 100)
    two.lend(copy=0)
    two.parts = lambda peer: (SourcePart(peer=peer, epoch=1, generation=GENERATION, copy=0, steps=80),)
    event = run(two.fetch(copy=0, copies=2, last_step=500))
    assert isinstance(event, FetchFailed)
    assert event.lack is Lack.DAMAGED
    assert not (two.folders[1] / "copy-2.0" / "gen-9" / "average.json").exists()


@pytest.mark.parametrize("lost", ["all", "manifest.json", "rank0.pt", "half"])
def test_a_part_that_should_lie_here_and_does_not_is_missed_by_the_fetch_and_not_by_the_job(
    two: Two, lost: str
) -> None:
    own = two.folders[1] / "copy-1.1"
    write(own, {"rank0.pt": 30})
    here = own / f"gen-{GENERATION}"
    if lost == "all":
        shutil.rmtree(own)
    elif lost == "half":
        (here / "rank0.pt").write_bytes(b"?" * 15)
    else:
        (here / lost).unlink()
    two.launchers[1].make_checkpoint_dir(two.job, accounts.account(two.job.run_as, two.configs[1]))
    itself = Peer(host=HostName("host-b"), address="127.0.0.1:1")
    two.parts = lambda _: (SourcePart(peer=itself, epoch=1, generation=GENERATION, copy=1, steps=40),)
    event = run(two.fetch(copy=1, copies=2, last_step=500))
    assert isinstance(event, FetchFailed), event
    assert event.lack is Lack.DAMAGED
    assert f"host-b: {here}" in event.why
    assert not (two.folders[1] / "copy-2.1" / "gen-9" / "average.json").exists()


def test_an_average_that_has_been_made_needs_its_parts_no_more(two: Two) -> None:
    made = two.folders[1] / "copy-2.1" / "gen-9"
    made.mkdir(parents=True)
    (made / "manifest.json").write_text("{}")
    two.launchers[1].make_checkpoint_dir(two.job, accounts.account(two.job.run_as, two.configs[1]))
    itself = Peer(host=HostName("host-b"), address="127.0.0.1:1")
    two.parts = lambda _: (SourcePart(peer=itself, epoch=1, generation=GENERATION, copy=1, steps=40),)
    event = run(two.fetch(copy=1, copies=2, last_step=500))
    assert isinstance(event, CheckpointFetched), event


FULL = """
import os, sys
sys.path.append({package!r})
from hs_agent import carrier

class Full:
    f_bavail, f_frsize = 1, 99

os.fstatvfs = lambda _fd: Full
carrier.main()
"""


def test_where_a_disk_has_no_room_for_an_average_the_host_is_to_blame_and_no_process_is_to_write_it(
    two: Two, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(two.folders[1] / "copy-1.0", {"rank0.pt": 100})
    who = accounts.account(two.job.run_as, two.configs[1])
    two.launchers[1].make_checkpoint_dir(two.job, who)
    own = Peer(host=HostName("host-b"), address="")
    two.parts = lambda _peer: (SourcePart(peer=own, epoch=1, generation=GENERATION, copy=0, steps=80),)
    assert isinstance(run(two.fetch()), CheckpointFetched)
    script = place / "full.py"
    script.write_text(FULL.format(package=str(Path(carrier.__file__).parents[1])))
    monkeypatch.setattr(carrier, "__file__", str(script))
    event = run(two.fetch())
    assert isinstance(event, FetchFailed), event
    assert (event.why, event.host_fault) == (f"{NO_ROOM_FOR}: it takes 100 bytes; 99 are free here", True)
    (two.folders[1] / "gen-9" / "manifest.json").write_text("{}")
    assert isinstance(run(two.fetch()), CheckpointFetched), "it has been made"


def test_checkpoints_stay_as_long_as_they_are_lent(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    launcher = two.launchers[0]
    launcher.forget(Key(JobId(7), 1))
    launcher.forget_checkpoints({JobId(7)})
    assert launcher.kept(JobId(7)) is not None
    assert two.folders[0].exists()
    launcher.forget_checkpoints(frozenset())
    assert launcher.kept(JobId(7)) is None
    assert not two.folders[0].exists()
    launcher.remove_forgotten()
    assert list(launcher.checkpoints.iterdir()) == []


def nested(folder: Path, depth: int) -> None:
    """Deeper than any path can say."""
    folder.mkdir(parents=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_job_is_forgotten_however_deep_its_folders_are_and_nothing_that_it_links_to(
    two: Two, place: Path
) -> None:
    kept = place / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    launcher, folder = two.launchers[0], two.folders[0]
    for below in (folder / "copy-1.0", folder / "gen-1"):
        nested(below, 1500)
        (below / "link").symlink_to(kept)
        (below / os.fsdecode(b"\xff\n")).mkdir()
    launcher.folder(Key(JobId(7), 1)).make()
    launcher.forget(Key(JobId(7), 1))
    assert [path.name for path in folder.iterdir()] == ["gen-1"]
    launcher.forget_checkpoints(frozenset())
    launcher.remove_forgotten()
    assert list(launcher.checkpoints.iterdir()) == []
    assert (kept / "file").read_text() == "mine"


def test_a_carrier_that_ended_before_anybody_waited_for_it_is_seen_off_without_an_error(two: Two) -> None:
    """A write to it fails first: its pipe is closed by then."""

    async def outlived() -> None:
        order = {"what": "ask", "folder": str(two.folders[0]), "generation": GENERATION}
        async with Carrier(order, accounts.account(two.job.run_as, two.configs[0])) as carried:
            assert carried._process is not None
            assert carried._process.stdin is not None
            carried._process.kill()
            await carried._process.wait()
            with pytest.raises(ConnectionError):
                await carried.write(b"D", b"")
            assert carried._process.stdin.is_closing()

    run(outlived())


def test_a_fetch_that_breaks_for_no_reason_anybody_thought_of_is_told_as_failed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*_: object) -> None:
        raise ZeroDivisionError("of its own")

    monkeypatch.setattr(Trip, "one", breaks)
    event = run(two.fetch())
    assert isinstance(event, FetchFailed)
    assert (event.why, event.lack) == ("ZeroDivisionError: of its own", Lack.UNREACHED)


def test_a_checkpoint_of_an_earlier_step_than_was_said_is_none_that_a_job_may_go_on_from(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 10})
    two.lend()
    two.known = (GENERATION, STEP + 1)
    event = run(two.fetch())
    assert isinstance(event, FetchFailed)
    assert (event.why, event.lack) == (f"host-a: it is of step {STEP}; expected {STEP + 1}", Lack.DAMAGED)
