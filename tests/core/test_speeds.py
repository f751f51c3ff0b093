"""How fast each GPU is, from what jobs reported, and what a policy is told of it."""

from dataclasses import replace

import pytest

from hs_core.cluster import ClusterMachine, Settings
from hs_core.cluster.harness import World
from hs_core.cluster.plain import a_host
from hs_core.cluster.slowdowns import Slowdowns
from hs_core.model import Slowdown
from hs_core.names import GpuId, HostName, JobId
from hs_core.policies.pal import PAL
from hs_core.speeds import ENOUGH, MOST_GANGS, GpuSpeeds

A, B, C, D = (GpuId(f"GPU-n1-{at}") for at in range(4))
N1 = HostName("n1")


def measured(rates: dict[tuple[GpuId, ...], float], job_class: str = "c") -> GpuSpeeds:
    speeds = GpuSpeeds()
    for gpus, rate in rates.items():
        for _ in range(ENOUGH):
            speeds.add(job_class, "V100", gpus, rate)
    return speeds


def test_a_gpus_slowdown_is_the_middling_rate_over_its_own() -> None:
    found = measured({(A,): 10.0, (B,): 12.0, (C,): 5.0}).slowdowns("c", "V100")
    assert found == pytest.approx({A: 1.0, B: 10 / 12, C: 2.0})


def test_of_a_gang_only_the_gpu_that_is_slow_with_everybody_is_blamed() -> None:
    found = measured({(A, B): 10.0, (C, D): 5.0, (A, D): 10.0}).slowdowns("c", "V100")
    assert found == pytest.approx({A: 1.0, B: 1.0, C: 2.0, D: 1.0})


def test_a_few_samples_or_gpus_say_nothing() -> None:
    assert measured({(A,): 10.0, (B,): 5.0}).slowdowns("c", "V100") == {}
    speeds = measured({(A,): 10.0, (B,): 5.0})
    speeds.add("c", "V100", (C,), 1.0)
    assert speeds.slowdowns("c", "V100") == {}
    assert measured({(A,): 10.0, (B,): 5.0, (C,): 10.0}).slowdowns("d", "V100") == {}


def test_what_is_remembered_is_bounded_and_survives() -> None:
    speeds = measured({(A,): 10.0, (B,): 12.0, (C,): 5.0})
    assert GpuSpeeds.load(speeds.dump()).slowdowns("c", "V100") == speeds.slowdowns("c", "V100")
    for at in range(MOST_GANGS):
        speeds.add("c", "V100", (GpuId(f"GPU-{at}"),), 10.0)
    assert len(speeds.dump()[0][2]) == MOST_GANGS
    speeds.forget("c")
    assert speeds.dump() == []


def test_what_was_measured_counts_before_what_was_said_and_that_before_what_others_measured() -> None:
    host = a_host("n1")
    said = (Slowdown(job_class="c*", times=1.5), Slowdown(job_class="*", times=3.0))
    told = replace(
        host, gpus=tuple(replace(gpu, slowdowns=said) if gpu.index == 3 else gpu for gpu in host.gpus)
    )
    asked = {"c", "cc", "d"}
    assert Slowdowns(GpuSpeeds()).table(asked, [host], 1) == {}
    stated = Slowdowns(GpuSpeeds()).table(asked, [told], 1)
    assert stated == {("c", N1): (1, 1, 1, 1.5), ("cc", N1): (1, 1, 1, 1.5), ("d", N1): (1, 1, 1, 3.0)}
    speeds = measured({(A,): 10.0, (B,): 5.0, (C,): 10.0, (D,): 10.0})
    found = Slowdowns(speeds).table(asked, [told], 1)
    assert found == {("c", N1): (1, 2, 1, 1), ("cc", N1): (1, 2, 1, 1.5), ("d", N1): (1, 2, 1, 3.0)}


def test_a_table_is_made_again_when_something_was_measured_or_a_gpu_fell_out() -> None:
    speeds = measured({(A,): 10.0, (B,): 5.0, (C,): 10.0})
    slowdowns, host = Slowdowns(speeds), a_host("n1")
    first = slowdowns.table({"c"}, [host], 1)
    assert first == {("c", N1): (1, 2, 1, 1)}
    assert slowdowns.table({"c"}, [host], 1) is first
    speeds.add("c", "V100", (A,), 10.0)
    assert slowdowns.table({"c"}, [host], 1) == first
    sick = replace(host, gpus=(replace(host.gpus[0], healthy=False), *host.gpus[1:]))
    assert slowdowns.table({"c"}, [sick], 2) == {("c", N1): (2, 1, 1)}


def test_rates_of_jobs_tell_a_controller_which_gpu_is_slow_and_the_next_one_knows() -> None:
    at = World(PAL, Settings(quantum_s=20.0, settle_s=0.0))
    at.do("user alice")
    at.do("host n1 V100:4")
    at.do("submit alice v job_class=net count=4")
    rates = {1: 10.0, 2: 10.0, 3: 4.0, 4: 10.0}
    for turn in range(1, 6):
        at.now_s += 20
        for job, rate in rates.items():
            here = f"{job}:0=running gpus=GPU-n1-{job - 1} can_checkpoint=yes resumes={turn}"
            at.do(f"report n1 {here} step={turn} run_s={20 * (turn - 1)}")
            at.do(f"report n1 {here} step={turn + 1} run_s={20 * turn - 10} steps_per_s={rate}")
    again = ClusterMachine(PAL, at.machine.settings, at.machine.state)
    for machine in (at.machine, again):
        speeds = GpuSpeeds.load(machine.gpu_speeds)
        net = next(iter(speeds.classes()))
        assert speeds.slowdowns(net, "V100") == pytest.approx({A: 1.0, B: 1.0, C: 2.5, D: 1.0})
    assert {row.id for row in again.jobs()} == {JobId(job) for job in rates}


def test_a_gang_over_several_servers_tells_of_the_gpus_on_all_of_them() -> None:
    at = World(PAL, Settings(quantum_s=20.0, settle_s=0.0))
    for line in ("user alice", "host n1 V100:1", "host n2 V100:1", "submit alice v nodes=2 job_class=net"):
        at.do(line)
    for turn in range(1, 6):
        at.now_s += 20
        for told in (
            f"step={turn} run_s={20 * (turn - 1)}",
            f"step={turn + 1} run_s={20 * turn - 10} steps_per_s=4.0",
        ):
            for name in ("n2", "n1"):
                at.do(f"report {name} 1:0=running gpus=GPU-{name}-0 resumes={turn} {told}")
    ((_, model, gangs),) = at.machine.gpu_speeds
    assert model == "V100"
    assert [gpus for gpus, _ in gangs] == [["GPU-n1-0", "GPU-n2-0"]]
