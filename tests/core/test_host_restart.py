"""What the agent's mind makes of a restart, and of answers that come late, twice or for others."""

import json
from dataclasses import replace

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.errors import BrokenError
from hs_core.events.host import JobExited, JobHeld, JobProgressed, JobReady, JobWentOn
from hs_core.forms import Form, Shape, Spread
from hs_core.host import HostMachine, board
from hs_core.host.memory import PlainJobs
from hs_core.host.plain import plain, revive
from hs_core.names import JobId
from hs_core.reports import Exit, Phase, Tier
from hs_core.strategy import Strategy

QUICK = {"hook_s": 0.01, "ready_s": 0.02}


def orders(sim: HostSim, word: str) -> list[str]:
    return [words for _, words in sim.log if words.startswith(word)]


def test_a_restarted_agent_goes_on_as_if_nothing_had_happened():
    reference, restarted = HostSim(2), HostSim(2)
    for sim in (reference, restarted):
        for n, gang in enumerate((1, 1, 2, 1), start=1):
            sim.job(n, gang, tickets=1 / n)
        sim.send()
        sim.quanta(3)
        sim.run(7)
    for _ in range(5):
        restarted.kill_agent()
        restarted.start_agent()
        for sim in (reference, restarted):
            sim.quanta(2)
            sim.run(3)
    assert [r.gpu_s for r in restarted.machine.reports()] == [r.gpu_s for r in reference.machine.reports()]
    after, expected = restarted.machine.saved(), reference.machine.saved()
    for memory in (after, expected):
        for job in memory["jobs"]:
            del job["step"]  # ranks that dialled again said theirs
    assert after == expected


def test_running_jobs_are_charged_for_the_time_without_an_agent():
    sim = HostSim(1)
    first, second = sim.job(1), sim.job(2)
    sim.send()
    sim.run(30)
    sim.kill_agent()
    sim.run(600)
    sim.start_agent()
    assert sim.gpu_s(first) == pytest.approx(630, abs=1)
    sim.quanta(10)
    assert sim.gpu_s(second) == pytest.approx(
        600, abs=70
    )  # the first had ten quanta: now it waits for its due


def test_an_exit_without_an_agent_is_told_with_its_code():
    sim = HostSim(1)
    job = sim.job(1, ways=Ways(work_s=40.0))
    sim.send()
    sim.run(10)
    sim.kill_agent()
    sim.run(100)
    sim.start_agent()
    assert sim.machine.report(job).exit == Exit()


def test_orders_without_an_answer_are_given_again_after_a_restart():
    sim = HostSim(1)
    sim.job(1, ways=Ways(lose={"resume"}))
    sim.send()
    sim.run(5)
    assert sim.trained(JobId(1)) == 0
    sim.kill_agent()
    sim.start_agent()
    sim.run(1)
    assert orders(sim, "resume").count("resume 1") >= 2
    assert sim.trained(JobId(1)) > 0


def restarted_without_the_gpu_of(sim: HostSim, job: JobId) -> None:
    gone = sim.machine.report(job).gpus
    sim.kill_agent()
    sim.gpus = tuple(gpu for gpu in sim.gpus if gpu.id not in gone)
    sim.start_agent()


@pytest.mark.parametrize(("gpus", "due"), [(2, 0.5), (3, 1.0)])
def test_what_ran_on_a_gpu_that_is_gone_after_a_restart_moves_to_those_that_are_left(gpus: int, due: float):
    sim = HostSim(gpus)
    first, second = (sim.job(n, ways=Ways(can_checkpoint=True)) for n in (1, 2))
    sim.send()
    sim.quanta(1.5)
    restarted_without_the_gpu_of(sim, second)
    sim.quanta(3.5)
    before_s = sim.trained(first), sim.trained(second)
    sim.quanta(20)
    assert set(sim.machine.report(second).gpus) <= {gpu.id for gpu in sim.gpus}
    had_s = sim.trained(first) - before_s[0], sim.trained(second) - before_s[1]
    assert had_s == pytest.approx((20 * 60 * due, 20 * 60 * due), abs=90)


def test_what_ran_on_a_gpu_that_is_gone_after_a_restart_and_writes_no_checkpoints_waits_for_it():
    sim = HostSim(3)
    sim.job(1)
    bound = sim.job(2, ways=Ways(can_checkpoint=False))
    sim.send()
    sim.quanta(1.5)
    there = sim.gpus
    restarted_without_the_gpu_of(sim, bound)
    sim.quanta(3)
    assert sim.machine.report(bound).phase is Phase.HELD
    sim.kill_agent()
    sim.gpus = there
    sim.start_agent()
    sim.quanta(2)
    assert sim.machine.report(bound).phase is Phase.RUNNING


@pytest.mark.parametrize(("lost", "killed_s"), [("went-on", 0.5), ("held", 60.5)])
def test_the_time_without_an_agent_is_not_taken_for_that_of_a_switch(lost: str, killed_s: float) -> None:
    """It would make the host's quantum ten times as long."""
    sim = HostSim(1)
    for n in (1, 2):
        sim.job(n, ways=Ways(hook_s=0.01, ready_s=0.02, lose={lost} if n == 1 else set()))
    sim.send()
    sim.run(killed_s)
    sim.kill_agent()
    sim.run(40.0)
    sim.start_agent()
    sim.run(200.0)
    report = sim.machine.report(JobId(1))
    assert max(report.suspend_s, report.resume_s) < 2.0
    saved = sim.machine.saved()
    assert saved["mean_suspend_s"] + saved["mean_resume_s"] < 1.0
    assert saved["quantum_s"] == sim.quantum_s


@pytest.mark.parametrize("jobs", [2, 8])
@pytest.mark.parametrize("at_s", [60.05, 120.05])
def test_the_time_that_an_agent_slept_is_not_taken_for_that_of_a_switch(jobs: int, at_s: float) -> None:
    """Whatever stops at that moment, and also where nothing is known of this host yet."""
    sim = HostSim(jobs // 2)
    for n in range(1, jobs + 1):
        sim.job(n, ways=Ways(hook_s=0.01, ready_s=0.02))
    sim.send()
    sim.run(at_s)
    sim.pause_agent(25.0)
    sim.run(200.0)
    suspends = [sim.machine.report(JobId(n)).suspend_s for n in range(1, jobs + 1)]
    assert max(suspends) > 20.0, "the GPUs stood for that long"
    assert sim.machine.saved()["quantum_s"] == sim.quantum_s


def test_where_switching_is_slow_quanta_are_longer() -> None:
    """Twenty times as long as it takes, as soon as it was so twice."""
    sim = HostSim(1)
    for n in (1, 2):
        sim.job(n, ways=Ways(hook_s=0.01, ready_s=0.02, hold_s=5.0, resume_s=1.0))
    sim.send()
    sim.run(60.0 + 3 * 120.0)
    assert sim.machine.saved()["quantum_s"] == pytest.approx(20 * 6.0, rel=0.02)


@pytest.mark.parametrize("now_s", [5.0, 5000.0])
def test_a_reboot_charges_until_the_last_word(now_s: float):
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    sim.run(30)
    sim.tell(JobWentOn(now_s=sim.now_s, job=job, epoch=1, step=1))
    saved = json.loads(json.dumps(sim.machine.saved()))
    machine = HostMachine(sim.gpus, sim.config, now_s=now_s, saved=saved, rebooted=True)
    machine.handle(JobExited(now_s=now_s + 1.0, job=job, epoch=1, exit=Exit(why="lost with its host")))
    assert machine.report(job).gpu_s == pytest.approx(31, abs=1e-6)


@pytest.mark.parametrize(("step", "counted"), [(90, 90), (3, 50), (-1, 50)])
def test_a_job_that_ended_without_an_agent_is_charged_until_then_and_its_steps_never_go_back(
    step: int, counted: int
):
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    sim.run(30)
    at_s = sim.now_s
    sim.tell(JobProgressed(now_s=at_s, job=job, epoch=1, step=50, steps_per_s=1.0, device_memory_bytes=0))
    spent_s = sim.machine.report(job, at_s).gpu_s
    saved = json.loads(json.dumps(sim.machine.saved()))
    machine = HostMachine(sim.gpus, sim.config, now_s=at_s + 500.0, saved=saved)
    machine.handle(
        JobExited(now_s=at_s + 500.0, job=job, epoch=1, exit=Exit(code=3), ended_s=at_s + 70.0, step=step)
    )
    report = machine.report(job, at_s + 600.0)
    assert (report.step, report.exit) == (counted, Exit(code=3))
    assert report.gpu_s == pytest.approx(spent_s + 70.0)
    assert report.run_s == pytest.approx(spent_s + 70.0)
    assert report.since_s == at_s + 70.0


def test_a_saved_state_of_another_version_is_refused():
    sim = HostSim(1)
    saved = sim.machine.saved()
    with pytest.raises(BrokenError, match=f"version {saved['version'] + 1};"):
        HostMachine(sim.gpus, sim.config, now_s=0.0, saved={**saved, "version": saved["version"] + 1})


def test_events_of_other_incarnations_change_nothing():
    sim = HostSim(1)
    job = sim.job(1, epoch=2)
    sim.send()
    sim.run(10)
    before = sim.machine.report(job)
    sim.tell(JobExited(now_s=sim.now_s, job=job, epoch=1, exit=Exit(code=3)))
    sim.tell(JobExited(now_s=sim.now_s, job=JobId(77), epoch=1, exit=Exit(code=3)))
    assert sim.machine.report(job) == before


def test_repeated_answers_change_nothing():
    sim = HostSim(1)
    job = sim.job(1)
    sim.job(2)
    sim.send()
    sim.run(70)
    assert sim.phases()[1] == "held"
    before = sim.machine.report(job)
    sim.tell(JobHeld(now_s=sim.now_s, job=job, epoch=1, step=before.step, tier=Tier.HOLD))
    assert sim.machine.report(job) == before
    sim.tell(JobWentOn(now_s=sim.now_s, job=JobId(2), epoch=1, step=0))
    assert sim.machine.report(JobId(2)).resumes == 1


def test_an_answer_from_before_the_newest_order_was_heard_changes_nothing():
    """A host that was paused reads that its job stood, some turns ago, after it has let it go again."""
    sim = HostSim(1)
    job = sim.job(1)
    sim.job(2)
    sim.send()
    sim.run(150.0)
    assert sim.phases() == {1: "running", 2: "held"}
    late = JobHeld(now_s=sim.now_s, job=job, epoch=1, step=1, tier=Tier.HOLD, order=2)
    sim.tell(late)
    assert sim.phases() == {1: "running", 2: "held"}
    assert [what for _, what in sim.log].count("resume 1") == 2
    sim.tell(replace(late, order=sim.processes[job, 1].heard))
    assert [what for _, what in sim.log].count("resume 1") == 3, "it stands in its turn, and is let go again"


def test_one_that_stood_before_it_was_let_go_and_told_to_stop_again_has_not_stopped_yet():
    """An agent of a gang that comes back after some turns reads that it stood then: it goes on before it stops."""
    sim = HostSim(1)
    job = sim.job(1, ways=Ways(hold_s=5.0))
    sim.job(2)
    sim.send()
    while sim.phases().get(1) != "suspending":
        sim.run(1.0)
    newest = sim.processes[job, 1].heard
    stood = JobReady(now_s=sim.now_s, job=job, epoch=1, step=1, can_checkpoint=True, order=newest - 1)
    sim.tell(stood)
    assert sim.phases()[1] == "suspending"
    assert orders(sim, "resume 2") == []
    sim.tell(replace(stood, order=newest))
    assert sim.phases()[1] == "held"


@pytest.mark.parametrize(
    "form",
    [
        Shape(gpus=4, per_gpu=8, parts=2, nodes=2),
        Spread(nodes=2),
        Spread(nodes=1, strategy=Strategy(tensor=2)),
        Strategy(data=2, pipeline=2, layers=(3, 5)),
    ],
)
def test_a_restarted_agent_knows_in_which_form_its_jobs_run(form: Form) -> None:
    assert revive(Form | None, json.loads(json.dumps(plain(form)))) == form


def test_what_an_agent_remembers_of_classes_does_not_grow_with_all_that_there_ever_were(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(board, "MOST_CLASSES", 8)
    sim = HostSim(12, ram_bytes=64 << 30)
    for n in range(1, 13):
        sim.job(n, user=f"class {n}", ways=Ways(**QUICK))
    sim.send()
    sim.run(10)
    saved = sim.machine.saved()
    for remembered in (saved["stopping_classes"], list(saved["class_bytes"])):
        assert remembered == [f"class {n}" for n in range(5, 13)]
    sim.kill_agent()
    sim.start_agent()
    assert sim.machine.saved()["stopping_classes"] == saved["stopping_classes"]


def test_a_report_says_since_when_a_job_stands_as_it_does() -> None:
    sim = HostSim(1)
    for number in (1, 2):
        sim.job(number)
    since: dict[tuple[JobId, Phase], float] = {}

    def look(sim: HostSim) -> None:
        for report in sim.machine.reports():
            if last.get(report.job) is not report.phase:
                last[report.job], since[report.job, report.phase] = report.phase, sim.now_s
            assert report.since_s == since[report.job, report.phase]

    last: dict[JobId, Phase] = {}
    sim.watch = look
    sim.send()
    sim.quanta(5)
    assert {phase for _, phase in since} >= {Phase.RUNNING, Phase.SUSPENDING, Phase.HELD}
    sim.kill_agent()
    sim.run(30.0)
    sim.start_agent()
    sim.quanta(3)


def test_of_a_job_that_stands_as_it_stood_what_is_saved_is_the_same_object_and_of_others_what_they_are_now() -> (
    None
):
    """All of thousands are saved as any is started."""
    sim = HostSim(1)
    sim.job(1)
    waits, changes = sim.job(2, tickets=0.01), sim.job(3, tickets=0.01)
    sim.send()
    sim.run(5)
    before = {job["wanted"]["job"]: job for job in sim.machine.saved()["jobs"]}
    sim.change(changes, paused=True)
    sim.send()
    sim.run(20)
    after = {job["wanted"]["job"]: job for job in sim.machine.saved()["jobs"]}
    assert after[waits] is before[waits]
    assert after[changes]["wanted"]["paused"]
    assert not before[changes]["wanted"]["paused"]
    sim.machine._plain = PlainJobs()
    assert {job["wanted"]["job"]: job for job in sim.machine.saved()["jobs"]} == after
