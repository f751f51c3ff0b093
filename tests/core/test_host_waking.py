"""A job that the freezer holds amid a step is to leave its host."""

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.host import HostConfig
from hs_core.names import JobId
from hs_core.reports import Phase
from hs_core.wanted import Turn

ONE, TWO = JobId(1), JobId(2)


def frozen(jobs: int, gpus: int = 1) -> HostSim:
    """Job 1 has come to no step edge when its turn was over, on a GPU that others have turns on, too."""
    sim = HostSim(gpus)
    sim.job(1, ways=Ways(can_checkpoint=True, hold_s=45.0))
    for number in range(2, jobs + 1):
        sim.job(number, ways=Ways(can_checkpoint=True))
    sim.send()
    while sim.machine.report(ONE).phase is not Phase.FROZEN:
        sim.run(1.0)
    return sim


def leaves_within(sim: HostSim, seconds: float) -> bool:
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(seconds)
    return sim.machine.report(ONE).phase is Phase.CHECKPOINTED


def test_a_frozen_job_that_is_to_leave_is_woken_to_save_at_the_next_edge_however_many_wait_for_a_turn() -> (
    None
):
    sim = frozen(8)
    ran_s = sim.machine.report(ONE).run_s
    assert leaves_within(sim, sim.quantum_s)
    assert [words for _, words in sim.log if words.split()[1] == "1"][-2:] == [
        "resume 1",
        "suspend 1 (checkpoint)",
    ]
    assert sim.machine.report(ONE).run_s == pytest.approx(ran_s + 1.0, abs=0.1), "it is charged for that"


def test_who_is_let_go_to_save_costs_a_round_of_others_no_more_than_that_takes() -> None:
    sim = frozen(3)
    sim.turn = Turn(gangs=(TWO,), local=False)
    before_s = sim.machine.report(TWO).run_s
    assert leaves_within(sim, 5.0)
    sim.run(2 * sim.quantum_s - 5.0)
    assert sim.machine.report(TWO).run_s - before_s >= 2 * sim.quantum_s - 3.0


def test_where_quanta_are_long_as_switching_is_slow_it_is_woken_after_one_as_is_wanted() -> None:
    sim = HostSim(1)
    for number in (1, 2, 3):
        sim.job(number, ways=Ways(can_checkpoint=True, hold_s=45.0))
    sim.send()
    sim.run(3600.0)
    while sim.machine.report(ONE).phase is not Phase.FROZEN:
        sim.run(1.0)
    assert sim.machine.saved()["quantum_s"] == 10 * sim.quantum_s
    assert leaves_within(sim, sim.quantum_s + HostConfig().suspend_deadline_s + 2.0)


def test_on_idle_gpus_it_is_woken_at_once() -> None:
    sim = frozen(2)
    sim.change(TWO, cancelled=True)
    sim.send()
    sim.turn = Turn(gangs=(JobId(9),), local=False)
    sim.send()
    sim.run(1.0)
    assert leaves_within(sim, 2.0)


@pytest.mark.parametrize("stays", [False, True], ids=["sick", "taken"])
def test_one_that_cannot_be_woken_says_so_at_once_and_once_a_quantum(stays: bool) -> None:
    sim = frozen(2)
    if stays:
        sim.ways[TWO].deaf, sim.ways[TWO].freezes = True, False
        sim.quanta(3)
        assert sim.machine.report(ONE).phase is Phase.FROZEN
        why = "job 2 does not leave GPU 0"
    else:
        sim.see_gpus(sick=[0])
        why = "GPU 0 is out of use"
    fails = sim.machine.report(ONE).checkpoint_fails
    assert not leaves_within(sim, 1.0)
    report = sim.machine.report(ONE)
    assert report.checkpoint_fails == fails + 1
    assert report.note.endswith(f"checkpoint failed: it is frozen amid a step, and {why}")
    sim.quanta(2)
    assert sim.machine.report(ONE).checkpoint_fails <= fails + 3


def test_one_that_was_frozen_on_a_gpu_that_is_drained_has_another_turn_there_and_leaves_it() -> None:
    sim = frozen(5, gpus=2)
    (gpu,) = sim.machine.report(ONE).gpus
    sim.drained = frozenset({gpu})
    sim.send()
    sim.quanta(20)
    report = sim.machine.report(ONE)
    assert gpu not in report.gpus
    assert report.run_s > 120.0


def test_a_part_of_a_gang_that_was_frozen_on_a_gpu_that_is_drained_leaves_it_after_its_next_turn() -> None:
    sim = HostSim(2)
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(can_checkpoint=True, hold_s=45.0))
    for number in (2, 3, 4):
        sim.job(number, ways=Ways(can_checkpoint=True))
    sim.start_clock([Turn(gangs=(ONE,)), Turn(), Turn()])
    while sim.machine.report(ONE).phase is not Phase.FROZEN:
        sim.run(1.0)
    (gpu,) = sim.machine.report(ONE).gpus
    sim.drained = frozenset({gpu})
    sim.send()
    sim.quanta(9)
    report = sim.machine.report(ONE)
    assert gpu not in report.gpus
    assert report.run_s > 120.0
