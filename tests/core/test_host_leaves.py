"""A job leaves for another host: it writes a checkpoint, and its process goes."""

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim, told_to_leave

from hs_core.forms import Shape
from hs_core.host import HostConfig
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import Phase

ONE, TWO = JobId(1), JobId(2)


@pytest.mark.parametrize("held", [False, True])
def test_a_job_that_is_to_leave_writes_a_checkpoint_at_once(held: bool) -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True))
    sim.job(2, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(30.0)
    leaver = TWO if held else ONE
    sim.change(leaver, leave=True)
    sim.send()
    sim.run(5.0)
    report = sim.machine.report(leaver)
    assert (report.phase, report.checkpoint_generation) == (Phase.CHECKPOINTED, 0)
    assert report.checkpoint_step == report.step
    assert sim.ordered("suspend") == [f"suspend {leaver} (checkpoint)"]
    sim.quanta(10)
    assert not [w for w in sim.ordered(f"launch {leaver}") if "generation" in w]


def test_one_that_is_wanted_elsewhere_before_its_process_has_left_is_told_to_end_as_one_that_leaves() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True))
    while sim.machine.report(ONE).phase is not Phase.CHECKPOINTED:
        sim.run(0.01)
    del sim.wanted[ONE]
    sim.send()
    assert sim.ordered("kill") == ["kill 1 (no longer wanted here, as it leaves)"]
    sim.run(1.0)
    assert sim.phases() == {}


def test_a_job_that_starts_leaves_when_it_stands_at_its_first_step_edge() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True, ready_s=20.0))
    sim.send()
    sim.run(5.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(30.0)
    assert sim.phases() == {1: "checkpointed"}


def test_a_swapped_job_leaves_too() -> None:
    sim = HostSim(1, memory_bytes=16 * GIB, config=HostConfig(host_memory_budget_bytes=64 * GIB))
    for number in (1, 2):
        sim.job(number, memory_bytes=10 * GIB, ways=Ways(can_swap=True, can_checkpoint=True))
    sim.send()
    sim.run(90.0)
    assert sim.phases()[ONE] == "swapped"
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    assert sim.phases()[ONE] == "checkpointed"


def test_leave_taken_back_starts_it_again_from_its_own_checkpoint() -> None:
    sim = HostSim(1)
    sim.job(1, leave=False, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(10.0)
    sim.change(ONE, leave=False)
    sim.send()
    sim.run(10.0)
    assert sim.ordered("launch") == ["launch 1 on 0", "launch 1 on 0 from generation 0"]
    assert sim.running() == {ONE}


def test_a_job_without_a_process_is_not_started_while_it_is_to_leave() -> None:
    sim = HostSim(1)
    sim.job(1, leave=True)
    sim.send()
    sim.quanta(5)
    assert sim.phases() == {1: "waiting"}
    sim.change(ONE, leave=False)
    sim.send()
    sim.run(3.0)
    assert sim.running() == {ONE}


@pytest.mark.parametrize(
    ("ways", "mode", "note"),
    [
        (
            Ways(),
            SuspendMode.AUTO,
            "cannot be moved: it gave no state that a checkpoint can hold (hs_job.state)",
        ),
        (Ways(), SuspendMode.TRANSPARENT, "cannot be moved: it has no step hook"),
        (Ways(hooks=False), SuspendMode.AUTO, "cannot be moved: it has no step hook"),
    ],
)
def test_what_cannot_write_a_checkpoint_says_so_and_goes_on(ways: Ways, mode: SuspendMode, note: str) -> None:
    sim = told_to_leave(ways, mode=mode)
    sim.quanta(5)
    assert note in sim.machine.report(ONE).note
    assert sim.running() == {ONE}


def test_a_checkpoint_that_fails_is_tried_again_each_quantum_while_it_is_to_leave() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True, disk_full=True))
    sim.quanta(4)
    assert 3 <= len(sim.ordered("suspend 1 (checkpoint)")) <= 5
    assert "disk full" in sim.machine.report(ONE).note
    sim.ways[ONE].disk_full = False
    sim.quanta(2)
    assert sim.phases() == {1: "checkpointed"}


def test_one_whose_checkpoint_failed_before_it_was_to_leave_is_asked_again_soon() -> None:
    sim = HostSim(2)
    sim.job(1, ways=Ways(can_checkpoint=True, disk_full=True))
    sim.job(2)
    sim.bind_to_one_gpu()
    sim.quanta(6)  # the idle GPU is for it, and it fails again and again
    asked = len(sim.ordered("suspend 1 (checkpoint)"))
    assert asked >= 1
    sim.ways[ONE].disk_full = False
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(1.2 * sim.quantum_s)
    assert len(sim.ordered("suspend 1 (checkpoint)")) == asked + 1
    assert sim.phases()[ONE] == "checkpointed"


def test_one_that_is_to_leave_and_does_not_stop_is_asked_again_when_it_has_stopped() -> None:
    """Its checkpoint failed, and it does not stop for another's turn either: the host waits for it, and goes on with the others."""
    sim = HostSim(2, config=HostConfig(can_freeze=False))
    ways = Ways(hook_s=0.1, ready_s=1.0, can_checkpoint=True, disk_full=True, checkpoint_s=0.5, hold_s=45.0)
    sim.job(1, ways=ways)
    sim.send()
    sim.run(10.0)
    sim.job(2, 2, ways=Ways(ready_s=1.0))
    sim.change(ONE, leave=True)
    sim.send()
    while "does not stop" not in sim.machine.report(ONE).note:
        sim.run(1.0)
        assert sim.now_s < 2000.0
    ways.disk_full = False
    sim.quanta(2)
    assert sim.phases()[ONE] == "checkpointed"
    sim.quanta(2)
    assert sim.trained(JobId(2)) > 0


def test_a_part_leaves_like_any_other_job() -> None:
    sim = HostSim(1)
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(10.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    assert sim.phases() == {1: "checkpointed"}


def test_a_job_of_another_shape_goes_on_from_its_checkpoint_on_so_many_gpus_and_is_charged_for_them() -> None:
    sim = HostSim(4)
    sim.job(1, gpus=1, ways=Ways(can_checkpoint=True))
    sim.job(2, gpus=3)
    sim.send()
    sim.run(30.0)
    sim.change(TWO, cancelled=True)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(10.0)
    step = sim.machine.report(ONE).step
    sim.change(ONE, leave=False, epoch=2, shape=Shape(gpus=4, per_gpu=8))
    sim.send()
    sim.run(70.0)
    report = sim.machine.report(ONE)
    assert sim.ordered("launch 1") == ["launch 1 on 0", "launch 1 on 0,1,2,3 from generation 0"]
    assert (len(report.gpus), report.step > step > 0) == (4, True)
    assert report.gpu_s == pytest.approx(4 * report.run_s)
    assert report.run_s > 60.0
