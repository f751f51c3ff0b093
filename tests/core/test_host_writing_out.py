"""What lies in host memory of who has had no turn for long is written out where others that have turns need that room."""

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.host import HostConfig
from hs_core.names import JobId
from hs_core.reports import Phase, Tier
from hs_core.wanted import Turn

LARGE = 10 * GIB
RARE, ANOTHER, ONE, TWO = map(JobId, (1, 2, 3, 4))


def host(gpus: int = 1, budget_gib: int = 20) -> HostSim:
    """Of two jobs one fits on a GPU, and two fit into what the host has for them."""
    return HostSim(gpus, config=HostConfig(host_memory_budget_bytes=budget_gib * GIB))


def large(sim: HostSim, job: JobId, *, writes: bool = True, **more: object) -> None:
    ways = Ways(can_swap=True, can_checkpoint=writes, memory_bytes=LARGE, ready_s=10.0)
    sim.job(job, memory_bytes=LARGE, ways=ways, **more)


def with_two_parked(*, writes: bool = True) -> HostSim:
    """Two that lie in host memory, and two others on the GPU by turns."""
    sim = host()
    for job in (RARE, ANOTHER):
        large(sim, job)
    large(sim, ONE)
    sim.send()
    while sim.phases() != {1: "swapped", 2: "swapped", 3: "running"}:
        sim.run(1.0)
    for job in (RARE, ANOTHER):
        sim.change(job, paused=True)
    sim.change(ONE, cancelled=True)
    for job in (TWO, JobId(5)):
        large(sim, job, writes=writes)
    sim.send()
    return sim


def since(sim: HostSim, quanta: float) -> list[str]:
    return [words for at_s, words in sim.log if at_s >= sim.now_s - sim.start_s - quanta * sim.quantum_s]


@pytest.mark.parametrize("writes", [True, False], ids=["would-write", "would-stay"])
def test_paused_jobs_leave_the_host_s_memory_to_those_that_take_turns(writes: bool) -> None:
    sim = with_two_parked(writes=writes)
    sim.quanta(30)
    later = since(sim, 15)
    assert not [words for words in later if words.startswith("launch") or "checkpoint" in words]
    assert [words for words in later if words == "suspend 4 (swap)"]
    assert {sim.machine.report(job).phase for job in (RARE, ANOTHER)} == {Phase.CHECKPOINTED}


def test_a_paused_job_that_was_written_out_goes_on_from_there() -> None:
    sim = with_two_parked()
    sim.quanta(30)
    before_s = sim.trained(RARE)
    sim.change(RARE, paused=False)
    sim.send()
    sim.quanta(4)
    assert sim.trained(RARE) > before_s + 30.0
    assert sim.ordered("launch 1 on 0 from generation")


def test_one_with_few_tickets_is_written_out_once_for_each_of_its_turns() -> None:
    sim = host()
    for job in (RARE, ANOTHER, ONE, TWO):
        large(sim, job)
    sim.send()
    sim.quanta(6)
    for job in (RARE, ANOTHER):
        sim.change(job, tickets=0.05)
    sim.send()
    sim.quanta(100)
    log = since(sim, 80)
    turns = {job: log.count(f"resume {job}") for job in (RARE, ANOTHER, ONE, TWO)}
    starts = {job: len([words for words in log if words.startswith(f"launch {job} ")]) for job in turns}
    assert starts[ONE] + starts[TWO] <= (turns[ONE] + turns[TWO]) / 4
    assert 1 <= starts[RARE] + starts[ANOTHER] <= turns[RARE] + turns[ANOTHER] + 2
    assert all(1 <= turns[job] <= 8 for job in (RARE, ANOTHER))


def test_of_those_that_come_round_one_after_the_other_nobody_is_written_out_for_the_others() -> None:
    sim = host()
    jobs = [JobId(n) for n in range(1, 6)]
    for job in jobs:
        large(sim, job)
    sim.send()
    sim.quanta(60)
    assert not [fact for fact in sim.machine.story if fact.kind == "let-go"]
    assert all(sim.trained(job) > 5 * sim.quantum_s for job in jobs)


def test_who_cannot_be_written_out_stays() -> None:
    sim = with_two_parked()
    for job in (RARE, ANOTHER):
        sim.ways[job].disk_full = True
    sim.quanta(30)
    assert {sim.machine.report(job).phase for job in (RARE, ANOTHER)} == {Phase.SWAPPED}
    assert sim.trained(TWO) > 5 * sim.quantum_s


def gang_in_memory() -> HostSim:
    """A part of a gang over several hosts that lies in host memory; two others have the GPU by turns."""
    sim = host()
    for job, more in ((RARE, {"nodes": 2, "rendezvous": "a:1"}), (ONE, {})):
        large(sim, job, **more)
    sim.start_clock([Turn(gangs=(RARE,) if quantum in (1, 40) else ()) for quantum in range(60)])
    while sim.machine.report(RARE).phase is not Phase.SWAPPED:
        sim.run(1.0)
    large(sim, TWO)
    sim.send()
    return sim


def test_a_part_of_a_gang_without_a_turn_for_long_is_written_out_and_comes_back_when_it_is_named() -> None:
    sim = gang_in_memory()
    sim.quanta(30)
    assert sim.machine.report(RARE).phase is Phase.CHECKPOINTED
    assert not [words for words in since(sim, 10) if words.startswith("launch")]
    before_s = sim.trained(RARE)
    sim.quanta(11)
    assert sim.trained(RARE) > before_s


def test_a_part_that_has_turns_again_and_again_is_not_written_out() -> None:
    sim = host(budget_gib=10)
    large(sim, RARE, nodes=2, rendezvous="a:1")
    for job in (ONE, TWO):
        large(sim, job)
    sim.start_clock([Turn(gangs=(RARE,)), Turn(), Turn(), Turn()])
    sim.quanta(60)
    assert not [fact for fact in sim.machine.story if fact.kind == "let-go"]


def test_the_other_hosts_of_such_a_gang_do_not_start_it_before_it_is_named() -> None:
    """Ranks that stand where they meet for long give up."""
    sim = HostSim(2, config=HostConfig(host_memory_budget_bytes=20 * GIB))
    large(sim, RARE, nodes=2, rendezvous="a:1", node_rank=1)
    sim.start_clock([Turn(gangs=(RARE,) if quantum in (1, 40) else ()) for quantum in range(60)])
    sim.quanta(20)
    assert sim.machine.report(RARE).phase is Phase.HELD
    sim.processes[RARE, 1].hold(Tier.CHECKPOINT)
    sim.quanta(10)
    assert sim.machine.report(RARE).phase is Phase.CHECKPOINTED
    sim.quanta(9.5)
    assert sim.machine.report(RARE).phase is Phase.HELD, "it is in the next turn"
    sim.quanta(1)
    assert sim.machine.report(RARE).phase is Phase.RUNNING
