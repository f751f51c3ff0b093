"""The controller on profiling runs: when it asks its policy again, and what it tells people."""

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.policies import find
from hs_core.policy import Profiling


@pytest.fixture
def world() -> World:
    return World(find("fft"), Settings(quantum_s=300.0, settle_s=0.0))


def told(world: World, *lines: str) -> list[str]:
    return [said for line in lines for said in world.do(line)]


def submitted(world: World) -> list[str]:
    return told(
        world,
        "@0",
        "user alice",
        "host v V100:1 peer=v:1",
        "host k K80:1 peer=k:1",
        "submit alice train steps=100000",
    )


def runs(world: World, host: str, epoch: int, seconds: range, rate: float, *, before: int = 0) -> list[str]:
    """Seconds of its incarnation in which it trains, and says so."""
    said: list[str] = []
    began_s = world.now_s - seconds.start
    for second in seconds[1:]:
        counters = (
            f"gpu_s={second} run_s={second} resumes=1 step={before + int(rate * second)} steps_per_s={rate}"
        )
        said += told(
            world, f"@{began_s + second}", f"report {host} 1:{epoch}=running {counters} can_checkpoint=yes"
        )
    return said


def test_a_job_is_profiled_on_both_models_and_its_story_says_so(world: World) -> None:
    first = submitted(world)
    assert "job 1 profiling: it runs to be profiled on V100, for 20 mini-batches" in first
    runs(world, "v", 0, range(7), 2.0)
    assert world.do("why 1") == [
        "running (wait 0 s): it runs on v, on 1 GPU; profiled on V100: 12 of 20 mini-batches / nothing to do"
    ]
    over = runs(world, "v", 0, range(6, 12), 2.0)
    assert "job 1 profiled: it was profiled on V100: 20 of 20 mini-batches, 2 a second" in over
    assert world.machine.job(world.machine.jobs()[0].id).move is not None, "to the other model"
    left = told(
        world,
        "report v 1:0=checkpointed gpu_s=11 run_s=11 resumes=1 step=22 checkpoint_step=22 checkpoint_generation=0",
    )
    assert any("job 1 profiling: it runs to be profiled on K80" in line for line in left)
    over = runs(world, "k", 1, range(31), 1.0, before=22)
    assert "job 1 profiled: it was profiled on K80: 20 of 20 mini-batches, 1 a second" in over


def test_who_has_no_rate_in_time_is_told_of_as_well(world: World) -> None:
    submitted(world)
    said = told(
        world,
        "@1",
        "report v 1:0=running gpu_s=1 run_s=1",
        "@400",
        "report v 1:0=running gpu_s=400 run_s=400",
    )
    said += told(world, "@601", "tick")
    assert "job 1 profiled: it was profiled on V100: 0 of 20 mini-batches, no rate was found" in said


def test_another_controller_goes_on_with_the_run(world: World) -> None:
    submitted(world)
    runs(world, "v", 0, range(4), 2.0)
    told(
        world,
        "restart",
        "@4",
        "host v V100:1 peer=v:1 1:0=running gpu_s=4 run_s=4 step=8",
        "host k K80:1 peer=k:1",
    )
    assert "profiled on V100: 8 of 20 mini-batches" in world.do("why 1")[0]


def test_no_runs_where_they_are_switched_off() -> None:
    world = World(find("fft"), Settings(quantum_s=300.0, settle_s=0.0, profiling=Profiling(batches=0)))
    assert not any("profiling" in line for line in submitted(world))


def on_its_way(world: World) -> list[int]:
    return [row.id for row in world.machine.jobs() if row.move is not None]


def test_who_does_not_leave_to_be_profiled_elsewhere_is_not_asked_again_before_another_of_its_class() -> None:
    world = World(find("fft"), Settings(quantum_s=300.0, settle_s=0.0))
    told(world, "@0", "user alice", "host v V100:2 peer=v:1", "host k K80:1 peer=k:1")
    told(world, "submit alice train steps=100000", "submit alice train steps=100000")
    for second in range(1, 13):
        of = f"gpu_s={second} run_s={second} resumes=1 step={2 * second} steps_per_s=2 can_checkpoint=yes"
        told(world, f"@{second}", f"report v 1:0=running {of}", f"report v 2:0=running {of}")
    [first] = on_its_way(world)
    told(world, "@140", "tick")
    [second_one] = on_its_way(world)
    assert second_one != first
    told(world, "@280", "tick")
    assert on_its_way(world) == [], "neither left in time"
