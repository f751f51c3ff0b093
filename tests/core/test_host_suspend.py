"""How the agent's mind takes a job from its GPUs: hook, freezer, swap, checkpoint; and what it does where that fails."""

from itertools import pairwise
from typing import Any

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.events.host import JobExited
from hs_core.host import HostConfig
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import Exit, Phase

QUICK = {"hook_s": 0.01, "ready_s": 0.02}


def orders(sim: HostSim, word: str) -> list[str]:
    return [words for _, words in sim.log if words.startswith(word)]


def test_a_job_that_does_not_answer_is_frozen():
    sim = HostSim(1)
    sim.job(1, ways=Ways(deaf=True))
    sim.job(2)
    sim.send()
    sim.run(110)
    assert orders(sim, "suspend 1") == ["suspend 1 (hold)", "suspend 1 (freeze)"]
    assert sim.running() == {2}
    assert sim.machine.report(JobId(1)).phase is Phase.FROZEN


def test_a_job_that_comes_to_no_step_is_frozen_at_once_the_next_times_and_asked_less_and_less_often():
    sim = HostSim(1)
    sim.job(1, ways=Ways(deaf=True))
    sim.job(2)
    sim.send()
    sim.quanta(60)
    waited = orders(sim, "suspend 1 (hold)")
    frozen = orders(sim, "suspend 1 (freeze)")
    assert len(frozen) > 20
    assert 1 < len(waited) < len(frozen) / 3


def test_a_job_that_comes_to_a_step_again_is_held_again():
    sim = HostSim(1)
    ways = Ways(deaf=True)
    sim.job(1, ways=ways)
    sim.job(2)
    sim.send()
    sim.quanta(4)
    ways.deaf = False
    sim.quanta(20)
    assert orders(sim, "suspend 1")[-3:] == ["suspend 1 (hold)"] * 3


def test_one_that_comes_to_no_step_is_not_asked_for_its_memory_again_as_soon_as_it_has_a_turn():
    sim = HostSim(1, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    sim.job(1, ways=Ways(deaf=True, can_swap=True, memory_bytes=10 * GIB))
    sim.job(2, user="B", ways=Ways(can_swap=True, memory_bytes=10 * GIB))
    sim.send()
    sim.quanta(40)
    asked = [at for at, words in sim.log if words == "suspend 1 (swap)"]
    config = HostConfig()
    pause_s = config.park_deadline_s + config.park_retry_quanta * sim.quantum_s
    assert len(asked) > 1
    assert all(later - before >= pause_s for before, later in pairwise(asked))
    assert sim.machine.report(JobId(1)).note == "swap failed: no answer in 300 s"


def test_one_that_came_to_no_step_once_gives_its_memory_up_when_it_comes_to_steps_again():
    sim = HostSim(1, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    ways = Ways(deaf=True, can_swap=True, memory_bytes=10 * GIB)
    sim.job(1, ways=ways)
    sim.job(2, user="B", ways=Ways(can_swap=True, memory_bytes=10 * GIB))
    sim.send()
    sim.quanta(8)
    assert orders(sim, "suspend 1") == ["suspend 1 (swap)", "suspend 1 (freeze)"]
    ways.deaf = False
    sim.quanta(40)
    assert sim.machine.report(JobId(2)).gpu_s > 600


def test_one_that_came_to_no_place_to_be_saved_at_is_frozen_as_soon_as_its_move_is_taken_back():
    sim = HostSim(1)
    deaf = sim.job(1, ways=Ways(deaf=True, can_checkpoint=True))
    sim.send()
    sim.run(20)
    sim.change(deaf, leave=True)
    sim.send()
    sim.run(120)
    assert orders(sim, "suspend 1") == ["suspend 1 (checkpoint)"]
    sim.change(deaf, leave=False)
    sim.send()
    sim.run(1)
    assert orders(sim, "suspend 1") == ["suspend 1 (checkpoint)", "suspend 1 (freeze)"]
    sim.run(60)
    assert sim.running() == {1}


def test_a_job_that_cannot_even_be_frozen_keeps_its_turn_and_is_told_so():
    sim = HostSim(1)
    deaf = sim.job(1, ways=Ways(deaf=True, freezes=False))
    sim.job(2)
    sim.send()
    sim.quanta(3)
    report = sim.machine.report(deaf)
    assert report.phase is Phase.RUNNING
    assert not report.sliceable
    assert report.note == "does not stop: no freezer"
    assert report.gpu_s == pytest.approx(180, abs=1)
    assert sim.phases()[2] == "held"


def test_a_script_without_the_hook_is_frozen_and_thawed():
    sim = HostSim(1)
    plain, other = sim.job(1, ways=Ways(hooks=False)), sim.job(2)
    sim.send()
    sim.quanta(10)
    assert "suspend 1 (freeze)" in orders(sim, "suspend 1")
    assert sim.machine.report(plain).note == "no step hook: suspended by the freezer"
    assert sim.gpu_s(plain) == pytest.approx(sim.gpu_s(other), abs=61)


def test_a_preloaded_script_without_the_hook_is_frozen_until_its_turn():
    sim = HostSim(1)
    sim.job(1)
    plain = sim.job(2, ways=Ways(hooks=False))
    sim.send()
    sim.run(50)
    assert sim.phases() == {1: "running", 2: "frozen"}
    assert sim.gpu_s(plain) == pytest.approx(30.0, abs=0.1), "it computed from its launch until it was frozen"
    sim.run(20)
    assert sim.phases() == {1: "held", 2: "running"}


@pytest.mark.parametrize("mode", [SuspendMode.HOOK, SuspendMode.NONE])
def test_what_must_not_be_suspended_runs_to_its_end(mode: SuspendMode):
    sim = HostSim(1)
    first = sim.job(1, mode=mode, ways=Ways(hooks=False, work_s=400.0))
    sim.job(2)
    sim.send()
    sim.quanta(5)
    assert sim.running() == {first}
    report = sim.machine.report(first)
    assert not report.sliceable
    assert "unsliced" in report.note
    sim.quanta(5)
    assert sim.running() == {2}
    assert orders(sim, "suspend") == []


def test_without_a_freezer_a_script_without_the_hook_is_unsliceable():
    sim = HostSim(1, config=HostConfig(can_freeze=False))
    first = sim.job(1, ways=Ways(hooks=False))
    sim.job(2, user="B")
    sim.send()
    sim.quanta(4)
    assert sim.running() == {first}
    assert sim.machine.report(first).note == "no step hook: runs unsliced"
    assert orders(sim, "launch") == [
        "launch 1 on 0"
    ]  # nothing is started ahead that could not be kept off the GPU


def paused_while_it_starts(sim: HostSim, ways: Ways) -> JobId:
    """5 s after its start, as another job comes."""
    job = sim.job(1, ways=ways)
    sim.send()
    sim.run(5)
    sim.job(2)
    sim.change(job, paused=True)
    sim.send()
    return job


def test_a_script_without_the_hook_that_is_paused_while_it_starts_keeps_its_gpus_until_it_is_frozen():
    sim = HostSim(1)
    plain = paused_while_it_starts(sim, Ways(hooks=False))
    sim.run(20)
    assert sim.phases() == {1: "starting", 2: "held"}
    assert sim.machine.report(plain).gpu_s == pytest.approx(25, abs=1)
    sim.run(30)
    assert sim.phases() == {1: "frozen", 2: "running"}


def test_without_a_freezer_a_script_without_the_hook_that_is_paused_while_it_starts_keeps_its_gpus():
    sim = HostSim(1, config=HostConfig(can_freeze=False))
    plain = paused_while_it_starts(sim, Ways(hooks=False))
    sim.quanta(3)
    assert orders(sim, "launch") == ["launch 1 on 0"]
    report = sim.machine.report(plain)
    assert (report.phase, report.sliceable, report.in_turn) == (Phase.RUNNING, False, True)


def test_a_job_with_the_hook_that_is_paused_while_it_starts_stands_at_its_first_step():
    sim = HostSim(1)
    job = paused_while_it_starts(sim, Ways(hook_s=8.0, ready_s=20.0))
    sim.run(30)
    assert sim.phases() == {1: "held", 2: "running"}
    assert sim.gpu_s(job) == pytest.approx(8, abs=0.1)  # then it is known to stop by itself


def test_transparent_jobs_are_frozen_only():
    sim = HostSim(1)
    for n in (1, 2):
        sim.job(n, mode=SuspendMode.TRANSPARENT)
    sim.send()
    sim.quanta(6)
    assert set(orders(sim, "suspend")) == {"suspend 1 (freeze)", "suspend 2 (freeze)"}
    assert sim.gpu_s(JobId(1)) == pytest.approx(180, abs=1)


def memory_sim(ways: Ways, **config: object) -> HostSim:
    sim = HostSim(1, memory_bytes=16 * GIB, config=HostConfig(**config))
    sim.job(1, memory_bytes=10 * GIB, ways=ways)
    sim.job(2, memory_bytes=10 * GIB, ways=Ways(**vars(ways)))
    sim.send()
    sim.quanta(6)
    return sim


def test_state_stays_on_the_gpu_where_it_fits():
    sim = HostSim(1, memory_bytes=32 * GIB, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    for n in (1, 2):
        sim.job(n, memory_bytes=10 * GIB, ways=Ways(can_swap=True, can_checkpoint=True))
    sim.send()
    sim.quanta(6)
    assert {w.split()[-1] for w in orders(sim, "suspend")} == {"(hold)"}


def test_state_is_swapped_where_it_does_not_fit():
    sim = memory_sim(Ways(can_swap=True, can_checkpoint=True), host_memory_budget_bytes=64 * GIB)
    assert {w.split()[-1] for w in orders(sim, "suspend")} == {"(swap)"}
    assert sim.gpu_s(JobId(1)) == pytest.approx(180, abs=5)


def test_state_is_checkpointed_where_host_memory_does_not_allow_a_swap():
    sim = memory_sim(Ways(can_swap=True, can_checkpoint=True, **QUICK), host_memory_budget_bytes=5 * GIB)
    assert {w.split()[-1] for w in orders(sim, "suspend")} == {"(checkpoint)"}
    assert "launch 1 on 0 from generation 0" in orders(sim, "launch")
    assert sim.gpu_s(JobId(1)) == pytest.approx(180, abs=10)
    assert sim.machine.report(JobId(1)).lost_gpu_s == 0


def test_memory_is_never_promised_twice_even_if_somebody_has_to_wait():
    sim = memory_sim(Ways())
    assert sim.running() == {1}
    report = sim.machine.report(JobId(2))
    assert report.phase is Phase.WAITING
    assert "memory" in report.note


def test_a_failed_swap_leaves_the_job_held_and_is_told():
    sim = memory_sim(Ways(can_swap=True, swap_fails=True), host_memory_budget_bytes=64 * GIB)
    assert sim.machine.report(JobId(1)).note.startswith("swap failed")
    assert sim.running() == {1}
    assert orders(sim, "kill") == []


def test_a_full_disk_leaves_the_job_going_on():
    sim = memory_sim(Ways(can_checkpoint=True, disk_full=True))
    assert "checkpoint failed: disk full" in sim.machine.report(JobId(1)).note
    sim.run(2.0)  # it is asked once more at this edge
    assert sim.running() == {1}
    assert sim.trained(JobId(1)) > 300
    assert orders(sim, "kill") == []


def test_what_a_job_survived_is_not_held_against_it_once_it_succeeded():
    sim = memory_sim(Ways(can_checkpoint=True, disk_full=True))
    assert "checkpoint failed: disk full" in sim.machine.report(JobId(1)).note
    sim.machine.handle(JobExited(now_s=sim.now_s, job=JobId(1), epoch=1, exit=Exit()))
    assert sim.machine.report(JobId(1)).note == ""


def test_measured_memory_counts():
    sim = HostSim(1, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    for n in (1, 2):
        sim.job(n, ways=Ways(can_swap=True, memory_bytes=12 * GIB))
    sim.send()
    sim.quanta(8)
    assert {w.split()[-1] for w in orders(sim, "suspend")} == {"(swap)"}


def leaves_before(sim: HostSim, job: int) -> list[str]:
    """Whose memory has left, and how, before this job trained for the first time."""
    said = [words for _, words in sim.log if words.startswith(("suspend", "resume"))]
    return [word for word in said[: said.index(f"resume {job}")] if not word.endswith(("(hold)", "resume 1"))]


def test_a_job_that_nobody_knows_the_size_of_is_alone_on_its_gpu_in_its_first_turn():
    sim = HostSim(1, memory_bytes=80 * GIB, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    sim.job(1, ways=Ways(can_swap=True, memory_bytes=30 * GIB))
    sim.job(2, user="B", ways=Ways(can_swap=True, memory_bytes=30 * GIB))
    sim.send()
    sim.quanta(8)
    assert leaves_before(sim, 2) == ["suspend 1 (swap)"]
    assert {word.split()[-1] for word in orders(sim, "suspend")[3:]} == {"(hold)"}, "both are known, and fit"
    assert sim.gpu_s(JobId(1)) == pytest.approx(240, abs=10)


def test_a_job_of_a_class_that_was_measured_is_taken_to_hold_as_much():
    sim = HostSim(1, memory_bytes=80 * GIB, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    sim.job(1, ways=Ways(can_swap=True, memory_bytes=30 * GIB))
    sim.send()
    sim.quanta(2)
    sim.kill_agent()
    sim.start_agent()
    sim.job(2, ways=Ways(can_swap=True, memory_bytes=30 * GIB))
    sim.send()
    sim.quanta(6)
    assert leaves_before(sim, 2) == []
    assert {word.split()[-1] for word in orders(sim, "suspend")} == {"(hold)"}


def test_where_nobody_can_leave_a_job_of_unknown_size_has_its_turn_all_the_same():
    sim = HostSim(1, memory_bytes=80 * GIB, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    for n, user in ((1, "A"), (2, "B")):
        sim.job(n, user=user, ways=Ways(memory_bytes=30 * GIB))
    sim.send()
    sim.quanta(8)
    assert sim.gpu_s(JobId(2)) == pytest.approx(240, abs=10)


def test_a_job_of_unknown_size_is_not_started_ahead_where_more_than_half_of_a_gpu_is_held():
    for held_gib, ahead in ((30, True), (50, False)):
        sim = HostSim(1, memory_bytes=80 * GIB, config=HostConfig(host_memory_budget_bytes=64 * GIB))
        sim.job(1, memory_bytes=held_gib * GIB, ways=Ways(can_swap=True))
        sim.send()
        sim.quanta(1)
        sim.job(2, user="B", ways=Ways(can_swap=True, memory_bytes=30 * GIB))
        sim.send()
        sim.run(20.0)
        assert (orders(sim, "launch")[-1].startswith("launch 2"), sim.running()) == (ahead, {1})


def test_of_a_job_that_was_swapped_before_what_that_moved_counts_against_the_hosts_budget():
    """They say 45 GiB each and 16 are moved: were 45 counted, the second one could never leave again, and the first never come back."""
    sim = HostSim(1, memory_bytes=80 * GIB, config=HostConfig(host_memory_budget_bytes=62 * GIB))
    for n in (1, 2):
        sim.job(n, memory_bytes=45 * GIB, ways=Ways(can_swap=True, memory_bytes=16 * GIB))
    sim.send()
    sim.quanta(8)
    assert {w.split()[-1] for w in orders(sim, "suspend")} == {"(swap)"}
    assert sim.gpu_s(JobId(1)) == pytest.approx(240, abs=10)


def test_two_of_which_the_budget_holds_one_change_places():
    """While they do both are on the host."""
    sim = memory_sim(Ways(can_swap=True), host_memory_budget_bytes=12 * GIB)
    sim.quanta(6)
    assert {w.split()[-1] for w in orders(sim, "suspend")} == {"(swap)"}
    assert [sim.gpu_s(JobId(n)) for n in (1, 2)] == pytest.approx([360, 360], abs=5)


def test_beyond_the_budget_who_can_writes_a_checkpoint_instead():
    sim = memory_sim(Ways(can_swap=True, can_checkpoint=True, **QUICK), host_memory_budget_bytes=12 * GIB)
    sim.quanta(6)
    assert "suspend 2 (checkpoint)" in orders(sim, "suspend")
    assert sim.gpu_s(JobId(1)) == pytest.approx(360, abs=10)


def test_one_that_was_to_come_back_and_did_not_goes_before_who_could_not_leave_for_it():
    """Job 2 has left for it beyond the budget when its turn is over: were job 3 started now, it would have the GPU to its end."""
    sim = HostSim(1, memory_bytes=16 * GIB, config=HostConfig(host_memory_budget_bytes=12 * GIB))
    for n in (1, 2):
        sim.job(n, memory_bytes=10 * GIB, ways=Ways(can_swap=True, swap_s=70.0))
    sim.send()
    sim.run(200.0)
    assert orders(sim, "suspend")[-1] == "suspend 2 (swap)"
    sim.job(3, user="B", memory_bytes=10 * GIB, ways=Ways(can_swap=True))
    sim.send()
    sim.quanta(40)
    assert sim.gpu_s(JobId(3)) == 0.0, "there is no room for a third"
    assert min(sim.gpu_s(JobId(n)) for n in (1, 2)) > 200


def test_nobody_is_swapped_into_host_memory_that_is_not_there():
    sim = HostSim(
        1,
        memory_bytes=16 * GIB,
        ram_bytes=11 * GIB,
        config=HostConfig(host_memory_budget_bytes=64 * GIB, host_memory_reserve_bytes=GIB),
    )
    for n in (1, 2):
        sim.job(
            n, memory_bytes=10 * GIB, ways=Ways(can_swap=True, can_checkpoint=True, host_bytes=GIB, **QUICK)
        )
    sim.send()
    sim.quanta(6)
    assert {w.split()[-1] for w in orders(sim, "suspend")} == {"(checkpoint)"}


def test_a_checkpoint_whose_word_was_lost_is_not():
    sim = memory_sim(Ways(can_checkpoint=True, **QUICK))
    sim.ways[JobId(1)].lose.add("held")
    sim.quanta(6)
    assert sim.machine.report(JobId(1)).exit is None
    assert sim.machine.report(JobId(1)).checkpoint_generation == sim.generations[JobId(1)]


def swappable(gib: int, **more: bool) -> dict[str, Any]:
    return {"memory_bytes": gib * GIB, "ways": Ways(can_swap=True, **more)}


def test_who_finds_no_memory_on_the_gpus_that_are_left_has_its_turns_on_another():
    """Three GPUs are their jobs' for good; three jobs that can be swapped share the fourth."""
    sim = HostSim(4, config=HostConfig(host_memory_budget_bytes=256 * GIB))
    for number in (1, 2, 3):
        sim.job(number, memory_bytes=12 * GIB)
    sim.send()
    sim.quanta(10)
    for number in (4, 5, 6):
        sim.job(number, **swappable(12))
        sim.send()
        sim.quanta(5)
    before = [sim.gpu_s(JobId(number)) for number in (4, 5, 6)]
    sim.quanta(60)
    for number, gpu_s in zip((4, 5, 6), before, strict=True):
        assert sim.gpu_s(JobId(number)) - gpu_s == pytest.approx(1200, abs=180)


def test_one_whose_place_was_taken_for_good_while_it_was_swapped_goes_where_it_has_room():
    sim = HostSim(2, config=HostConfig(host_memory_budget_bytes=256 * GIB))
    for number in (1, 2):
        sim.job(number, **swappable(12, can_checkpoint=True))
    sim.send()
    sim.quanta(3)
    sim.job(3, memory_bytes=12 * GIB)
    sim.send()
    sim.quanta(10)
    before = [sim.gpu_s(JobId(number)) for number in (1, 2)]
    sim.quanta(20)
    for number, gpu_s in zip((1, 2), before, strict=True):
        assert sim.gpu_s(JobId(number)) - gpu_s == pytest.approx(600, abs=90)


def test_who_can_write_a_checkpoint_leaves_host_memory_to_who_cannot():
    """It holds one of the two that are in the way of the third."""
    sim = HostSim(2, config=HostConfig(host_memory_budget_bytes=12 * GIB))
    sim.job(1, **swappable(10, can_checkpoint=True))
    sim.job(2, **swappable(10))
    sim.send()
    sim.quanta(2)
    sim.job(3, 2, memory_bytes=10 * GIB, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.quanta(20)
    assert {w.split()[-1] for w in orders(sim, "suspend 1")} == {"(checkpoint)"}
    assert {w.split()[-1] for w in orders(sim, "suspend 2")} == {"(swap)"}
    for number in (1, 2, 3):
        assert sim.machine.report(JobId(number)).run_s > 300
