"""Noise scales that jobs measure: believed when there are enough measurements, kept with the job, shown to policies in place of what was declared."""

from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.forms import ENOUGH_NOISE, Elastic, NoiseScale
from hs_core.names import JobId
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict


def watched() -> tuple[World, list[Elastic | None]]:
    """A world with an elastic job on its server, and what Pollux is shown of it, decision by decision."""
    pollux, shown = find("pollux"), list[Elastic | None]()

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        shown.append(snapshot.jobs[0].elastic if snapshot.jobs else None)
        return pollux.decide(snapshot, memory)

    world = World(Policy(name="pollux", needs=pollux.needs, decide=decide), Settings(settle_s=0.0))
    for line in (
        "@0",
        "user alice",
        "host v V100:4 peer=v:1",
        "submit alice train gpus=2 elastic=2,4,32,256,64",
    ):
        world.do(line)
    return world, shown


def said(world: World, samples: int, scale: int, *, epoch: int = 0, gpu_s: int = 1) -> NoiseScale | None:
    world.do(
        f"report v 1:{epoch}=running gpu_s={gpu_s} step={gpu_s} noise_scale={scale} noise_samples={samples}"
    )
    return world.machine.job(JobId(1)).noise


def scale(shown: list[Elastic | None]) -> float:
    newest = shown[-1]
    assert newest is not None
    return newest.noise_scale


def test_a_few_measurements_are_not_believed_and_enough_replace_what_was_declared() -> None:
    world, shown = watched()
    assert said(world, ENOUGH_NOISE - 1, 700) is None
    world.do("@60")
    world.do("tick")
    assert scale(shown) == 0.0
    assert said(world, ENOUGH_NOISE, 700, gpu_s=2) == NoiseScale(examples=700.0, samples=ENOUGH_NOISE)
    world.do("@120")
    world.do("tick")
    assert scale(shown) == 700.0
    assert said(world, 80, 900, gpu_s=3) == NoiseScale(examples=900.0, samples=80)


def test_another_process_and_another_controller_go_on_with_what_was_measured() -> None:
    world, _ = watched()
    known = said(world, 60, 700)
    world.do("report v 1:0=exited why=lost_with_its_host")
    assert world.machine.job(JobId(1)).epoch == 1
    assert world.machine.job(JobId(1)).noise == known
    assert said(world, 5, 3, epoch=1) == known, "a new process begins anew, and is not believed yet"
    world.do("restart")
    assert world.machine.job(JobId(1)).noise == known


def test_of_a_job_that_is_not_elastic_nothing_is_kept() -> None:
    world, _ = watched()
    world.do("submit alice rigid")
    world.do(f"report v 2:0=running noise_scale=5 noise_samples={ENOUGH_NOISE}")
    assert world.machine.job(JobId(2)).noise is None
