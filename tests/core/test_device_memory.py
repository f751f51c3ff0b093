"""Device memory as the driver counts it: of jobs without a hook, and what swapped ones leave behind."""

from dataclasses import replace

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.host import HostConfig
from hs_core.host.half_up import LONG_TURNS
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import CANNOT_START, MEMORY_HELD, Phase
from hs_core.wanted import Guest, Turn

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
    for context_gib, beside_each_other in ((1, True), (5, False)):
        sim = host()
        for number, held_gib in ((1, 39), (2, 39), (3, 70)):
            sim.job(number, user=str(number), ways=with_hook(held_gib - context_gib, context_gib))
        sim.send()
        sim.quanta(12)
        log = len(sim.log)
        sim.quanta(12)
        turns = [words for _, words in sim.log[log:] if words.startswith("suspend")]
        assert any(words in ("suspend 1 (hold)", "suspend 2 (hold)") for words in turns) == beside_each_other
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


def test_beside_one_that_may_take_all_of_a_gpu_nobody_is_started_ahead_until_it_has_made_a_step() -> None:
    for held_gib, launched_s in ((15, 3.0), (60, 60.0)):
        sim = host()
        sim.job(1, user="A", ways=with_hook(held_gib, 0))
        sim.job(2, user="B", ways=with_hook(70, 0))
        sim.send()
        sim.quanta(6)
        (at_s,) = (at_s for at_s, words in sim.log if words == "launch 2 on 0")
        assert at_s == pytest.approx(launched_s, abs=2.0)
        assert not sim.overfull


def test_one_that_stands_untried_leaves_for_who_needs_more_than_half() -> None:
    for declared_gib, leaves in ((30, False), (60, True)):
        sim = host()
        sim.job(1, user="A", memory_bytes=2 * GIB)
        untried = sim.job(2, user="B", ways=with_hook(50, 0))
        sim.send()
        sim.run(30.0)
        assert sim.phases()[int(untried)] == Phase.HELD.value
        sim.change(untried, paused=True)
        comes = sim.job(3, user="C", memory_bytes=declared_gib * GIB, ways=with_hook(declared_gib, 0))
        sim.send()
        sim.quanta(3)
        assert sim.trained(comes) > 30
        assert ("suspend 2 (swap)" in sim.ordered("suspend")) == leaves
        assert not sim.overfull


def test_a_turn_in_which_it_made_no_step_tells_nothing_of_what_a_job_holds() -> None:
    sim = host()
    slow = with_hook(70, 0)
    slow.resume_s = 100.0  # its first batch takes long
    untried = sim.job(1, user="A", ways=slow)
    comes = sim.job(2, user="B", memory_bytes=60 * GIB, ways=with_hook(60, 0))
    sim.send()
    sim.quanta(3)
    assert sim.machine.report(untried).run_s > 50
    assert sim.trained(comes) > 30
    assert "suspend 1 (swap)" in sim.ordered("suspend")
    assert not sim.overfull


def test_where_more_than_half_is_held_by_one_that_cannot_leave_one_of_unknown_size_waits_for_its_end() -> (
    None
):
    for held_gib, waits in ((30, False), (50, True)):
        sim = host()
        held = Ways(memory_bytes=held_gib * GIB, work_s=400.0)
        sim.job(1, user="A", memory_bytes=held_gib * GIB, ways=held)
        sim.send()
        sim.quanta(1)
        comes = sim.job(2, user="B", ways=with_hook(45, 0))
        sim.send()
        sim.quanta(4)
        assert (sim.phases()[int(comes)] == Phase.WAITING.value) == waits
        if waits:
            note = sim.machine.report(comes).note
            assert note == "its GPUs' memory is held by jobs that can't be moved out"
        sim.quanta(6)
        assert sim.trained(comes) > 60
        assert not sim.overfull


def test_beside_its_partner_one_of_unknown_size_is_started_however_much_that_holds() -> None:
    """Who has decided that they share knows what they hold, or takes the risk."""
    sim = host()
    partner = sim.job(1, user="A", memory_bytes=50 * GIB)
    guest = sim.job(2, user="B", ways=with_hook(20, 0))
    sim.turn = Turn(
        gangs=(partner, guest), local=False, guests=(Guest(job=guest, beside=(partner,), gpus=(1,)),)
    )
    sim.send()
    sim.quanta(2)
    assert sim.trained(guest) > 60
    assert sim.trained(partner) > 60


def test_where_one_that_is_named_finds_its_place_taken_for_good_those_that_stand_there_go_on() -> None:
    """The controller names a swapped job again and again, and a wider one can leave neither for the host's memory nor for a checkpoint."""
    sim = HostSim(4, memory_bytes=16 * GIB, config=HostConfig(host_memory_budget_bytes=20 * GIB))
    named = sim.job(1, 2, user="A", memory_bytes=9 * GIB, ways=with_hook(9, 0))
    sim.turn = Turn(gangs=(named,), local=False)
    sim.send()
    sim.quanta(1)
    stays = sim.job(2, 4, user="B", memory_bytes=9 * GIB, ways=with_hook(9, 0))
    sim.turn = Turn(gangs=(stays,), local=False)
    sim.send()
    sim.quanta(2)
    assert sim.phases()[int(named)] == Phase.SWAPPED.value
    sim.turn = Turn(gangs=(named,), local=False)
    sim.send()
    before_s = sim.trained(stays)
    sim.quanta(4)
    assert sim.phases()[int(named)] == Phase.SWAPPED.value
    assert sim.trained(stays) > before_s + 3 * 60


@pytest.mark.parametrize("writes", [True, False])
def test_one_whose_place_is_taken_for_good_leaves_host_memory_after_long_and_says_that_it_cannot_be_started(
    writes: bool,
) -> None:
    """So it is sent elsewhere. One that can write no checkpoint waits where it is."""
    sim = HostSim(4, memory_bytes=16 * GIB, config=HostConfig(host_memory_budget_bytes=20 * GIB))
    ways = replace(with_hook(9, 0), can_checkpoint=writes)
    swapped = sim.job(1, 2, user="A", memory_bytes=9 * GIB, ways=ways)
    sim.send()
    sim.quanta(1)
    sim.job(2, 4, user="B", memory_bytes=9 * GIB, ways=with_hook(9, 0))
    sim.send()
    sim.quanta(9)
    step = sim.machine.report(swapped).step
    assert sim.phases()[int(swapped)] == Phase.SWAPPED.value
    sim.quanta(LONG_TURNS)
    report = sim.machine.report(swapped)
    if not writes:
        assert report.phase is Phase.SWAPPED
        return
    assert (report.phase, report.checkpoint_step, report.start_fails) == (Phase.CHECKPOINTED, step, 1)
    assert report.note.startswith(f"{CANNOT_START}: the memory of its GPUs {MEMORY_HELD}")
    assert sim.phases()[2] == "running"


def test_a_part_of_a_gang_whose_place_is_taken_for_good_stays_as_its_others_do() -> None:
    sim = HostSim(4, memory_bytes=16 * GIB, config=HostConfig(host_memory_budget_bytes=20 * GIB))
    ways = replace(with_hook(9, 0), can_checkpoint=True)
    part = sim.job(1, 2, nodes=2, rendezvous="a:1", user="A", memory_bytes=9 * GIB, ways=ways)
    sim.turn = Turn(gangs=(part,))
    sim.send()
    sim.quanta(1)
    wide = sim.job(2, 4, user="B", memory_bytes=9 * GIB, ways=with_hook(9, 0))
    sim.turn = Turn(gangs=(wide,))
    sim.send()
    sim.quanta(2)
    sim.turn = Turn(gangs=(part,))
    sim.send()
    sim.quanta(2 * LONG_TURNS)
    assert sim.phases()[int(part)] == Phase.SWAPPED.value


def test_who_was_started_ahead_is_not_let_go_before_those_have_left_beside_whom_it_cannot_train() -> None:
    """It stands there already, and holds less than it will. The other was to be swapped, which failed, and can write a checkpoint."""
    sim = host()
    grows = Ways(can_swap=True, can_checkpoint=True, swap_fails=True, memory_bytes=50 * GIB)
    first = sim.job(1, user="A", ways=grows)
    sim.send()
    sim.quanta(2)
    second = sim.job(2, user="B", ways=with_hook(20, 0))
    sim.change(second, needs_bytes=20 * GIB)
    sim.send()
    sim.run(30.0)
    assert sim.phases()[int(second)] == Phase.HELD.value
    grows.memory_bytes = 65 * GIB
    sim.quanta(4)
    assert suspends(sim, first) == {"(swap)", "(checkpoint)"}
    assert sim.trained(second) > 60
    assert not sim.overfull
