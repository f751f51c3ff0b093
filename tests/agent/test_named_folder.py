"""What a lost server wrote is found in the folder that the user named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hs_core.events import CheckpointFetched, FetchFailed
from hs_core.names import HostName
from hs_core.wanted import Peer
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
    assert event.hopeless, "looking again would not find it"
    assert why in event.why
    assert str(place / "shared") in event.why


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


def swapped_for_a_link(file: Path) -> None:
    elsewhere = file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(elsewhere)


def of_step(here: Path, step: int) -> None:
    manifest = json.loads((here / "manifest.json").read_text())
    generation = int(here.name.removeprefix("gen-"))
    (here / "manifest.json").write_text(json.dumps(manifest | {"step": step, "generation": generation}))
