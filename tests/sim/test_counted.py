"""Reports that bring nothing but counters are taken by a shorter way than others. What comes of it is the same."""

from collections.abc import Callable
from typing import Any

import pytest

from hs_core.cluster import lives
from hs_core.cluster.state import Outcome
from hs_sim.faults import run_seed
from hs_sim.machines.world import World


class Heard:
    """All that a controller's machine says, event by event, and how the jobs that are touched stand then."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def prepare(self, world: World) -> None:
        before: Callable[[Outcome], None] = world.controller.happened

        def happened(outcome: Outcome) -> None:
            before(outcome)
            rows = {job: world.controller.machine.find(job) for job in sorted(outcome.touched.jobs)}
            self.told.append((world.clock.now_s, outcome.commands, outcome.facts, rows))

        world.controller.happened = happened


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5, 6])
@pytest.mark.parametrize("deeds", [False, True], ids=["failures", "people"])
def test_a_report_that_brings_nothing_but_counters_comes_to_what_any_other_would(
    seed: int, deeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long, counted = Heard(), Heard(), 0
    only_counts = lives._only_counts

    def noted(*report: Any) -> bool:
        nonlocal counted
        counted += (only := only_counts(*report))
        return only

    monkeypatch.setattr(lives, "_only_counts", noted)
    assert run_seed(seed, short.prepare, deeds=deeds) is None
    monkeypatch.setattr(lives, "_only_counts", lambda *_: False)
    assert run_seed(seed, long.prepare, deeds=deeds) is None
    assert counted > 20
    assert short.told == long.told
