"""Turns in which the GPUs that processes are bound to stand in the way: by number, as the controller counts, there is room for all."""

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.host import HostConfig
from hs_core.names import JobId
from hs_core.reports import Tier
from hs_core.wanted import Turn

QUICK = {"hook_s": 0.1, "ready_s": 0.2, "hold_s": 0.1}
GANG, ONE, TWO = JobId(1), JobId(2), JobId(3)
ITS, OTHERS = Turn(gangs=(GANG,)), Turn()


def bound(sim: HostSim) -> dict[int, set[int]]:
    return {report.job: {sim._index(gpu) for gpu in report.gpus} for report in sim.machine.reports()}


def clash(**gang: bool) -> HostSim:
    """By number there is room for the part and for job 2, which cannot be moved; but both are bound to GPU 2."""
    sim = HostSim(4)
    sim.job(3, 2, tickets=10.0, ways=Ways(**QUICK, work_s=30.0))
    sim.job(2, ways=Ways(**QUICK))
    sim.send()
    sim.run(5.0)
    sim.job(1, 2, nodes=2, rendezvous="a:1", ways=Ways(**QUICK, **gang))
    sim.start_clock([ITS])
    sim.run(25.0)
    assert bound(sim) == {3: {0, 1}, 2: {2}, 1: {2, 3}}
    return sim


def test_a_part_moves_to_idle_gpus_for_one_that_cannot_be_moved() -> None:
    sim = clash(can_checkpoint=True)
    sim.quanta(4)
    assert sim.running() == {GANG, ONE}
    before = sim.gpu_s(GANG), sim.gpu_s(ONE)
    sim.quanta(10)
    assert (sim.gpu_s(GANG) - before[0], sim.gpu_s(ONE) - before[1]) == pytest.approx((1200.0, 600.0))
    assert [what for _, what in sim.log].count("suspend 1 (checkpoint)") == 1


@pytest.mark.parametrize("start_s", [0.2, 65.0], ids=["ahead-of-its-turn", "longer-than-a-quantum"])
def test_a_part_moves_to_gpus_that_are_its_own_in_part_for_one_that_cannot_be_moved(start_s: float) -> None:
    """Started anew wherever it fits best it would be bound to GPUs 0 and 1 again, so that job 2 would never have its turn beside an idle GPU."""
    sim = HostSim(4)
    sim.job(2, ways=Ways(**QUICK))
    sim.job(4, nodes=2, rendezvous="a:1", ways=Ways(**QUICK, can_checkpoint=True))
    sim.job(5, ways=Ways(**QUICK, work_s=30.0))
    sim.send()
    sim.run(5.0)
    ways = Ways(**{**QUICK, "ready_s": start_s}, can_checkpoint=True)
    sim.job(1, 2, nodes=2, rendezvous="a:2", ways=ways)
    sim.start_clock([Turn(gangs=(GANG, JobId(4)))])
    sim.run(0.1)
    assert bound(sim) == {2: {0}, 4: {2}, 5: {1}, 1: {0, 1}}
    sim.run(25.0)
    sim.quanta(6)
    assert sim.running() == {GANG, ONE, JobId(4)}
    assert bound(sim) == {2: {0}, 4: {2}, 5: set(), 1: {1, 3}}
    assert [what for _, what in sim.log].count("suspend 1 (checkpoint)") == 1


def test_a_part_that_cannot_be_moved_either_takes_turns_with_it() -> None:
    sim = clash()
    sim.quanta(40)
    before = sim.gpu_s(GANG), sim.gpu_s(ONE)
    sim.quanta(40)
    gang, one = sim.gpu_s(GANG) - before[0], sim.gpu_s(ONE) - before[1]
    assert one == pytest.approx(600.0, abs=10.0)
    assert gang / 2 + one == pytest.approx(40 * 60.0, rel=0.01)


def test_gangs_of_one_turn_are_bound_to_different_gpus_whatever_lies_on_these() -> None:
    sim = HostSim(4)
    sim.job(1, 2, nodes=2, rendezvous="a:1", ways=Ways(hook_s=0.1, ready_s=30.0))
    sim.job(2, 2, tickets=50.0, ways=Ways(**QUICK))
    sim.send()
    sim.run(10.0)
    assert bound(sim) == {1: {2, 3}, 2: {0, 1}}
    assert sim.phases()[1] == "starting"
    sim.job(3, ways=Ways(**QUICK))
    sim.start_clock([Turn(gangs=(GANG, TWO), local=False)])
    sim.run(30.0)
    assert sim.running() == {GANG, TWO}


def test_one_that_starts_ahead_is_bound_apart_from_those_that_the_controller_alone_lets_run() -> None:
    sim = HostSim(4)
    sim.job(2, ways=Ways(**QUICK))
    sim.start_clock([Turn(gangs=(ONE,), local=False)])
    sim.run(10.0)
    assert sim.running() == {ONE}
    sim.job(1, 3, nodes=2, rendezvous="a:1", ways=Ways(**QUICK))
    sim.send()
    sim.run(10.0)
    assert bound(sim) == {1: {1, 2, 3}, 2: {0}}
    sim.start_clock([Turn(gangs=(GANG, ONE), local=False)])
    sim.run(60.0)
    assert sim.running() == {GANG, ONE}


def test_one_that_starts_ahead_is_bound_apart_from_those_that_could_not_be_moved_out_of_its_way() -> None:
    sim = HostSim(4)
    sim.job(2, ways=Ways(**QUICK))
    sim.start_clock([Turn(gangs=(ONE,), local=False)])
    sim.run(10.0)
    sim.start_clock([Turn(local=False)])
    sim.run(60.0)
    assert sim.phases()[ONE] == "held"
    sim.job(1, 3, nodes=2, rendezvous="a:1", ways=Ways(**QUICK))
    sim.send()
    sim.run(10.0)
    assert bound(sim) == {1: {1, 2, 3}, 2: {0}}


def test_one_that_could_not_write_a_checkpoint_is_moved_for_another_once_it_has_written_one() -> None:
    sim = HostSim(2)
    sim.job(2, checkpoint_interval_s=100.0, ways=Ways(can_checkpoint=True, disk_full=True))
    sim.job(3)
    sim.bind_to_one_gpu(quanta=3)
    sim.quanta(18)
    asked = len(sim.ordered("suspend 2 (checkpoint)"))
    sim.quanta(2)
    assert len(sim.running()) == 1
    sim.ways[ONE].disk_full = False
    sim.quanta(5)
    assert len(sim.ordered("suspend 2 (checkpoint)")) == asked + 1
    assert sim.running() == {ONE, TWO}


def test_a_gpu_is_not_idle_for_long_because_a_disk_was_full_when_one_was_to_move_there() -> None:
    sim = HostSim(2)
    for number in (ONE, TWO):
        sim.job(number, ways=Ways(can_checkpoint=True, disk_full=True))
    sim.bind_to_one_gpu()
    sim.run(1.5 * sim.quantum_s)
    asked = {order for order in sim.ordered("suspend") if order.endswith("(checkpoint)")}
    assert asked == {"suspend 2 (checkpoint)", "suspend 3 (checkpoint)"}  # one to move there, then the other
    assert len(sim.running()) == 1
    for ways in sim.ways.values():
        ways.disk_full = False
    sim.quanta(3)
    assert sim.running() == {ONE, TWO}


def test_one_whose_checkpoints_fail_again_and_again_is_asked_less_and_less_often() -> None:
    """While it writes it has no turn, and the disk is others' as well."""
    sim = HostSim(2)
    sim.job(2, ways=Ways(can_checkpoint=True, disk_full=True))
    sim.job(3)
    sim.bind_to_one_gpu()
    sim.quanta(60)
    assert 6 <= len(sim.ordered("suspend 2 (checkpoint)")) <= 10
    assert min(sim.gpu_s(ONE), sim.gpu_s(TWO)) > 10 * sim.quantum_s


# --- turns without the host's own stride, and bindings that the controller does not know


def crowded() -> tuple[HostSim, tuple[JobId, ...]]:
    """Four jobs that only hold, bound two by two to the host's two GPUs. And which two are bound to the first."""
    sim = HostSim(2)
    for number in (1, 2, 3, 4):
        sim.job(number, ways=Ways(**QUICK))
    sim.send()
    sim.quanta(4)
    bound = [report.job for report in sim.machine.reports() if report.gpus == (sim.gpus[0].id,)]
    assert len(bound) == 2
    return sim, tuple(bound)


def test_a_gpu_that_a_gang_of_the_turn_cannot_have_goes_to_one_that_is_bound_to_it() -> None:
    sim, pair = crowded()
    sim.turn = Turn(gangs=pair, local=False)
    sim.send()
    sim.run(1.5 * sim.quantum_s)
    assert len(sim.running()) == 2
    assert len(sim.running() & set(pair)) == 1
    (waits,) = set(pair) - sim.running()
    assert "bound to GPU 0, where another of this turn runs" in sim.machine.report(waits).note


def test_who_comes_waits_for_gpus_that_are_being_left_and_is_in_nobodys_way() -> None:
    """Two jobs leave for another server; one that takes two GPUs comes in their place, to run beside the two that stay."""
    sim = HostSim(4)
    ways = Ways(can_checkpoint=True)
    stay, leave = ([sim.job(number, ways=ways) for number in pair] for pair in ((2, 3), (4, 5)))
    sim.turn = Turn(gangs=(*stay, *leave), local=False)
    sim.send()
    sim.quanta(2)
    assert sim.running() == {*stay, *leave}
    for job in leave:
        sim.change(job, leave=True)
    comes = sim.job(1, 2, user="B")
    sim.turn = Turn(gangs=(comes, *stay), local=False)
    sim.send()
    sim.quanta(1)
    assert sim.running() == {*stay, comes}
    assert not [order for job in stay for order in sim.ordered(f"suspend {job}")], "they ran on"


def test_two_of_a_turn_that_are_bound_to_one_gpu_both_have_turns() -> None:
    sim, pair = crowded()
    sim.turn = Turn(gangs=pair, local=False)
    sim.send()
    before = [sim.gpu_s(job) for job in pair]
    sim.quanta(16)
    had = [sim.gpu_s(job) - was for job, was in zip(pair, before, strict=True)]
    assert min(had) >= 3 * sim.quantum_s
    assert sum(had) == pytest.approx(16 * sim.quantum_s, rel=0.02)


def test_what_a_turn_leaves_idle_by_itself_stays_idle() -> None:
    sim, (one, _) = crowded()
    sim.turn = Turn(gangs=(one,), local=False)
    sim.send()
    sim.quanta(2)
    assert sim.running() == {one}


def test_gpus_of_a_part_that_another_server_had_leave_go_to_who_stands_there_until_the_next_edge() -> None:
    """It goes on from its checkpoint no earlier: perhaps all of its gang is to move."""
    sim = HostSim(2)
    sim.job(1, 2, nodes=2, rendezvous="a:1", ways=Ways(**QUICK, can_checkpoint=True))
    for number in (2, 3):
        sim.job(number, ways=Ways(**QUICK))
    sim.start_clock([Turn(gangs=(ONE, TWO), local=False), Turn(gangs=(GANG,), local=False)])
    sim.run(65.0)
    assert sim.running() == {GANG}
    sim.processes[GANG, 1].hold(Tier.CHECKPOINT)
    sim.run(1.0)
    assert sim.running() == {ONE, TWO}
    sim.quanta(2)
    assert sim.running() == {GANG}


def test_a_gang_on_its_way_to_an_idle_gpu_finds_it_idle_when_it_comes() -> None:
    """Three of a turn are bound to one GPU, and only job 5 can move. One of the two GPUs that they leave idle is for it."""
    sim = HostSim(3)
    for number in range(1, 10):
        sim.job(number, ways=Ways(**QUICK, checkpoint_s=10.0, can_checkpoint=number == 5))
    sim.send()
    sim.quanta(9)
    trio = tuple(report.job for report in sim.machine.reports() if report.gpus == (sim.gpus[0].id,))
    assert len(trio) == 3
    assert JobId(5) in trio
    sim.turn = Turn(gangs=trio, local=False)
    sim.send()
    sim.run(sim.quantum_s + 25.0)
    assert JobId(5) in sim.running()
    assert len(sim.running()) == 3


# --- of a gang over several servers all parts are started anew where one of them moves


SLOW_S = 28.0


def part_on_the_gpu_of(sim: HostSim, other: JobId) -> None:
    """Its gang takes 14 quanta to start, and stands at its first step edge."""
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(hook_s=0.1, ready_s=SLOW_S, can_checkpoint=True))
    sim.send()
    sim.run(SLOW_S + 1.0)
    assert sim.phases()[GANG] == "held"
    assert sim.machine.report(GANG).gpus == sim.machine.report(other).gpus


def test_a_job_that_is_started_on_the_gpu_of_a_part_does_not_keep_it_from_its_turn() -> None:
    sim = HostSim(1, quantum_s=2.0, config=HostConfig(ahead_patience_s=0.1))
    sim.job(2, ways=Ways(**QUICK, work_s=SLOW_S + 2.0))
    sim.send()
    part_on_the_gpu_of(sim, ONE)
    sim.run(5.0)
    assert sim.phases()[ONE] == "exited"
    sim.job(3, ways=Ways(hook_s=0.1, ready_s=SLOW_S, can_checkpoint=True))
    sim.send()
    assert sim.phases()[TWO] == "starting"
    sim.start_clock([ITS, OTHERS])
    sim.run(SLOW_S)
    assert sim.trained(GANG) == pytest.approx(SLOW_S / 2, abs=1.5)
    sim.run(10 * 2.0)
    assert sim.trained(TWO) == pytest.approx(10.0, abs=1.5), "its start took no longer"


def test_a_part_does_not_leave_its_gpu_to_one_that_could_move_to_an_idle_one_itself() -> None:
    sim = HostSim(2, quantum_s=2.0)
    sim.job(2, ways=Ways(hook_s=0.1, ready_s=20.0, can_checkpoint=True))
    sim.job(3, tickets=2.0, ways=Ways(**QUICK))
    sim.send()
    sim.run(21.0)
    part_on_the_gpu_of(sim, ONE)
    sim.start_clock([ITS])
    sim.run(5.0)
    sim.change(TWO, cancelled=True)
    sim.send()
    sim.run(60.0)
    assert sim.ordered("launch 1") == ["launch 1 on 0"]
    assert sim.running() == {GANG, ONE}


def test_a_part_waits_for_its_gpu_until_that_has_cost_as_much_as_a_start() -> None:
    """Two gangs are bound to one GPU, which only some turns tell of both."""
    sim = HostSim(2, quantum_s=2.0)
    other = sim.job(4, nodes=2, rendezvous="a:2", ways=Ways(hook_s=0.1, ready_s=SLOW_S, can_checkpoint=True))
    sim.job(2, tickets=2.0, ways=Ways(**QUICK, work_s=SLOW_S + 5.0))
    sim.send()
    sim.run(1.0)
    part_on_the_gpu_of(sim, other)
    sim.run(10.0)
    sim.start_clock([Turn(gangs=(GANG,)), Turn(gangs=(other,)), Turn(gangs=(GANG, other))])
    sim.run(13 * 6.0)
    assert len(sim.ordered("launch")) == 3
    sim.run(6 * 6.0 + SLOW_S)
    assert len(sim.ordered("launch")) == 4
    sim.start_clock([Turn(gangs=(GANG, other))])
    sim.run(3.0)
    assert sim.running() == {GANG, other}


def test_where_all_gpus_carry_alike_a_job_is_bound_beside_its_users_own() -> None:
    """They divide one share: as it turns out that theirs is less, or as one of them ends, GPUs carry alike still. None can be moved."""
    sim = HostSim(4)
    for number, user in ((1, "ann"), (2, "bob"), (3, "ann")):
        sim.job(number, 2, user=user, tickets=4 / 3, ways=Ways(**QUICK))
        sim.send()
        sim.run(0.5)
    assert bound(sim) == {1: {0, 1}, 2: {2, 3}, 3: {0, 1}}
    for number, tickets in ((1, 1.0), (2, 2.0), (3, 1.0)):
        sim.change(JobId(number), tickets=tickets)
    sim.send()
    sim.quanta(40)
    assert [sim.gpu_s(JobId(number)) / (2 * sim.gpu_s(JobId(2))) for number in (1, 2, 3)] == pytest.approx(
        [0.25, 0.5, 0.25], abs=0.02
    )
