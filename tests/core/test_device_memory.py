"""Device memory as the driver counts it: of jobs without a hook, and what swapped ones leave behind."""

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.host import HostConfig
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import Phase

SWAPS = HostConfig(host_memory_budget_bytes=256 * GIB)


def host(*, driver: bool = True) -> HostSim:
    return HostSim(1, memory_bytes=80 * GIB, config=SWAPS, driver=driver)


def without_hook(held_gib: int) -> Ways:
    return Ways(hooks=False, memory_bytes=held_gib * GIB, context_bytes=GIB)


def with_hook(held_gib: float, context_gib: float) -> Ways:
    return Ways(can_swap=True, memory_bytes=int(held_gib * GIB), context_bytes=int(context_gib * GIB))


def device_bytes(sim: HostSim, job: JobId) -> int:
    return sim.machine.report(job).device_memory_bytes


def suspends(sim: HostSim, job: JobId, since: int = 0) -> set[str]:
    """How it left its turns."""
    words = [words for _, words in sim.log[since:] if words.startswith(f"suspend {job} ")]
    return {word.split()[-1] for word in words}


@pytest.mark.parametrize("mode", [SuspendMode.AUTO, SuspendMode.TRANSPARENT])
def test_a_job_without_a_hook_is_known_by_what_its_processes_hold(mode: SuspendMode) -> None:
    sim = host()
    job = sim.job(1, ways=without_hook(30), mode=mode)
    sim.send()
    sim.quanta(2)
    assert device_bytes(sim, job) == 31 * GIB


def test_nobody_is_started_beside_one_without_a_hook_that_holds_too_much() -> None:
    sim = host()
    first = sim.job(1, ways=without_hook(60))
    sim.send()
    sim.quanta(2)
    second = sim.job(2, ways=without_hook(60))  # of the same class
    sim.send()
    sim.quanta(6)
    assert sim.phases()[int(second)] == Phase.WAITING.value
    assert sim.machine.report(second).note == "its GPUs' memory is held by jobs that can't be moved out"
    assert sim.trained(first) > 7 * 60
    small = sim.job(3, user="small", ways=without_hook(1), memory_bytes=2 * GIB)
    sim.send()
    sim.quanta(6)
    assert sim.trained(small) > 2 * 60, "beside it there is room for that"


def test_a_job_that_is_coming_up_is_not_taken_for_as_small_as_it_is_then() -> None:
    """It stands at its first step edge before its turn, with its model and nothing else."""
    sim = host()
    held = sim.job(1, user="A", ways=with_hook(30, 1))
    sim.send()
    sim.quanta(2)
    comes = sim.job(2, user="B", ways=with_hook(40, 1))
    sim.send()
    sim.run(30.0)
    assert sim.phases()[int(comes)] == Phase.HELD.value
    assert device_bytes(sim, comes) == 0
    sim.quanta(4)
    assert suspends(sim, held) == {"(swap)", "(hold)"}, (
        "it was alone in its first turn, and fits beside the other"
    )
    assert device_bytes(sim, comes) == 41 * GIB


def test_what_a_swapped_job_leaves_behind_is_in_the_way_of_others() -> None:
    """Two fit on the GPU, but not beside the context of a third."""
    for context_gib, first_leaves in ((1, "(hold)"), (5, "(swap)")):
        sim = host()
        for number, held_gib in ((1, 39), (2, 39), (3, 70)):
            sim.job(number, user=str(number), ways=with_hook(held_gib - context_gib, context_gib))
        sim.send()
        sim.quanta(12)
        log = len(sim.log)
        sim.quanta(12)
        turns = [words for _, words in sim.log[log:] if words.startswith("suspend")]
        assert turns[0] == f"suspend 1 {first_leaves}", "for job 2"
        for job in (1, 2, 3):
            assert sim.gpu_s(JobId(job)) == pytest.approx(8 * 60, abs=30)


def test_what_swapped_jobs_leave_behind_keeps_nobody_from_its_turns() -> None:
    """A GPU's worth each, and the other's context besides: there is nothing better to try."""
    sim = host()
    jobs = [sim.job(n, user=str(n), ways=with_hook(79, 1)) for n in (1, 2)]
    sim.send()
    sim.quanta(10)
    for job in jobs:
        assert sim.gpu_s(job) == pytest.approx(300, abs=30)


def residues(sim: HostSim) -> dict[int, int]:
    """By job, as an agent that is started again has them."""
    return {job["wanted"]["job"]: job["residue_bytes"] for job in sim.machine.saved()["jobs"]}


def test_who_has_left_leaves_nothing_behind() -> None:
    sim = host()
    for number, held_gib in ((1, 39), (2, 39), (3, 70)):
        ways = with_hook(held_gib - 5, 5)
        ways.work_s = 180.0 if number == 3 else 1e9
        sim.job(number, user=str(number), ways=ways)
    sim.send()
    sim.quanta(5)
    assert residues(sim)[3] == 5 * GIB
    sim.quanta(9)
    assert sim.phases()[3] == Phase.EXITED.value
    assert residues(sim)[3] == 0
    log = len(sim.log)
    sim.quanta(6)
    assert suspends(sim, JobId(1), log) == suspends(sim, JobId(2), log) == {"(hold)"}


def test_a_restarted_agent_knows_what_jobs_leave_behind() -> None:
    sim = host()
    for n in (1, 2):
        sim.job(n, user=str(n), ways=with_hook(60, 1))
    sim.send()
    sim.quanta(5)
    sim.kill_agent()
    sim.start_agent()
    assert residues(sim) == {1: GIB, 2: GIB}
    sim.quanta(2)
    assert device_bytes(sim, JobId(1)) == 61 * GIB


def test_without_a_driver_that_says_so_only_the_hook_measures() -> None:
    sim = host(driver=False)
    job, other = sim.job(1, ways=with_hook(30, 1)), sim.job(2, user="B", ways=without_hook(10))
    sim.send()
    sim.quanta(4)
    assert (device_bytes(sim, job), device_bytes(sim, other)) == (30 * GIB, 0)
