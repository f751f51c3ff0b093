"""How large checkpoints are: those that jobs write here, and those that are fetched."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hs_agent.folder import Key
from hs_agent.sizes import Sizes
from hs_core.events.host import CheckpointFetched, CheckpointWeighed
from hs_core.names import HostName, JobId
from hs_core.wanted import Peer
from tests.agent.lending import GENERATION, Two, run, write

KEY = Key(JobId(7), 1)


def weighed(two: Two, *generations: int, key: Key = KEY) -> list[int]:
    """What is told as these are durable on the host that writes, one after the other."""
    told: list[Any] = []

    async def look() -> None:
        sizes = Sizes(two.launchers[0], told.append)
        for generation in generations:
            sizes.look(key, generation)
        assert sizes._task is not None
        await sizes._task
        await sizes.close()

    run(look())
    assert all(isinstance(event, CheckpointWeighed) and (event.job, event.epoch) == key for event in told)
    return [event.size_bytes for event in told]


def launched(two: Two, **wanted: object) -> None:
    """As its folder has it on the host that writes."""
    folder = two.launchers[0].folder(KEY)
    folder.make()
    folder.write_launch({"wanted": asdict(two.job) | wanted})


def test_what_lies_there_is_weighed_by_its_manifest(two: Two) -> None:
    launched(two)
    write(two.folders[0], {"rank0.pt": 300, "rank1.pt": 5})
    (two.folders[0] / f"gen-{GENERATION}" / "other").write_bytes(b"x" * 100)
    assert weighed(two, GENERATION) == [305]
    assert weighed(two, 1, 2, GENERATION) == [305], "of several the newest"


def test_files_that_come_to_more_than_can_be_told_are_none(two: Two) -> None:
    """Else what the agent knows would go through no message any more, and its host would be lost to the controller for good."""
    launched(two)
    write(two.folders[0], {"rank0.pt": 300})
    manifest = two.folders[0] / f"gen-{GENERATION}" / "manifest.json"
    said = json.loads(manifest.read_text())
    said["files"] = [{"name": f"rank{n}.pt", "size": 1 << 61, "sha256": "0" * 64} for n in range(16)]
    manifest.write_text(json.dumps(said))
    assert weighed(two, GENERATION) == []


def test_each_node_weighs_its_own_part(two: Two) -> None:
    launched(two, node_rank=1, nodes=[asdict(Peer(host=HostName(name), address="")) for name in "ab"])
    write(two.folders[0], {"rank0.pt": 300}, manifest="manifest-0.json")
    write(two.folders[0], {"rank1.pt": 5}, manifest="manifest-1.json")
    assert weighed(two, GENERATION) == [5]


def test_a_copy_weighs_what_it_wrote_itself(two: Two) -> None:
    launched(two, copy=0)
    write(two.folders[0], {"rank0.pt": 300})
    write(two.folders[0] / "copy-1.0", {"rank0.pt": 7})
    assert weighed(two, GENERATION) == [7]


@pytest.mark.parametrize("damage", ["gone", "no manifest", "a link", "nonsense"])
def test_what_cannot_be_weighed_is_passed_over_and_the_next_one_is_looked_at(two: Two, damage: str) -> None:
    launched(two)
    write(two.folders[0], {"rank0.pt": 300})
    there = two.folders[0] / f"gen-{GENERATION}"
    if damage == "gone":
        there.rename(two.folders[0] / "gen-1")
    elif damage == "no manifest":
        (there / "manifest.json").unlink()
    elif damage == "a link":
        there.rename(two.folders[0] / "elsewhere")
        there.symlink_to(two.folders[0] / "elsewhere")
    else:
        (there / "manifest.json").write_text('{"generation": 4, "step": 1, "files": [{"name": "../x"}]}')
    assert weighed(two, GENERATION) == []
    if damage == "a link":
        there.unlink()
    write(two.folders[0], {"rank0.pt": 300})
    assert weighed(two, GENERATION) == [300]


def test_a_job_that_is_gone_is_passed_over(two: Two) -> None:
    assert weighed(two, GENERATION, key=Key(JobId(8), 1)) == []


def test_one_that_is_fetched_is_as_large_as_all_of_its_files_also_where_some_lay_here(two: Two) -> None:
    write(two.folders[0], {"rank0.pt": 3000, "rank1.pt": 17})
    two.lend()
    first, second = run(two.fetch()), run(two.fetch())
    for event in (first, second):
        assert isinstance(event, CheckpointFetched), event
        assert event.size_bytes == 3017


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [{"pace": [{"base_s": 0.02}]}], indirect=True)
def test_an_agent_reports_the_size_of_what_its_job_wrote(
    daemon, controller, job, place: Path, handed
) -> None:
    daemon.start()
    controller.want(job(1, *handed.command(1000), env=handed.env, checkpoint_interval_s=1.0))
    report = controller.wait_report(1, lambda r: r.checkpoint_bytes, "its checkpoint weighed", 90)
    assert report.checkpoint_generation >= 0
    folder = place / "state" / "checkpoints" / "1"
    manifest = max(folder.glob("gen-*/manifest.json"), key=lambda path: path.stat().st_mtime)
    files = json.loads(manifest.read_text())["files"]
    there = sum((manifest.parent / each["name"]).stat().st_size for each in files)
    assert report.checkpoint_bytes == pytest.approx(there, rel=0.05), "they differ by what is counted in them"
    assert there > 1000
