"""Who would be in another's way in the next turn, by the GPUs that its process is bound to, is moved before that begins."""

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.names import JobId
from hs_core.reports import Tier
from hs_core.wanted import Turn

QUICK = {"hook_s": 0.1, "hold_s": 0.1, "can_checkpoint": True}
A, B, C, D = map(JobId, range(1, 5))


def part(sim: HostSim, job: int, gpus: int, *, ready_s: float = 20.0, memory_bytes: int = 1) -> None:
    ways = Ways(**QUICK, ready_s=ready_s)
    sim.job(job, gpus, nodes=2, rendezvous=f"a:{job}", memory_bytes=memory_bytes, ways=ways)


def bound(sim: HostSim, job: JobId) -> set[int]:
    return {sim._index(gpu) for gpu in sim.machine.report(job).gpus}


def trained(sim: HostSim, quanta: int, *jobs: JobId) -> list[float]:
    """GPU-quanta in which they did steps."""

    def steps(job: JobId) -> int:
        return (
            sum(process.step for process in sim.processes.values() if process.job == job)
            * sim.wanted[job].gpus
        )

    before = [steps(job) for job in jobs]
    sim.quanta(quanta)
    per_quantum = sim.quantum_s / Ways().step_s
    return [(steps(job) - had) / per_quantum for job, had in zip(jobs, before, strict=True)]


def stopped_to_move(sim: HostSim) -> int:
    return sum("(checkpoint)" in what for _, what in sim.log)


def moves_said(sim: HostSim) -> list[str]:
    return [fact.text for fact in sim.machine.story if fact.kind == "moving"]


def test_three_halves_of_a_server_have_two_thirds_of_its_quanta_each_and_no_gpu_idles() -> None:
    """Each two of them run together in one quantum of three: no binding is right for all."""
    sim = HostSim(4)
    for job in (A, B, C):
        part(sim, job, 2)
    sim.start_clock([Turn(gangs=(A, B)), Turn(gangs=(A, C)), Turn(gangs=(B, C))])
    sim.quanta(6)
    assert trained(sim, 30, A, B, C) == pytest.approx([40.0, 40.0, 40.0], rel=0.01)


def test_a_gang_leaves_gpus_to_one_that_shares_out_what_it_leaves() -> None:
    sim = HostSim(4)
    part(sim, A, 2)
    part(sim, B, 2)
    sim.job(C, 2, ways=Ways(**QUICK, ready_s=20.0))
    sim.start_clock([Turn(gangs=(A,)), Turn(gangs=(B,))])
    sim.quanta(6)
    assert trained(sim, 10, A, B, C) == pytest.approx([10.0, 10.0, 20.0], rel=0.01)
    # All are bound for good then.
    moves = stopped_to_move(sim)
    assert bound(sim, C).isdisjoint(bound(sim, A) | bound(sim, B))
    sim.quanta(10)
    assert stopped_to_move(sim) == moves


def clash(*, ready_s: float = 20.0, memory_bytes: int = 1) -> HostSim:
    """Both were started on a server on which only two GPUs were well. Nobody has run yet."""
    sim = HostSim(4)
    sim.see_gpus(sick=(2, 3))
    part(sim, A, 2, ready_s=ready_s, memory_bytes=memory_bytes)
    part(sim, B, 2, ready_s=ready_s, memory_bytes=memory_bytes)
    sim.start_clock([Turn()])
    sim.quanta(2)
    sim.see_gpus()
    assert bound(sim, A) == bound(sim, B) == {0, 1}
    return sim


def test_it_comes_up_beside_those_that_run_and_is_there_when_its_turn_begins() -> None:
    sim = clash()
    sim.job(C, 2, ways=Ways(**QUICK, ready_s=0.2))
    sim.send()
    sim.quanta(1)
    assert sim.running() == {C}
    sim.pattern = (Turn(), Turn(gangs=(A, B)))
    sim.quanta(2)
    assert trained(sim, 10, A, B, C) == pytest.approx([10.0, 10.0, 10.0], rel=0.01)
    assert moves_said(sim) == ["moved to other GPUs through a checkpoint, ahead of its next turn"]


def test_who_would_not_be_back_in_time_is_moved_at_the_edge() -> None:
    sim = clash(ready_s=70.0)
    sim.quanta(2)
    sim.pattern = (Turn(), Turn(gangs=(A, B)))
    sim.quanta(3)
    assert moves_said(sim) == ["moved to other GPUs through a checkpoint"]


def test_nobody_is_moved_where_no_gpu_would_idle() -> None:
    sim = clash()
    sim.job(C, 2, ways=Ways(**QUICK, ready_s=0.2))
    sim.quanta(2)
    sim.pattern = (Turn(gangs=(A,)), Turn(gangs=(B,)))
    sim.quanta(2)
    assert sum(trained(sim, 20, A, B, C)) == pytest.approx(80.0, rel=0.01)
    assert stopped_to_move(sim) == 0


def test_who_is_two_turns_behind_beside_a_gang_goes_where_another_of_its_kind_has_all_of_them() -> None:
    sim = clash()
    for job in (C, D):
        sim.job(job, 2, ways=Ways(**QUICK, ready_s=0.2))
    sim.quanta(2)
    assert bound(sim, D) == bound(sim, A)
    sim.pattern = (Turn(gangs=(A,)), Turn(gangs=(B,)))
    due = 20.0
    assert min(trained(sim, 20, A, B, C, D)[2:]) >= 0.99 * (due - 2.0), "one turn less than that, at most"
    assert sim.ordered("suspend 4 (checkpoint)", "suspend 3 (checkpoint)") == ["suspend 4 (checkpoint)"]


@pytest.mark.parametrize(("held_bytes", "ahead"), [(8 << 30, True), (12 << 30, False)])
def test_nobody_is_moved_ahead_to_gpus_whose_memory_others_hold(held_bytes: int, ahead: bool) -> None:
    """Of 16 GiB two of 6 stand on the same GPUs, and beside whoever has the others there may be no room for a third."""
    sim = clash(memory_bytes=6 << 30)
    sim.job(C, 2, memory_bytes=held_bytes, ways=Ways(**QUICK, ready_s=0.2))
    sim.quanta(2)
    assert bound(sim, C) == {2, 3}
    sim.pattern = (Turn(), Turn(gangs=(A, B)))
    sim.quanta(4)
    assert any("ahead of its next turn" in said for said in moves_said(sim)) == ahead


def test_a_part_that_left_for_the_sake_of_another_of_its_servers_comes_back_within_seconds() -> None:
    """Or for good, where its server has not heard yet that all of the gang move away: that word has three seconds."""
    sim = HostSim(4)
    part(sim, A, 2, ready_s=5.0)
    sim.start_clock([Turn()])
    sim.quanta(1)
    sim.run(10.0)
    sim.processes[A, 1].hold(Tier.CHECKPOINT)
    sim.run(2.9)
    assert sim.phases()[A] == "checkpointed"
    sim.run(0.2)
    assert sim.phases()[A] == "starting"
    sim.run(6.0)
    assert sim.phases()[A] == "held"
