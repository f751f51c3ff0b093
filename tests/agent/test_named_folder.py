"""What a lost server wrote is found in the folder that the user named."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hs_agent import accounts
from hs_core.events.host import CheckpointFetched, FetchFailed, Lack, NothingFetched
from hs_core.names import HostName
from hs_core.wanted import Peer
from hs_job.checkpoint import CheckpointError, Folder
from tests.agent.lending import GENERATION, STEP, Two, run, write


def looked(two: Two, folder: Path, **changes: Any) -> Any:
    """What the second host says of a checkpoint whose servers are lost, written into the folder that both see."""
    two.job = replace(two.job, spec=replace(two.job.spec, checkpoint_dir=str(folder)))
    two.lost = True
    return run(two.fetch(**changes))


def test_what_a_lost_server_wrote_is_found_in_the_folder_that_the_user_named(two: Two, place: Path) -> None:
    shared = place / "shared/job-7-1"
    write(shared, {"rank0.pt": 20, "rank1.pt": 0})
    event = looked(two, shared)
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (GENERATION, STEP)
    assert not two.carried, "nobody was asked for it"


def test_each_node_finds_the_part_of_the_lost_one_of_its_rank(two: Two, place: Path) -> None:
    nodes = tuple(Peer(host=HostName(f"host-{name}"), address="127.0.0.1:1") for name in "ab")
    two.written_by = (1, 2)
    write(place / "shared", {"rank0.pt": 20}, manifest="manifest-0.json")
    event = looked(two, place / "shared", nodes=nodes, node_rank=1)
    assert isinstance(event, FetchFailed), "one node's part is no checkpoint"
    two.events.clear()
    write(place / "shared", {"rank1.pt": 30}, manifest="manifest-1.json")
    assert isinstance(looked(two, place / "shared", nodes=nodes, node_rank=1), CheckpointFetched)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda _: None, ""),
        (lambda here: (here / "manifest.json").unlink(), "No such file"),
        (lambda here: (here / "rank0.pt").unlink(), "No such file"),
        (lambda here: (here / "rank0.pt").write_bytes(b"torn"), "rank0.pt has 4 bytes; expected 20"),
        (lambda here: (here / "manifest.json").write_text("{"), "its manifest makes no sense"),
        (lambda here: swapped_for_a_link(here / "rank0.pt"), "Too many levels of symbolic links"),
        (lambda here: here.rename(here.parent / "gen-3"), f"no generation from {GENERATION} on"),
        (lambda here: of_step(here, STEP - 1), f"is of steps [{STEP - 1}]; expected {STEP} or more"),
    ],
)
def test_what_is_found_is_whole_and_the_one_that_was_looked_for_or_there_is_no_hope(
    two: Two, place: Path, spoil: Callable[[Path], None], why: str
) -> None:
    write(place / "shared", {"rank0.pt": 20})
    spoil(place / "shared" / f"gen-{GENERATION}")
    event = looked(two, place / "shared")
    if not why:
        assert isinstance(event, CheckpointFetched), event
        return
    assert isinstance(event, FetchFailed), event
    assert event.lack is Lack.GONE, "looking again would not find it"
    assert why in event.why
    assert str(place / "shared") in event.why


@pytest.mark.parametrize(
    "said",
    [
        {"generation": "\x7f" * 900_000},
        {
            "generation": GENERATION,
            "step": STEP,
            "files": [{"name": "\x7f" * 900_000, "size": 1, "sha256": ""}],
        },
    ],
    ids=["generation", "name"],
)
def test_a_reason_that_quotes_a_manifest_is_short(two: Two, place: Path, said: dict[str, Any]) -> None:
    """The controller is told it, in a message that would be too large for it, again and again."""
    write(place / "shared", {"rank0.pt": 20})
    (place / "shared" / f"gen-{GENERATION}" / "manifest.json").write_text(
        json.dumps(said, ensure_ascii=False)
    )
    event = looked(two, place / "shared")
    assert isinstance(event, FetchFailed), event
    assert "its manifest" in event.why
    assert len(event.why) < 2000


def newer(shared: Path, step: int) -> Path:
    """A generation beyond the one that is known, as of a server that wrote on while nobody heard it."""
    here = shutil.copytree(shared / f"gen-{GENERATION}", shared / f"gen-{GENERATION + 1}")
    of_step(here, step)
    return here


def test_what_a_lost_server_wrote_unheard_is_gone_on_from(two: Two, place: Path) -> None:
    """The one that was heard of may be gone by then: two are kept."""
    write(place / "shared", {"rank0.pt": 20})
    newer(place / "shared", STEP + 30)
    shutil.rmtree(place / "shared" / f"gen-{GENERATION}")
    event = looked(two, place / "shared")
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (GENERATION + 1, STEP + 30)


def test_what_it_left_half_written_is_not(two: Two, place: Path) -> None:
    write(place / "shared", {"rank0.pt": 20})
    (newer(place / "shared", STEP + 30) / "rank0.pt").write_bytes(b"half")
    event = looked(two, place / "shared")
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (GENERATION, STEP)


def test_what_was_written_unheard_goes_before_what_a_server_lends(two: Two, place: Path) -> None:
    """On the server that lends it, too: it may be gone there, as both see one folder."""
    for two.onto in (0, 1):
        shared = place / f"shared-{two.onto}"
        write(shared, {"rank0.pt": 20})
        newer(shared, STEP + 30)
        shutil.rmtree(shared / f"gen-{GENERATION}")
        event = sought_first(two, shared)
        assert isinstance(event, CheckpointFetched), event
        assert (event.generation, event.step) == (GENERATION + 1, STEP + 30)
    assert not two.carried, "nobody was asked for it"


def test_an_agent_without_its_memory_finds_what_lies_in_the_jobs_own_folder(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 20})
    newer(two.folders[0], STEP + 30)
    two.onto, two.look = 0, True
    event = run(two.fetch())
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (GENERATION + 1, STEP + 30)


def test_where_each_server_has_a_folder_of_its_own_it_is_fetched_from_who_has_it(
    two: Two, place: Path
) -> None:
    two.lend()
    write(place / "theirs", {"rank0.pt": 20})
    two.job = replace(two.job, spec=replace(two.job.spec, checkpoint_dir=str(place / "theirs")))
    two.launchers[0].make_checkpoint_dir(two.job, accounts.account(two.job.run_as, two.configs[0]))
    (place / "ours").mkdir()
    event = sought_first(two, place / "ours")
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (GENERATION, STEP)
    assert (place / "ours" / f"gen-{GENERATION}" / "rank0.pt").stat().st_size == 20


def test_a_node_that_has_its_part_in_a_folder_of_its_own_goes_on_from_that(two: Two, place: Path) -> None:
    nodes = tuple(Peer(host=HostName(f"host-{name}"), address="127.0.0.1:1") for name in "ab")
    two.onto, two.written_by = 0, (0, 2)
    write(place / "ours", {"rank0.pt": 20}, manifest="manifest-0.json")
    event = sought_first(two, place / "ours", nodes=nodes, node_rank=0)
    assert isinstance(event, CheckpointFetched), event
    assert (event.generation, event.step) == (GENERATION, STEP)
    assert not two.carried


@pytest.mark.parametrize("claimed", [None, "{", '{"epoch": 1}', '{"epoch": 7}'])
def test_who_looks_claims_the_folder_for_its_incarnation_so_that_what_it_finds_stays(
    two: Two, place: Path, claimed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    shared = place / "shared"
    write(shared, {"rank0.pt": 20})
    if claimed is not None:
        (shared / "epoch.json").write_text(claimed)
    assert isinstance(looked(two, shared), CheckpointFetched)
    before, now = (
        Folder(str(shared), 0, 1, epoch=epoch) for epoch in (1, 7 if claimed and "7" in claimed else 2)
    )
    with pytest.raises(CheckpointError, match="begun anew on another server"):
        before.write(GENERATION + 1, STEP + 1, {})
    with pytest.raises(CheckpointError, match="torch"):  # there is none here to write with: it was let so far
        now.write(GENERATION + 1, STEP + 1, {})


@pytest.mark.parametrize("written", [True, False])
def test_where_nobody_was_heard_to_have_written_one_any_will_do_and_none_as_well(
    two: Two, place: Path, written: bool
) -> None:
    shared = place / "shared"
    shared.mkdir()
    if written:
        write(shared, {"rank0.pt": 20})
    two.known = (0, 0)
    event = looked(two, shared)
    if written:
        assert isinstance(event, CheckpointFetched), event
        assert (event.generation, event.step) == (GENERATION, STEP)
    else:
        assert isinstance(event, NothingFetched), event
        assert event.jobs == ((7, 2),)


def sought_first(two: Two, folder: Path, **changes: Any) -> Any:
    """As `looked`, where a server is there that has, or had, what is known of."""
    two.job = replace(two.job, spec=replace(two.job.spec, checkpoint_dir=str(folder)))
    two.look = True
    return run(two.fetch(**changes))


def swapped_for_a_link(file: Path) -> None:
    elsewhere = file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(elsewhere)


def of_step(here: Path, step: int) -> None:
    manifest = json.loads((here / "manifest.json").read_text())
    generation = int(here.name.removeprefix("gen-"))
    (here / "manifest.json").write_text(json.dumps(manifest | {"step": step, "generation": generation}))
