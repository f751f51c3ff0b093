"""What a host says to a controller that it meets of incarnations that are no longer there."""

from dataclasses import replace

from fakejob import Ways
from hostsim import HostSim

from hs_core.events.host import ExitFound, Forget
from hs_core.host import HostMachine
from hs_core.host.last_words import KEPT_S, MOST, LastWords
from hs_core.names import JobId
from hs_core.reports import TOLD_TO_END, Exit, JobReport, Phase
from hs_core.wanted import Lend


def said(sim: HostSim) -> dict[tuple[int, int], JobReport]:
    return {(report.job, report.epoch): report for report in sim.machine.last_words(sim.now_s)}


def no_longer(sim: HostSim, job: JobId) -> None:
    del sim.wanted[job]
    sim.send()
    sim.run(1.0)


def test_who_is_no_longer_wanted_has_last_words_of_what_it_received_and_saved() -> None:
    sim = HostSim(1)
    job = sim.job(1, epoch=3)
    sim.send()
    sim.run(30.0)
    before = sim.machine.report(job)
    no_longer(sim, job)
    assert sim.machine.reports() == ()
    last = said(sim)[1, 3]
    assert last.phase is Phase.EXITED
    assert last.gpu_s >= before.gpu_s > 0
    assert last.exit is not None
    assert last.exit.why == "no longer wanted here"


def test_one_that_never_was_anything_has_none() -> None:
    sim = HostSim(1)
    runs, waits = sim.job(1), sim.job(2)
    sim.send()
    no_longer(sim, waits)
    no_longer(sim, runs)
    sim.quanta(1)
    assert said(sim).keys() == {(1, 1)}


def test_the_incarnation_before_has_its_own_beside_what_its_heir_says() -> None:
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    sim.run(30.0)
    sim.change(job, epoch=4)
    sim.send()
    sim.run(30.0)
    sim.change(job, epoch=5)
    sim.send()
    sim.run(30.0)
    assert list(said(sim)) == [(1, 1), (1, 4)], "the older one first"
    [now] = sim.machine.reports()
    assert (now.epoch, now.phase) == (5, Phase.RUNNING)


def test_they_outlive_the_agent_and_are_forgotten_after_a_while() -> None:
    sim = HostSim(1)
    job = sim.job(1)
    sim.send()
    sim.run(30.0)
    no_longer(sim, job)
    sim.kill_agent()
    sim.run(60.0)
    sim.start_agent()
    words = said(sim)
    assert words.keys() == {(1, 1)}
    rebooted = HostMachine(sim.gpus, sim.config, now_s=5.0, saved=sim.machine.saved(), rebooted=True)
    assert rebooted.last_words() == tuple(words.values())
    assert rebooted.last_words(5.0 + KEPT_S + 1.0) == ()
    sim.run(KEPT_S)
    assert said(sim) == {}


def test_of_checkpoints_that_were_removed_nothing_is_said_any_more() -> None:
    sim = HostSim(2)
    jobs = [sim.job(number, ways=Ways(can_checkpoint=True)) for number in (1, 2, 3)]
    named = sim.job(4, ways=Ways(can_checkpoint=True), checkpoint_dir="/mine")
    sim.send()
    sim.quanta(4)
    for job in (*jobs, named):
        sim.change(job, leave=True)
    sim.send()
    sim.run(10.0)
    assert all(report.checkpoint_generation >= 0 for report in sim.machine.reports())
    lent, comes_back, gone = jobs
    sim.lends = (Lend(job=lent, epoch=1, generation=0, grant="g"),)
    sim.change(comes_back, epoch=2, leave=False)
    for job in (lent, gone, named):
        del sim.wanted[job]
    sim.send()
    assert {
        job for (job, epoch), last in said(sim).items() if epoch == 1 and last.checkpoint_generation >= 0
    } == {
        lent,
        comes_back,
        named,
    }
    sim.lends = ()
    no_longer(sim, comes_back)
    assert {job for (job, _), last in said(sim).items() if last.checkpoint_generation >= 0} == {named}
    assert all(last.checkpoint_step < 0 for (job, _), last in said(sim).items() if job != named)


def test_only_the_newest_are_kept() -> None:
    sim, words = HostSim(1), LastWords()
    wanted = sim.wanted[sim.job(1)]
    for number in range(MOST + 10):
        words.keep(wanted, JobReport(job=JobId(number), epoch=0, phase=Phase.EXITED, run_s=1.0), 0.0)
    words.keep(wanted, JobReport(job=JobId(20), epoch=0, phase=Phase.EXITED, run_s=2.0), 1.0)
    kept = words.said(1.0)
    assert [report.job for report in kept] == [*range(10, 20), *range(21, MOST + 10), 20]
    assert kept[-1].run_s == 2.0
    again = LastWords.load(words.dump())
    assert again.said(1.0) == kept
    later = LastWords.load(words.dump(), at_s=500.0)
    assert later.said(500.0 + KEPT_S) == kept


def test_an_exit_that_was_found_is_said_and_its_folder_let_go_unless_that_incarnation_is_known() -> None:
    sim = HostSim(1)
    here = sim.job(1)
    sim.send()
    sim.run(5.0)
    lost = replace(sim.wanted[here], job=JobId(2))
    for wanted in (lost, sim.wanted[here]):
        event = ExitFound(
            now_s=sim.now_s, job=wanted.job, epoch=wanted.epoch, wanted=wanted, exit=Exit(code=3)
        )
        commands = sim.machine.handle(event).commands
        assert [c for c in commands if isinstance(c, Forget)] == (
            [Forget(job=lost.job, epoch=lost.epoch)] if wanted is lost else []
        )
    assert {key: last.exit for key, last in said(sim).items()} == {(2, 1): Exit(code=3)}
    assert [report.exit for report in sim.machine.reports()] == [None]


def test_one_that_was_ended_before_it_ever_had_a_turn_has_none() -> None:
    sim, words = HostSim(1), LastWords()
    wanted = sim.wanted[sim.job(1)]
    for exit_ in (None, Exit(why=TOLD_TO_END)):
        words.keep(wanted, JobReport(job=JobId(1), epoch=1, phase=Phase.EXITED, exit=exit_), 0.0)
    assert words.said(0.0) == ()


def test_that_a_job_ended_well_is_not_pushed_out_by_others_nor_anything_by_earlier_incarnations() -> None:
    sim = HostSim(1)
    sim.job(1)
    [wanted] = sim.wanted.values()
    words = LastWords()

    def keep(job: int, epoch: int, *, code: int = 1) -> None:
        ended = Exit(code=code)
        words.keep(
            wanted, JobReport(job=JobId(job), epoch=epoch, phase=Phase.EXITED, run_s=1.0, exit=ended), 0.0
        )

    keep(1, 1, code=0)
    keep(2, 1)
    for epoch in range(MOST + 5):
        keep(3, epoch)
    assert {(1, 1), (2, 1), (3, MOST + 4)} <= {(report.job, report.epoch) for report in words.said(0.0)}
    for number in range(10, 10 + MOST):
        keep(number, 1)
    kept = [report.job for report in words.said(0.0)]
    assert kept == [1, *range(11, 10 + MOST)]
