"""Where device memory keeps parts of gangs over several hosts from coming up, and nobody who holds it can leave."""

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.events.host import CheckpointWeighed
from hs_core.host import HostConfig
from hs_core.names import JobId
from hs_core.reports import CANNOT_START, LOST, MEMORY_HELD, JobReport, Phase, parting
from hs_core.wanted import Turn

ONE, TWO, THREE = JobId(1), JobId(2), JobId(3)
NEVER_S = 1e5  # its other host has no room for it


def part(sim: HostSim, number: int, ready_s: float = 2.0) -> JobId:
    return sim.job(
        number, nodes=2, rendezvous=f"a:{number}", memory_bytes=9 * GIB, ways=Ways(ready_s=ready_s)
    )


@pytest.mark.parametrize("local", [False, True])
def test_of_two_gangs_that_are_half_up_the_younger_one_gives_its_memory_back(local: bool) -> None:
    sim = HostSim(1)
    part(sim, 2, NEVER_S)
    sim.send()
    sim.run(5.0)
    part(sim, 1)
    sim.turn = Turn(gangs=(ONE,), local=local)
    sim.send()
    sim.quanta(2)
    assert sim.phases() == {1: "waiting", 2: "starting"}, "it may only be slow"
    sim.quanta(5)
    lost = sim.machine.report(TWO).exit
    assert lost is not None
    assert lost.why == f"{LOST}: job 1, which is older, waits for its GPUs' memory"
    assert sim.phases()[1] in ("running", "held")


def test_the_older_one_keeps_it_and_the_other_begins_anew() -> None:
    sim = HostSim(1)
    part(sim, 1, NEVER_S)
    sim.send()
    sim.run(5.0)
    part(sim, 2)
    sim.turn = Turn(gangs=(TWO,))
    sim.send()
    sim.quanta(8)
    assert sim.phases() == {1: "starting", 2: "exited"}
    lost = sim.machine.report(TWO).exit
    assert lost is not None
    assert lost.why == f"{LOST}: {CANNOT_START}: the memory of its GPUs {MEMORY_HELD}"


def test_a_part_that_waits_for_the_others_in_its_turn_leaves_its_gpus_to_who_can_compute() -> None:
    sim = HostSim(1, config=HostConfig(preload=0))
    part(sim, 1, NEVER_S)
    sim.turn = Turn(gangs=(ONE,))
    sim.job(2, user="B", memory_bytes=GIB)
    sim.send()
    sim.quanta(5)
    assert sim.gpu_s(ONE) <= 2 * sim.quantum_s
    assert sim.trained(TWO) > 2 * sim.quantum_s


def test_who_is_named_alone_and_finds_no_memory_leaves_its_turns_to_those_who_hold_it() -> None:
    """They can be moved out by nothing but their end."""
    sim = HostSim(1)
    holds = sim.job(1, memory_bytes=9 * GIB, ways=Ways(work_s=150.0))
    sim.send()
    sim.quanta(1)
    sim.job(2, user="B", memory_bytes=9 * GIB)
    sim.turn = Turn(gangs=(TWO,), local=False)
    sim.send()
    sim.quanta(3)
    assert sim.trained(holds) > 2 * sim.quantum_s, "it stands in for it"
    sim.quanta(3)
    assert sim.phases()[1] == "exited"
    assert sim.phases()[2] == "running"


def test_one_of_the_hosts_own_that_waits_for_long_may_have_room_elsewhere() -> None:
    sim = HostSim(1)
    sim.job(1, memory_bytes=9 * GIB, ways=Ways())
    sim.send()
    sim.quanta(1)
    sim.job(2, user="B", memory_bytes=9 * GIB)
    sim.send()
    sim.quanta(6)
    assert sim.machine.report(TWO).note == f"its GPUs' memory {MEMORY_HELD}"
    sim.quanta(6)
    report = sim.machine.report(TWO)
    assert report.start_fails >= 1
    assert report.phase is Phase.WAITING


def test_who_has_given_up_is_started_as_soon_as_a_process_is_gone_and_not_as_another_gives_up() -> None:
    sim = HostSim(1)
    sim.job(1, memory_bytes=9 * GIB, ways=Ways(work_s=15 * 60.0))
    sim.send()
    sim.quanta(1)
    for number in (2, 3):
        sim.job(number, user="B", memory_bytes=9 * GIB)
    sim.send()
    sim.quanta(12)
    waits = [sim.machine.report(JobId(number)).note for number in (2, 3)]
    assert all(note.startswith(CANNOT_START) for note in waits), waits
    sim.quanta(3)
    assert sim.phases()[1] == "exited"
    assert "running" in (sim.phases()[2], sim.phases()[3])


# --- what a swap moves


def fills(sim: HostSim, number: int, *, user: str = "A", moves_gib: int) -> JobId:
    """All of both GPUs, most of it activations."""
    ways = Ways(can_swap=True, can_checkpoint=True, memory_bytes=moves_gib * GIB)
    return sim.job(number, 2, user=user, memory_bytes=15 * GIB, ways=ways)


def tiers(sim: HostSim) -> list[str]:
    return [words.split()[-1] for words in sim.ordered("suspend", "checkpoint")]


def test_what_a_checkpoint_weighs_says_whether_host_memory_holds_what_a_gang_holds_of_its_gpus() -> None:
    """Twice that on each GPU, for gradients. Else all of it would be expected to be moved, and a checkpoint written at the end of each turn."""
    sim = HostSim(2, config=HostConfig(host_memory_budget_bytes=16 * GIB))
    for number in (1, 2):
        fills(sim, number, user=f"u{number}", moves_gib=2)
    sim.send()
    sim.quanta(2)
    assert set(tiers(sim)) == {"(checkpoint)"}, "30 GiB, as far as is known"
    for number in (1, 2):
        sim.tell(CheckpointWeighed(now_s=sim.now_s, job=JobId(number), epoch=1, size_bytes=2 * GIB))
    before = len(tiers(sim))
    sim.quanta(6)
    assert set(tiers(sim)[before + 1 :]) == {"(swap)"}


def test_what_others_of_its_class_have_moved_is_known_of_a_job() -> None:
    sim = HostSim(2, config=HostConfig(host_memory_budget_bytes=8 * GIB))
    first = fills(sim, 1, moves_gib=2)
    fills(sim, 2, moves_gib=2)
    sim.send()
    sim.quanta(2)
    sim.tell(CheckpointWeighed(now_s=sim.now_s, job=first, epoch=1, size_bytes=2 * GIB))
    before = len(tiers(sim))
    sim.quanta(8)
    assert set(tiers(sim)[before + 3 :]) == {"(swap)"}


# --- last words to a controller that is there


def said(job: int, epoch: int, **more: object) -> JobReport:
    return JobReport(job=JobId(job), epoch=epoch, phase=Phase.RUNNING, **more)  # type: ignore[arg-type]


def test_what_a_controller_was_not_told_of_who_is_gone_is_said_to_it() -> None:
    sent = {ONE: said(1, 0, gpu_s=5.0), TWO: said(2, 0, gpu_s=5.0), THREE: said(3, 1, gpu_s=5.0)}
    now = {TWO: said(2, 1), THREE: said(3, 1, gpu_s=9.0)}
    words = [said(1, 0, gpu_s=7.0), said(2, 0, gpu_s=5.0), said(3, 0, gpu_s=1.0), said(4, 0, gpu_s=1.0)]
    assert parting(sent, now, lambda: words) == words[:1]
    assert parting(now, now, lambda: pytest.fail("nobody is gone")) == []
