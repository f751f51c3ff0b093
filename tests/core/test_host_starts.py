"""What a host starts and when: ahead of turns, not on drained GPUs, and with patience where it cannot."""

from itertools import pairwise

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.events.host import JobExited
from hs_core.host import HostConfig
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import LOST, Exit, Phase
from hs_core.wanted import Turn

ONE, TWO = JobId(1), JobId(2)


# --- gangs with a rank that has no steps


def test_who_waits_at_its_first_step_for_a_rank_that_never_gets_there_is_let_go_in_the_end() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(ready_s=1e9))
    sim.send()
    sim.run(HostConfig().ready_deadline_s - 10.0)
    assert sim.ordered("resume") == []
    sim.run(20.0)
    assert sim.ordered("resume") == ["resume 1"]
    sim.job(2, user="B")
    sim.send()
    sim.quanta(4)
    assert any("freeze" in what for what in sim.ordered("suspend")), "no step is one of all its ranks"


# --- what never hooks


def test_only_the_first_job_of_a_class_trains_ahead_of_its_turn_for_want_of_a_hook() -> None:
    sim = HostSim(1)
    sim.job(1, user="A")
    sim.job(2, user="B", ways=Ways(hooks=False))
    sim.send()
    sim.run(20.0)
    sim.job(3, user="B", ways=Ways(hooks=False))
    sim.send()
    sim.run(11.0)
    frozen = [when for when, what in sim.log if what.startswith("suspend") and "freeze" in what]
    assert frozen == [30.0, 30.0], "the third did not get its own thirty seconds"
    sim.job(4, user="B", ways=Ways(hooks=False))
    sim.send()
    sim.run(20.0)
    assert sim.phases()[4] == "waiting", "from then on they are started in their turn"
    sim.quanta(20)
    assert sim.gpu_s(JobId(4)) > 0


@pytest.mark.parametrize("mode", [SuspendMode.AUTO, SuspendMode.HOOK])
@pytest.mark.parametrize("cancelled", [False, True])
def test_who_ends_before_it_is_known_to_have_no_hook_pays_for_it_and_the_next_of_its_class_waits_for_its_turn(
    *, cancelled: bool, mode: SuspendMode
) -> None:
    sim = HostSim(1)
    sim.job(1, user="A")
    sim.send()
    for n in (2, 3):
        sim.job(n, user="B", mode=mode, ways=Ways(hooks=False, work_s=1e9 if cancelled else 18.0))
        sim.send()
        sim.run(20.0)
        if cancelled:
            sim.change(JobId(n), cancelled=True)
            sim.send()
            sim.run(1.0)
    assert (sim.phases()[2], sim.gpu_s(TWO)) == ("exited", pytest.approx(20.0, abs=0.5))
    assert sim.phases()[3] == ("exited" if cancelled else "waiting")
    assert not [what for _, what in sim.log if what.startswith("launch 3")]


def test_a_class_that_hooks_and_never_stands_at_an_edge_is_not_started_ahead_either() -> None:
    sim = HostSim(1)
    sim.job(1, user="A")
    sim.job(2, user="B", ways=Ways(ready_s=1e9))
    sim.send()
    sim.run(50.0)
    sim.machine.handle(JobExited(now_s=sim.now_s, job=TWO, epoch=1, exit=Exit()))
    assert sim.gpu_s(TWO) == pytest.approx(50.0, abs=0.5)
    sim.job(3, user="B")
    sim.send()
    sim.run(5.0)
    assert sim.phases()[3] == "waiting"
    sim.quanta(4)
    sim.job(4, user="B")
    sim.send()
    sim.run(5.0)
    assert sim.phases()[4] == "held", "the third stood at its first, in its turn"


def one_starts_up() -> HostSim:
    """Job 2 does, ahead of its turn, beside job 1."""
    sim = HostSim(1)
    sim.job(1, user="A")
    sim.job(2, user="B", ways=Ways(hook_s=20.0, ready_s=21.0))
    sim.send()
    sim.run(10.0)
    return sim


def next_is_started_ahead(sim: HostSim) -> bool:
    """Job 3, of the class of job 2."""
    sim.job(3, user="B")
    sim.send()
    sim.run(5.0)
    return sim.phases()[3] == "held"


def test_who_is_lost_while_it_starts_up_says_nothing_about_its_class() -> None:
    sim = one_starts_up()
    sim.tell(JobExited(now_s=sim.now_s, job=TWO, epoch=1, exit=Exit(why=f"{LOST}: it was restarted")))
    assert next_is_started_ahead(sim)
    assert sim.gpu_s(TWO) == 0.0


def test_who_is_sent_elsewhere_while_it_starts_up_says_nothing_about_its_class() -> None:
    sim = one_starts_up()
    del sim.wanted[TWO]
    sim.send()
    sim.run(2.0)
    assert next_is_started_ahead(sim)


def test_a_class_that_hooks_after_all_is_started_ahead_again() -> None:
    sim = HostSim(1)
    sim.job(1, user="A")
    sim.job(2, user="B", ways=Ways(hooks=False))
    sim.send()
    sim.run(31.0)
    sim.job(3, user="B")
    sim.send()
    sim.quanta(10)
    sim.job(4, user="B")
    sim.send()
    sim.run(5.0)
    assert sim.phases()[4] == "held"


def test_a_gang_that_trained_before_it_was_known_to_hook_is_held_and_leaves_like_any_other() -> None:
    sim = HostSim(1)
    late = Ways(hook_s=100.0, ready_s=100.0, one_by_one=True, can_checkpoint=True)
    sim.job(1, ways=late)
    sim.job(2)
    sim.send()
    sim.quanta(4)
    assert sim.ordered("suspend 1") == ["suspend 1 (freeze)", "suspend 1 (hold)"]
    assert sim.machine.report(ONE).note == ""
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    assert sim.machine.report(ONE).phase is Phase.CHECKPOINTED


def test_a_gang_that_may_have_no_hook_has_its_turn_on_idle_gpus_from_the_next_edge() -> None:
    sim = HostSim(2, quantum_s=20.0)
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(hooks=False))
    sim.start_clock([Turn(gangs=(ONE,))])
    sim.run(25.0)
    assert sim.gpu_s(ONE) == pytest.approx(5.0, abs=0.1), "nobody waits thirty seconds for its hook"
    sim.run(50.0)
    assert sim.gpu_s(ONE) == pytest.approx(75.0, abs=0.1), (
        "once that is known, all since its launch is charged"
    )
    assert not [what for _, what in sim.log if what.startswith("suspend")]


def test_a_gang_that_may_have_no_hook_leaves_its_gpus_to_others_as_long_as_it_comes_up() -> None:
    sim = HostSim(1, quantum_s=20.0)
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(hooks=False))
    sim.job(2, ways=Ways(hook_s=0.1, ready_s=0.2, hold_s=0.1))
    sim.start_clock([Turn(gangs=(ONE,))])
    sim.run(25.0)
    assert sim.gpu_s(ONE) == 0.0
    assert sim.running() == {TWO}


def test_a_gang_whose_turn_began_before_its_step_edge_gives_it_up_at_the_edge_to_who_has_come_meanwhile() -> (
    None
):
    sim = HostSim(1, quantum_s=20.0)
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(hook_s=25.0, ready_s=300.0))
    sim.start_clock([Turn(gangs=(ONE,))])
    sim.run(30.0)
    assert sim.gpu_s(ONE) == pytest.approx(10.0, abs=0.1)
    sim.job(2, ways=Ways(hook_s=0.1, ready_s=0.2, hold_s=0.1))
    sim.send()
    sim.run(50.0)
    assert sim.running() == {TWO}
    assert sim.gpu_s(ONE) == pytest.approx(20.0, abs=0.1), "it is known to wait at its first step edge"


# --- drained GPUs


def test_nothing_is_started_on_a_drained_gpu_and_what_can_move_leaves_it() -> None:
    sim = HostSim(2)
    sim.job(1, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(30.0)
    sim.drained = frozenset({sim.gpus[0].id})
    sim.job(2)
    sim.send()
    sim.quanta(6)
    assert sim.ordered("launch") == ["launch 1 on 0", "launch 2 on 1", "launch 1 on 1 from generation 0"]


def test_what_cannot_move_ends_its_work_on_a_drained_gpu() -> None:
    sim = HostSim(2)
    sim.job(1)
    sim.send()
    sim.run(30.0)
    sim.drained = frozenset({sim.gpus[0].id})
    sim.send()
    sim.quanta(6)
    assert sim.running() == {ONE}
    assert sim.gpu_s(ONE) == pytest.approx(390.0, abs=1.0)


@pytest.mark.parametrize("how", ["drained", "sick"])
def test_who_goes_on_on_a_gpu_that_is_out_of_use_takes_nobodys_turn_on_another(how: str) -> None:
    """The controller counts the GPUs that are left: for one of two jobs."""
    sim = HostSim(2)
    sim.job(1)
    sim.job(2)
    sim.turn = Turn(gangs=(ONE, TWO), local=False)
    sim.send()
    sim.run(30.0)
    (on,) = (gpu.index for gpu in sim.gpus if gpu.id in sim.machine.report(ONE).gpus)
    if how == "drained":
        sim.drained = frozenset({sim.gpus[on].id})
    else:
        sim.see_gpus([on])
    sim.turn = Turn(gangs=(ONE,), local=False)
    sim.send()
    sim.quanta(6)
    assert sim.running() == {ONE, TWO}
    assert sim.gpu_s(TWO) == pytest.approx(390.0, abs=1.0)
    assert sim.machine.report(TWO).suspends == 0


# --- another home before the first start --------------------------------------------------------------------------------


def test_a_job_that_another_host_may_still_start_is_not_started() -> None:
    sim = HostSim(1)
    job = sim.job(1, hold=True)
    sim.send()
    sim.quanta(2)
    assert sim.phases() == {1: "waiting"}
    assert "waits until the server" in sim.machine.report(job).note
    sim.change(job, hold=False)
    sim.send()
    sim.run(10.0)
    assert sim.phases() == {1: "running"}


# --- a host that has no room to start anybody


def test_a_job_that_its_host_cannot_start_waits_there_and_is_tried_again_with_patience() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(start_fails=5))
    sim.send()
    sim.run(1.0)
    report = sim.machine.report(ONE)
    assert (report.phase, report.note) == (Phase.WAITING, "cannot be started on its server: disk full")
    assert (report.exit, report.gpus, report.gpu_s < 1.0) == (None, (), True)
    sim.run(300.0)
    asked = [at_s for at_s, words in sim.log if words.startswith("launch 1")]
    assert [round(b - a) for a, b in pairwise(asked)] == [5, 10, 20, 40, 60]
    report = sim.machine.report(ONE)
    assert (report.phase, report.note) == (Phase.RUNNING, "")


@pytest.mark.parametrize("mode", [SuspendMode.NONE, SuspendMode.TRANSPARENT])
def test_what_is_said_of_one_that_cannot_be_started_begins_with_that_however_it_is_suspended(
    mode: SuspendMode,
) -> None:
    sim = HostSim(1, config=HostConfig(can_freeze=False))
    sim.job(1, mode=mode, ways=Ways(start_fails=5))
    sim.send()
    sim.run(1.0)
    report = sim.machine.report(ONE)
    assert (report.note.startswith("cannot be started on its server: disk full"), report.start_fails) == (
        True,
        1,
    )


def test_a_part_of_a_gang_that_its_host_cannot_start_is_lost_so_that_the_others_do_not_wait_for_it() -> None:
    sim = HostSim(1)
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(start_fails=1))
    sim.send()
    sim.run(1.0)
    report = sim.machine.report(ONE)
    assert report.exit is not None
    assert report.exit.why == "lost with its host: cannot be started on its server: disk full"
    assert report.start_fails == 1


def test_one_that_goes_on_from_a_checkpoint_has_it_still_when_it_could_not_be_started() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 4), ways=Ways(start_fails=1, fetch_s=0.0))
    sim.send()
    sim.run(2.0)
    report = sim.machine.report(ONE)
    assert (report.phase, report.checkpoint_step, report.checkpoint_generation) == (
        Phase.CHECKPOINTED,
        700,
        4,
    )
    sim.run(60.0)
    assert sim.ordered("launch")[-1] == "launch 1 on 0 from generation 4"
    assert sim.running() == {ONE}


def test_while_one_cannot_be_started_others_have_their_turns() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(start_fails=99))
    sim.job(2)
    sim.send()
    sim.run(200.0)
    assert sim.trained(TWO) > 150.0


def test_what_is_no_longer_wanted_ends_where_it_could_not_be_started() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(start_fails=99))
    sim.send()
    sim.run(1.0)
    sim.change(ONE, cancelled=True)
    sim.send()
    sim.run(1.0)
    report = sim.machine.report(ONE)
    assert (report.phase, report.exit is not None) == (Phase.EXITED, True)
