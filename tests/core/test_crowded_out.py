"""Jobs that run out of memory: who is to blame, and what is known of them from then on."""

from dataclasses import replace

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.host import HostConfig
from hs_core.host.device_memory import LATELY_S
from hs_core.names import JobId
from hs_core.reports import NONE_LEFT, OF_GPUS, OF_HOST, OUT_OF_MEMORY, Exit, JobReport
from hs_core.wanted import Guest, Turn

SWAPS = HostConfig(host_memory_budget_bytes=256 * GIB)
WAYS = Ways(can_swap=True, memory_bytes=6 * GIB)


def host(jobs: int, *, gpus: int = 1, ways: Ways = WAYS) -> HostSim:
    """One that has had all of them train."""
    sim = HostSim(gpus, memory_bytes=16 * GIB, config=SWAPS)
    for number in range(1, jobs + 1):
        sim.job(number, ways=ways)
    sim.send()
    sim.quanta(2 * jobs)
    return sim


def starve(sim: HostSim, number: int, needs_gib: int) -> JobReport:
    sim.processes[JobId(number), 1].starve(needs_gib * GIB)
    return sim.machine.report(JobId(number))


def end(report: JobReport) -> Exit:
    assert report.exit is not None
    return report.exit


def test_who_runs_out_of_memory_that_another_held_is_not_to_blame_and_is_known_to_need_more() -> None:
    report = starve(host(2), 1, 12)
    needed = "it needed 12.0 GiB of each GPU, of which others held some (job 2)"
    assert end(report).why == f"{OF_GPUS}: {needed}"
    assert end(report).code == 1
    assert report.device_memory_bytes == 12 * GIB


@pytest.mark.parametrize(
    ("jobs", "gpus", "needs_gib"),
    [(1, 1, 12), (2, 2, 12), (2, 1, 17)],
    ids=["alone", "others-on-other-gpus", "more-than-there-is"],
)
def test_who_would_have_run_out_of_memory_alone_has_failed(jobs: int, gpus: int, needs_gib: int) -> None:
    sim = host(jobs, gpus=gpus)
    report = starve(sim, 1, needs_gib)
    assert end(report).why == ""
    assert report.device_memory_bytes == 6 * GIB


def test_one_whose_partners_memory_has_left_the_gpu_was_alone_there() -> None:
    sim = host(2, ways=Ways(can_swap=True, memory_bytes=10 * GIB))
    (swapped,) = [number for number, phase in sim.phases().items() if phase == "swapped"]
    assert end(starve(sim, 3 - swapped, 12)).why == ""


def test_of_two_that_run_out_beside_each_other_neither_is_to_blame() -> None:
    sim = host(2)
    first, second = starve(sim, 1, 12), starve(sim, 2, 11)
    assert end(first).why.startswith(OF_GPUS)
    assert end(second).why == f"{OF_GPUS}: it needed 11.0 GiB of each GPU"


def test_one_that_runs_out_long_after_another_had_was_alone() -> None:
    sim = host(2)
    starve(sim, 1, 12)
    sim.run(LATELY_S + 1.0)
    assert end(starve(sim, 2, 11)).why == ""


@pytest.mark.parametrize(("after_s", "blamed"), [(0.5, False), (5.0, True)])
def test_who_came_up_beside_one_that_was_leaving_was_not_alone(after_s: float, blamed: bool) -> None:
    """Its end is heard of once that one is gone. Who has trained since it was gone was alone."""
    sim = host(1, ways=replace(WAYS, can_checkpoint=True))
    second = sim.job(2, ways=WAYS, needs_bytes=6 * GIB)
    sim.change(JobId(1), leave=True)
    sim.send()
    assert (second, 1) in sim.processes, "there is room for both"
    while (JobId(1), 1) in sim.processes:
        sim.run(0.1)
    sim.run(after_s)
    assert (end(starve(sim, 2, 12)).why == "") == blamed


def test_who_was_let_go_once_another_had_left_was_alone() -> None:
    sim = host(2, ways=Ways(can_swap=True, memory_bytes=10 * GIB))
    sim.run(5.0)
    (swapped,) = [number for number, phase in sim.phases().items() if phase == "swapped"]
    assert sim.phases()[3 - swapped] == "running"
    assert end(starve(sim, 3 - swapped, 12)).why == ""


def test_one_that_was_told_to_end_has_ended_for_that() -> None:
    sim = host(2)
    sim.change(JobId(1), cancelled=True)
    sim.send()
    assert end(starve(sim, 1, 12)).why == "cancelled"


def test_what_one_needs_since_it_was_crowded_out_is_kept_for_it() -> None:
    """Beside one of 6 GiB, on a GPU of 16, they leave for each other from then on."""
    sim = host(1)
    second = sim.job(2, ways=WAYS, needs_bytes=12 * GIB)
    sim.send()
    sim.quanta(8)
    assert min(sim.trained(JobId(1)), sim.trained(second)) > 2 * 60
    assert "swapped" in sim.phases().values()


def test_one_that_needs_all_of_its_gpu_is_not_kept_from_it_by_nobody() -> None:
    sim = HostSim(1, memory_bytes=16 * GIB, config=SWAPS)
    job = sim.job(1, ways=WAYS, needs_bytes=16 * GIB)
    sim.send()
    sim.quanta(2)
    assert sim.trained(job) > 60


def test_who_shares_its_gpu_within_a_turn_is_crowded_by_that_one() -> None:
    sim = HostSim(1, memory_bytes=16 * GIB, config=SWAPS)
    jobs = [sim.job(number, ways=WAYS, memory_bytes=6 * GIB) for number in (1, 2)]
    sim.turn = Turn(
        gangs=tuple(jobs), local=False, guests=(Guest(job=jobs[1], beside=(jobs[0],), gpus=(1,)),)
    )
    sim.send()
    sim.quanta(2)
    assert end(starve(sim, 2, 12)).why.endswith("(job 1)")


def killed(sim: HostSim, number: int, why: str) -> Exit:
    """By the kernel, for want of host memory."""
    sim.processes[JobId(number), 1].killed_for_memory(why)
    return end(sim.machine.report(JobId(number)))


def test_whom_the_kernel_kills_as_the_server_has_no_memory_left_for_all_is_not_to_blame() -> None:
    assert killed(host(2), 1, OUT_OF_MEMORY + NONE_LEFT) == Exit(
        signal=9, why=f"{OF_HOST}: the kernel killed a process of it; the server had none left"
    )


@pytest.mark.parametrize(
    ("jobs", "why"), [(1, NONE_LEFT), (2, "; its limit is 512 MiB")], ids=["alone", "within-its-own-limit"]
)
def test_who_alone_has_taken_all_memory_or_more_than_it_may_has_failed(jobs: int, why: str) -> None:
    assert killed(host(jobs), 1, OUT_OF_MEMORY + why).why == OUT_OF_MEMORY + why
