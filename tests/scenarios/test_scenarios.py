"""Each .txt here is a script above a line of dashes, and below it the timeline that it must give."""

import re
from pathlib import Path

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import World, plain_policy
from hs_core.cluster.plain import Shapes, Wishes
from hs_core.policies import find
from hs_core.policy import Policy

LINE = "-" * 100
SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


def policy_of(script: str, wishes: Wishes, shapes: Shapes) -> Policy:
    """`# policy NAME` asks for one of the table, `# every quantum` for a plain one that is asked at each edge."""
    named = re.search(r"^# policy (\S+)$", script, re.MULTILINE)
    return (
        find(named[1])
        if named
        else plain_policy(every_quantum="# every quantum" in script, wishes=wishes, shapes=shapes)
    )


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_happens_is_what_was_written_down(path: Path, request: pytest.FixtureRequest) -> None:
    script, _, expected = path.read_text(encoding="utf-8").partition(f"{LINE}\n")
    settings = Settings(quantum_s=20.0, settle_s=0.1 if "# every quantum" in script else 0.0)
    wishes: Wishes = {}
    shapes: Shapes = {}
    world = World(policy_of(script, wishes, shapes), settings, wishes=wishes, shapes=shapes)
    happened = world.play(script)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(f"{script.rstrip()}\n{LINE}\n{happened}", encoding="utf-8")
        return
    assert happened == expected


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 8
