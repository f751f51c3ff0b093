"""Nobody is heard for a while: what a host ends by itself, and what it goes on with."""

from hostsim import HostSim

from hs_core.events import ControllerHeard, Woke
from hs_core.model import OnPartition
from hs_core.names import JobId
from hs_core.reports import LOST

ONE, TWO = JobId(1), JobId(2)


def fenced() -> HostSim:
    sim = HostSim(2)
    sim.fence_after_s = 100.0
    sim.job(1, on_partition=OnPartition.FENCE)
    sim.job(2, on_partition=OnPartition.CONTINUE)
    sim.job(3, on_partition=OnPartition.FENCE, paused=True)
    sim.send()
    return sim


def test_after_a_silence_jobs_that_ask_for_it_are_ended_as_lost_and_the_others_go_on() -> None:
    sim = fenced()
    sim.run(99.0)
    assert sim.running() == {ONE, TWO}
    sim.run(2.0)
    for job in (1, 3):
        exit_ = sim.machine.report(JobId(job)).exit
        assert exit_ is not None
        assert exit_.why == "lost with its host: fenced: no word from the controller for 100 s"
        assert exit_.why.startswith(LOST)
    assert sim.ordered("kill") == ["kill 1 (fenced: no word from the controller for 100 s)"]
    assert sim.running() == {TWO}


def test_every_sign_of_life_puts_the_end_off() -> None:
    sim = fenced()
    for _ in range(10):
        sim.run(90.0)
        sim.hear()
    assert sim.running() == {ONE, TWO}


def test_a_word_that_was_read_late_puts_the_end_off_from_when_it_was_said() -> None:
    sim = fenced()
    sim.run(90.0)
    sim.tell(ControllerHeard(now_s=sim.now_s, late_s=50.0))
    sim.run(45.0)
    assert sim.running() == {ONE, TWO}
    sim.tell(ControllerHeard(now_s=sim.now_s, late_s=120.0))
    sim.run(10.0)
    assert sim.running() == {TWO}


def test_an_agent_that_restarts_remembers_since_when_nobody_was_heard() -> None:
    sim = fenced()
    sim.run(60.0)
    sim.kill_agent()
    sim.run(60.0)
    sim.start_agent()
    sim.run(1.0)
    assert sim.running() == {TWO}


def test_a_host_that_rebooted_starts_nothing_that_wants_to_be_fenced_before_it_hears_the_controller() -> None:
    sim = fenced()
    sim.change(ONE, paused=True)
    sim.send()
    sim.run(5.0)
    saved = sim.machine.saved()
    machine = type(sim.machine)(sim.gpus, sim.config, now_s=3.0, saved=saved, rebooted=True)
    machine.handle(ControllerHeard(now_s=3.5))
    assert machine.report(JobId(3)).exit is None
    machine = type(sim.machine)(sim.gpus, sim.config, now_s=3.0, saved=saved, rebooted=True)
    machine.handle(Woke(now_s=4.0))
    assert machine.report(JobId(3)).exit is not None
