"""Nobody is heard for a while: what a host ends by itself, and what it goes on with."""

from typing import Any

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.events.host import CastOut, ControllerHeard, Launch, Woke
from hs_core.host import HostConfig, HostMachine
from hs_core.model import OnPartition
from hs_core.names import JobId
from hs_core.reports import LOST, Phase

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


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_host_with_the_memory_of_another_starts_nothing_of_it_before_the_controller_says_so(
    elsewhere: bool,
) -> None:
    sim = HostSim(1)
    sim.see_gpus(sick=[0])
    sim.job(1, on_partition=OnPartition.CONTINUE)
    sim.send()
    sim.run(5.0)
    saved = sim.machine.saved()
    machine = HostMachine(sim.gpus, sim.config, now_s=3.0, saved=saved, rebooted=True, elsewhere=elsewhere)
    begun = machine.handle(Woke(now_s=4.0)).commands
    assert any(isinstance(command, Launch) for command in begun) == (not elsewhere)
    sim.machine = machine
    sim.now_s = 4.0
    sim.send()
    assert machine.report(ONE).phase is Phase.STARTING


def patient(lease_s: float, ways: Ways | None = None, **more: Any) -> HostSim:
    """Ends have half a minute here; what is fenced after 100 s is started elsewhere `lease_s` later."""
    sim = HostSim(1, config=HostConfig(kill_grace_s=30.0))
    sim.fence_after_s, sim.lease_s = 100.0, lease_s
    sim.job(1, on_partition=OnPartition.FENCE, ways=ways, **more)
    sim.send()
    return sim


@pytest.mark.parametrize(("lease_s", "ended_s"), [(20.0, 118.0), (3.0, 101.0), (60.0, 130.0), (0.0, 130.0)])
def test_what_is_fenced_is_gone_before_the_controller_starts_it_elsewhere(
    lease_s: float, ended_s: float
) -> None:
    """Lease 0: no controller has said."""
    sim = patient(lease_s)
    sim.run(101.0)
    assert sim.killed_by_s == pytest.approx([ended_s])


def test_an_agent_that_restarts_remembers_how_long_what_is_fenced_may_take() -> None:
    sim = patient(20.0)
    sim.run(60.0)
    sim.kill_agent()
    sim.run(45.0)
    sim.start_agent()
    sim.run(0.5)
    assert sim.killed_by_s == pytest.approx([118.0])  # it came late, and has so much less for it
    sim = patient(20.0)
    sim.run(60.0)
    sim.kill_agent()
    sim.run(90.0)
    sim.start_agent()
    sim.run(0.5)
    assert sim.killed_by_s == pytest.approx([150.0])  # at once


def test_an_end_that_was_ordered_before_is_hastened_when_the_job_is_to_be_fenced() -> None:
    sim = patient(10.0, Ways(die_s=1000.0), time_limit_s=90.0)
    sim.run(150.0)
    assert sim.ordered("kill")[0] == "kill 1 (time limit)"
    assert sim.killed_by_s[:2] == pytest.approx([120.0, 108.0])


def test_one_that_is_cancelled_while_the_controller_is_there_has_all_of_its_grace() -> None:
    sim = patient(10.0)
    sim.run(10.0)
    sim.change(ONE, cancelled=True)
    sim.send()
    assert sim.killed_by_s == pytest.approx([40.0])


def test_a_host_that_was_removed_from_the_cluster_ends_all_of_its_jobs_and_starts_none_again() -> None:
    sim = fenced()
    sim.run(5.0)
    assert sim.running() == {ONE, TWO}
    for _ in range(3):  # it is told each time that it comes
        sim.tell(CastOut(now_s=sim.now_s))
        sim.run(5.0)
    assert sim.running() == set()
    assert sorted(sim.ordered("kill")) == [f"kill {job} (no longer wanted here)" for job in (1, 2)]
    assert not list(sim.machine.reports())
    sim.run(200.0)
    assert len(sim.ordered("launch")) == 2
    told = [fact.text for fact in sim.machine.story if fact.kind == "cast-out"]
    assert told == ["removed from the cluster: what runs here is ended"]


def test_a_host_that_was_removed_and_has_joined_anew_runs_what_it_is_given() -> None:
    sim = fenced()
    sim.run(5.0)
    sim.tell(CastOut(now_s=sim.now_s))
    sim.run(5.0)
    for job in (ONE, TWO):
        sim.change(job, epoch=2)
    sim.send()
    sim.run(5.0)
    assert sim.running() == {ONE, TWO}
