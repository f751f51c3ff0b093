"""What the agent's mind does, one fact at a time."""

import pytest
from fakejob import Ways
from hostsim import HostSim, told_to_leave

from hs_core.events.host import JobTrespassed, LaunchFailed, WantedChanged
from hs_core.host import HostConfig
from hs_core.names import JobId
from hs_core.reports import CANNOT_START, LOST, NOT_AS_BEFORE, TRESPASSED, Exit, Phase
from hs_core.wanted import Turn, Wanted

QUICK = {"hook_s": 0.01, "ready_s": 0.02}


def orders(sim: HostSim, word: str) -> list[str]:
    return [words for _, words in sim.log if words.startswith(word)]


def test_a_job_alone_is_launched_let_go_and_charged_from_its_launch():
    sim = HostSim()
    job = sim.job(1, 2)
    sim.send()
    sim.run(100)
    assert [w for _, w in sim.log] == ["launch 1 on 0,1", "resume 1"]
    report = sim.machine.report(job)
    assert report.phase is Phase.RUNNING
    assert report.gpu_s == pytest.approx(2 * 98, abs=5)
    sim.ways[job].work_s = 0
    assert report.run_s * 2 == report.gpu_s


def test_charging_ends_at_the_moment_the_gpus_are_free():
    sim = HostSim(1, config=HostConfig(preload=2))
    jobs = [sim.job(n, ways=Ways(hold_s=3.0, resume_s=0.0)) for n in (1, 2)]
    sim.send()
    sim.quanta(7)
    starting = 2.0  # of the first one, in its turn
    assert sim.gpu_s(jobs[0]) == pytest.approx(sim.trained(jobs[0]) + starting, abs=1e-6)
    assert sim.gpu_s(jobs[1]) == pytest.approx(sim.trained(jobs[1]), abs=1e-6)


def test_losers_leave_before_winners_arrive():
    sim = HostSim(1)
    sim.job(1, ways=Ways(hold_s=5.0))
    sim.job(2)
    sim.send()
    sim.quanta(2)
    at = {words: t for t, words in sim.log}
    assert at["suspend 1 (hold)"] == 60.0
    assert at["resume 2"] == 65.0


def test_jobs_are_started_ahead_of_their_turn_uncharged_and_a_few_at_a_time():
    sim = HostSim(1, config=HostConfig(preload=2))
    for n in range(1, 6):
        sim.job(n)
    sim.send()
    sim.run(1)
    assert sim.phases() == {1: "starting", 2: "starting", 3: "starting", 4: "waiting", 5: "waiting"}
    sim.run(49)
    assert sim.phases() == {1: "running", 2: "held", 3: "held", 4: "held", 5: "held"}
    assert sim.gpu_s(JobId(2)) == 0.0
    sim.run(15)
    assert sim.phases()[2] == "running"


def test_of_those_that_nobody_knows_anything_of_few_are_started_ahead_of_their_turn():
    """Each of another class, and on each GPU none beside one that may take all of it."""
    sim = HostSim(4, config=HostConfig(preload=2))
    for n in range(1, 13):
        sim.job(n, user=f"user {n}", memory_bytes=0)
    sim.send()
    sim.run(1)
    assert len(sim.processes) == 4
    sim.run(49)
    assert sorted(sim.phases().values()) == ["held"] * 2 + ["running"] * 4 + ["waiting"] * 6
    sim.run(20)
    assert len(sim.processes) == 8, "those two have their first turn, and two more come"


def test_the_newest_wanted_wins():
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    old = Wanted(term=1, seq=0, quantum_s=60.0, turn=Turn(), jobs=())
    sim.tell(WantedChanged(now_s=sim.now_s, wanted=old))
    assert sim.machine.report(job).phase is Phase.STARTING
    newer = Wanted(term=2, seq=0, quantum_s=60.0, turn=Turn(), jobs=())
    sim.tell(WantedChanged(now_s=sim.now_s, wanted=newer))
    assert orders(sim, "kill") == ["kill 1 (no longer wanted here)"]


def test_an_idle_gpu_is_given_at_once():
    sim = HostSim(2, config=HostConfig(preload=0))
    sim.job(1, ways=Ways(work_s=20.0))
    sim.job(2)
    sim.job(3)
    sim.send()
    sim.run(30)
    assert sim.running() == {2, 3}
    at = {words: t for t, words in sim.log}
    assert at["launch 3 on 0"] == pytest.approx(22.05, abs=0.1)


def test_a_paused_job_leaves_and_takes_its_credit_with_it():
    sim = HostSim(1)
    first, second = sim.job(1), sim.job(2)
    sim.send()
    sim.quanta(10)
    sim.change(first, paused=True)
    sim.send()
    sim.quanta(5)
    assert sim.phases()[first] == "held"
    assert sim.running() == {second}
    before = sim.gpu_s(first), sim.gpu_s(second)
    sim.change(first, paused=False)
    sim.send()
    sim.quanta(20)
    assert sim.gpu_s(first) - before[0] == pytest.approx(600, abs=61)
    assert sim.gpu_s(second) - before[1] == pytest.approx(600, abs=61)


def test_a_cancelled_job_is_killed_and_forgotten_once_its_exit_was_seen():
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    sim.run(10)
    sim.change(job, cancelled=True)
    sim.send()
    sim.run(5)
    assert sim.machine.report(job).exit == Exit(signal=15, why="cancelled")
    assert orders(sim, "forget") == []
    del sim.wanted[job]
    sim.send()
    assert orders(sim, "forget") == ["forget 1"]
    assert sim.machine.reports() == ()


def test_a_cancelled_job_that_never_started_ends_without_a_process():
    sim = HostSim(1, config=HostConfig(preload=0))
    sim.job(1)
    job = sim.job(2)
    sim.change(job, cancelled=True)
    sim.send()
    assert sim.machine.report(job).exit == Exit(why="cancelled")
    assert orders(sim, "launch") == ["launch 1 on 0"]


def test_an_older_incarnation_is_killed_before_a_newer_one_starts():
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    sim.run(10)
    sim.change(job, epoch=2)
    sim.send()
    assert orders(sim, "kill") == ["kill 1 (replaced by incarnation 2)"]
    sim.run(10)
    assert [w for _, w in sim.log][-3:] == ["forget 1", "launch 1 on 0", "resume 1"]
    report = sim.machine.report(job)
    assert report.epoch == 2
    assert report.gpu_s < 11


def test_a_bound_job_is_moved_where_gpus_would_idle():
    sim = HostSim(2)
    ways = {"can_checkpoint": True, **QUICK}
    for n in (1, 2, 3, 4):  # 1 and 4 on GPU 0, 2 and 3 on GPU 1
        sim.job(n, ways=Ways(**ways, work_s=150.0 if n in (1, 4) else 1e9))
    sim.send()
    sim.run(1000)
    assert sim.running() == {2, 3}
    assert sim.machine.report(JobId(2)).gpus != sim.machine.report(JobId(3)).gpus
    assert any(w.endswith("(checkpoint)") for w in orders(sim, "suspend"))
    received = sim.gpu_s(JobId(2)), sim.gpu_s(JobId(3))
    sim.run(600)
    assert (sim.gpu_s(JobId(2)) - received[0], sim.gpu_s(JobId(3)) - received[1]) == pytest.approx((600, 600))


def test_uneven_bindings_are_evened_out_by_moves():
    sim = HostSim(4)
    for n in (
        1,
        2,
        3,
    ):  # three 2-GPU jobs on two pairs: bound for good, one would get twice the others' share
        sim.job(n, 2, ways=Ways(can_checkpoint=True, **QUICK))
    sim.send()
    sim.quanta(20)
    before = [sim.gpu_s(JobId(n)) for n in (1, 2, 3)]
    sim.quanta(90)
    gpus = [(sim.gpu_s(JobId(n)) - b) / (90 * 60) for n, b in zip((1, 2, 3), before, strict=True)]
    assert gpus == pytest.approx([4 / 3] * 3, rel=0.1)
    assert len([w for w in orders(sim, "suspend") if "checkpoint" in w]) < 40


def test_a_sick_gpu_gets_nothing_new_and_its_jobs_move_if_they_can():
    sim = HostSim(2)
    for n in (1, 2, 3, 4):
        sim.job(n, ways=Ways(can_checkpoint=True, **QUICK))
    sim.send()
    sim.quanta(4)
    sim.see_gpus(sick=[0])
    sim.quanta(1)
    log_from = len(sim.log)
    sim.quanta(12)
    assert all(words.split()[3] == "1" for _, words in sim.log[log_from:] if words.startswith("launch"))
    assert sim.machine.story[-1].now_s > 0
    sim.quanta(20)
    assert {sim.machine.report(JobId(n)).gpus for n in (1, 2, 3, 4)} <= {("GPU-1",), ("GPU-0",), ()}


def test_who_came_up_on_a_gpu_that_is_out_of_use_since_begins_anew_and_nobody_else_does():
    sim = HostSim(2)
    first, second, ahead = (sim.job(n, ways=Ways(**QUICK)) for n in (1, 2, 3))
    sim.send()
    sim.run(40)
    bound = {n: sim.machine.report(n).gpus for n in (first, second, ahead)}
    assert sim.machine.report(ahead).phase is Phase.HELD, "it waits for its first turn"
    sick = int(bound[ahead][0].removeprefix("GPU-"))
    sim.see_gpus(sick=[sick])
    sim.run(10)
    said = sim.machine.report(ahead)
    assert said.exit is not None
    assert said.exit.why == f"{LOST}: a GPU on which it came up is out of use"
    assert [sim.machine.report(n).exit for n in (first, second)] == [None, None], "they have trained there"


def test_the_controllers_gangs_come_first():
    sim = HostSim(4)
    for n in range(1, 5):
        sim.job(n)
    gang = sim.job(9, 4, user="B")
    sim.turn = Turn(gangs=(gang,))
    sim.send()
    sim.quanta(2)
    assert sim.running() == {gang}
    sim.turn = Turn()
    sim.send()
    sim.run(10)
    assert sim.running() == {1, 2, 3, 4}


def test_gpus_that_a_gang_leaves_are_shared_locally():
    sim = HostSim(4)
    gang = sim.job(9, 2, user="B")
    for n in range(1, 5):
        sim.job(n)
    sim.turn = Turn(gangs=(gang,))
    sim.send()
    sim.quanta(20)
    assert sim.gpu_s(gang) == pytest.approx(2 * 1200, abs=1)
    assert sum(sim.gpu_s(JobId(n)) for n in range(1, 5)) == pytest.approx(2 * 1200, abs=200)


def test_without_local_turns_gpus_idle_until_the_controller_is_silent_for_a_quantum():
    sim = HostSim(1)
    gang = sim.job(1, ways=Ways(work_s=70.0))
    sim.job(2)
    sim.turn = Turn(gangs=(gang,), local=False)
    sim.send()
    sim.run(119)
    assert orders(sim, "launch") == ["launch 1 on 0"]
    sim.quanta(2)
    assert sim.running() == {2}


def test_a_job_over_its_time_limit_is_killed():
    sim = HostSim(1)
    job = sim.job(1, time_limit_s=100.0)
    sim.job(2)
    sim.send()
    sim.quanta(5)
    report = sim.machine.report(job)
    assert report.exit == Exit(signal=15, why="time limit")
    assert report.run_s == pytest.approx(100.2, abs=0.2)


def test_an_unkillable_job_keeps_its_gpus():
    sim = HostSim(2)
    job = sim.job(1, ways=Ways(unkillable=True))
    sim.job(2)
    sim.job(3)
    sim.send()
    sim.run(30)
    sim.change(job, cancelled=True)
    sim.send()
    sim.quanta(10)
    report = sim.machine.report(job)
    assert report.phase is Phase.KILLING
    assert "does not die" in report.note
    assert len(sim.running()) == 1
    assert all(
        sim.machine.report(JobId(n)).gpus != report.gpus for n in (2, 3) if sim.phases()[n] == "running"
    )


def test_checkpoints_are_ordered_on_their_interval():
    sim = HostSim(1)
    job = sim.job(1, checkpoint_interval_s=100.0, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(1000)
    assert 8 <= len(orders(sim, "checkpoint 1")) <= 10
    assert sim.machine.report(job).checkpoint_generation == len(orders(sim, "checkpoint 1")) - 1


def test_an_interval_is_of_turns_and_not_of_time():
    sim = HostSim(1)
    for number in (1, 2):
        sim.job(number, checkpoint_interval_s=100.0, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(2000)
    assert 8 <= len(orders(sim, "checkpoint 1")) <= 10
    assert 8 <= len(orders(sim, "checkpoint 2")) <= 10


def test_a_launch_that_fails_is_the_jobs_end():
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    sim.processes.clear()
    sim.tell(LaunchFailed(now_s=sim.now_s, job=job, epoch=1, why="no such user"))
    assert sim.machine.report(job).exit == Exit(why="launch failed: no such user")


def test_a_launch_that_fails_of_a_job_that_has_a_checkpoint_is_tried_again_and_loses_nothing():
    """Its folder, say, is on a file system that is not mounted here for the moment."""
    job, sim = JobId(1), told_to_leave(Ways(can_checkpoint=True))
    sim.run(5.0)
    saved = sim.machine.report(job)
    assert saved.phase is Phase.CHECKPOINTED
    sim.change(job, leave=False)
    sim.send()
    assert sim.processes.pop((job, 1))
    sim.tell(LaunchFailed(now_s=sim.now_s, job=job, epoch=1, why="cannot enter the working folder /x"))
    report = sim.machine.report(job)
    assert (report.exit, report.step, report.start_fails) == (None, saved.step, 1)
    assert report.note == f"{CANNOT_START}: {NOT_AS_BEFORE}: cannot enter the working folder /x"
    sim.run(30.0)
    report = sim.machine.report(job)
    assert (report.phase, report.note) == (Phase.RUNNING, "")
    assert report.step > saved.step


def test_a_launch_that_fails_after_a_newer_incarnation_was_wanted_makes_room_for_it():
    sim = HostSim(1)
    job = sim.job(1, ways=Ways(unkillable=True))
    sim.send()
    sim.change(job, epoch=2)
    sim.send()
    sim.machine.handle(LaunchFailed(now_s=sim.now_s, job=job, epoch=1, why="no such user"))
    report = sim.machine.report(job)
    assert (report.epoch, report.exit) == (2, None)


def test_a_launch_that_fails_of_a_job_that_is_no_longer_wanted_leaves_nothing_of_it():
    sim = HostSim(1)
    job = sim.job(1, ways=Ways(unkillable=True))
    sim.send()
    del sim.wanted[job]
    sim.send()
    sim.machine.handle(LaunchFailed(now_s=sim.now_s, job=job, epoch=1, why="no such user"))
    assert sim.machine.jobs == set()
    assert sim.machine.heard == (1, 2)


def test_edges_keep_their_cadence():
    sim = HostSim(1, quantum_s=10.0)
    for n in (1, 2):
        sim.job(n, ways=Ways(hold_s=0.05, **QUICK))
    sim.send()
    sim.run(300)
    at = [t for t, words in sim.log if words.startswith("suspend")]
    assert at == pytest.approx([10.0 * k for k in range(1, len(at) + 1)])


def test_the_quantum_follows_the_cost_of_switching():
    sim = HostSim(1, quantum_s=2.0)
    for n in (1, 2):
        sim.job(n, ways=Ways(hold_s=0.2, resume_s=0.2, **QUICK))
    sim.send()
    sim.run(200)
    at = [t for t, words in sim.log if words.startswith("suspend")]
    assert at[-1] - at[-2] == pytest.approx(8.0, rel=0.05)
    sim = HostSim(1, quantum_s=2.0)
    for n in (1, 2):
        sim.job(n, ways=Ways(hold_s=3.0, **QUICK))
    sim.send()
    sim.run(200)
    at = [t for t, words in sim.log if words.startswith("suspend")]
    assert at[-1] - at[-2] == pytest.approx(20.0)


def test_a_setting_out_of_range_names_itself():
    with pytest.raises(ValueError, match="suspend_deadline_s is 0"):
        HostConfig(suspend_deadline_s=0)


def test_the_story_of_a_job_can_be_told():
    sim = HostSim(1)
    job = sim.job(1, ways=Ways(work_s=100.0))
    sim.job(2)
    sim.send()
    sim.quanta(6)
    kinds = [fact.kind for fact in sim.machine.story if fact.job == job]
    assert kinds[:4] == ["arrived", "launched", "ready", "resumed"]
    assert kinds[-1] == "exited"


def test_a_report_is_as_of_the_time_it_is_asked_for():
    sim = HostSim(1)
    job = sim.job(1, 1)
    sim.send()
    assert sim.machine.report(job).gpu_s == 0.0
    assert sim.machine.report(job, sim.now_s + 7).gpu_s == 7.0
    assert sim.machine.reports(sim.now_s + 7)[0].run_s == 7.0


def test_a_job_that_is_being_started_blocks_no_gpu_and_comes_without_claims():
    sim = HostSim(1, config=HostConfig(preload=1))
    quick = [sim.job(n) for n in (1, 2)]
    slow = sim.job(3, ways=Ways(ready_s=550.0), user="other")
    sim.send()
    sim.quanta(9)
    assert sum(sim.gpu_s(job) for job in quick) == pytest.approx(9 * 60, abs=10), (
        "its start cost them nothing"
    )
    assert sim.gpu_s(slow) == 0
    sim.quanta(2)
    before = [sim.gpu_s(job) for job in (*quick, slow)]
    sim.quanta(30)
    gained = [sim.gpu_s(job) - was for job, was in zip((*quick, slow), before, strict=True)]
    assert gained == pytest.approx([600.0] * 3, abs=121), "a third each, and no catching up"


def test_a_job_started_again_on_its_host_goes_on_from_its_newest_checkpoint():
    sim = HostSim(1)
    job = sim.job(1, checkpoint_interval_s=100.0, ways=Ways(can_checkpoint=True, work_s=350.0))
    sim.send()
    sim.run(400)
    assert sim.machine.report(job).phase is Phase.EXITED
    newest = sim.machine.report(job).checkpoint_generation
    assert newest >= 1
    sim.change(job, epoch=2)
    sim.send()
    sim.run(5)
    assert f"launch 1 on 0 from generation {newest}" in orders(sim, "launch")


def test_who_computes_on_a_gpu_that_is_not_its_own_is_ended_and_others_work_on() -> None:
    sim = HostSim(2)
    one, other = sim.job(1), sim.job(2)
    sim.send()
    sim.run(10.0)
    sim.tell(JobTrespassed(now_s=sim.now_s, job=one, epoch=1, gpu=sim.machine.report(one).gpus[0]))
    assert sim.machine.report(one).exit is None, "it is its own"
    sim.tell(JobTrespassed(now_s=sim.now_s, job=one, epoch=1, gpu=sim.machine.report(other).gpus[0]))
    sim.run(10.0)
    ended = sim.machine.report(one).exit
    assert ended is not None
    assert ended.why == TRESPASSED
    assert sim.running() == {other}
