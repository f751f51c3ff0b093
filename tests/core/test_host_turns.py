"""Turns that the controller decides ahead: gangs over several servers, quanta of the cluster, and its silence."""

from dataclasses import replace
from typing import Any

import pytest
from fakejob import Ways
from hostsim import HostSim
from hypothesis import given
from hypothesis import strategies as st

from hs_core.events.host import Launch, Reserve, Resume, Suspend, WantedChanged, Woke
from hs_core.host import HostConfig
from hs_core.host.agenda import REMEMBERED, Agenda
from hs_core.model import OnPartition
from hs_core.names import JobId
from hs_core.reports import Phase
from hs_core.wanted import Turn, Wanted

QUICK = {"hook_s": 0.1, "ready_s": 0.2, "hold_s": 0.1}
GANG, ONE, TWO = JobId(1), JobId(2), JobId(3)
ITS, OTHERS = Turn(gangs=(GANG,)), Turn()


def host(*, gpus: int = 2, rendezvous: str = "a:1", can_checkpoint: bool = False, **gang: Any) -> HostSim:
    """Job 1 is a part on all GPUs; jobs 2 and 3 are the host's own, one GPU each."""
    sim = HostSim(gpus)
    ways = Ways(**QUICK, can_checkpoint=can_checkpoint)
    sim.job(1, gpus, nodes=2, rendezvous=rendezvous, ways=ways, **gang)
    sim.job(2, ways=Ways(**QUICK))
    sim.job(3, ways=Ways(**QUICK))
    return sim


def tell(sim: HostSim, quantum: int, turn: Turn, next_turn: Turn | None, edge_in_s: float | None) -> None:
    """One word of the controller, said now."""
    sim.seq += 1
    wanted = Wanted(
        term=1,
        seq=sim.seq,
        quantum_s=60.0,
        turn=turn,
        jobs=tuple(sim.wanted.values()),
        quantum=quantum,
        edge_in_s=edge_in_s,
        next_turn=next_turn,
    )
    sim.tell(WantedChanged(now_s=sim.now_s, wanted=wanted))


def test_quanta_begin_when_the_clusters_do() -> None:
    sim = host()
    sim.run(7.0)
    tell(sim, 4, OTHERS, ITS, 20.0)
    sim.run(19.9)
    assert sim.running() == {ONE, TWO}
    sim.run(0.3)
    assert sim.running() == {GANG}
    assert (27.0, "suspend 2 (hold)") in sim.log
    assert (27.0, "suspend 3 (hold)") in sim.log


def test_all_losers_are_told_and_all_winners_follow_in_the_event_that_frees_their_gpus() -> None:
    sim = host()
    sim.start_clock([OTHERS, ITS])
    sim.run(200.0)
    at = [(round(when, 3), what) for when, what in sim.log if 59.0 < when < 121.0]
    assert at == [
        (60.0, "suspend 2 (hold)"),
        (60.0, "suspend 3 (hold)"),
        (60.1, "resume 1"),
        (120.0, "suspend 1 (hold)"),
        (120.1, "resume 2"),
        (120.1, "resume 3"),
    ]


def test_a_part_that_stands_ready_on_idle_gpus_goes_on_in_the_event_of_the_edge() -> None:
    sim = HostSim(2)
    sim.job(1, 2, nodes=2, rendezvous="a:1", ways=Ways(**QUICK))
    sim.start_clock([OTHERS, ITS])
    sim.run(59.0)
    assert sim.phases() == {1: "held"}
    outcome = sim.machine.handle(Woke(now_s=sim.start_s + 60.0))
    assert [type(order) for order in outcome.commands] == [Resume, type(outcome.commands[-1])]


def test_a_job_that_came_ahead_of_its_turn_goes_on_in_the_event_that_frees_its_gpu() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(**QUICK))
    sim.job(2, ways=Ways(**QUICK))
    sim.send()
    sim.run(60.05)
    assert sim.phases() == {1: "suspending", 2: "held"}
    sim.run(0.06)
    assert sim.phases() == {1: "held", 2: "running"}
    assert [round(when, 3) for when, what in sim.log if what == "resume 2"] == [60.1]


def test_the_next_turn_is_taken_without_another_word() -> None:
    sim = host()
    tell(sim, 0, OTHERS, ITS, 60.0)
    sim.run(61.0)
    assert sim.running() == {GANG}


def test_no_next_turn_is_the_same_turn_again() -> None:
    sim = host()
    tell(sim, 0, ITS, None, 60.0)
    sim.run(100.0)
    assert sim.running() == {GANG}


def test_a_part_never_runs_by_the_local_stride_even_on_idle_gpus() -> None:
    sim = HostSim(2)
    sim.job(1, 1, nodes=2, rendezvous="a:1", ways=Ways(**QUICK))
    sim.send()
    sim.quanta(5)
    assert sim.machine.report(GANG).gpu_s == 0.0
    assert sim.phases() == {1: "held"}


def test_a_part_that_stops_long_after_its_turn_is_not_let_go_in_that_of_others() -> None:
    sim = HostSim(1, config=HostConfig(can_freeze=False))
    slow = Ways(hook_s=0.1, ready_s=0.2, hold_s=45.0)
    sim.job(1, 1, nodes=2, rendezvous="a:1", ways=slow)
    sim.job(2, ways=Ways(**QUICK))
    sim.start_clock([ITS, OTHERS])
    sim.run(60.0 + 40.0)
    assert "does not stop" in sim.machine.report(GANG).note
    sim.run(10.0)
    assert sim.phases() == {1: "held", 2: "running"}
    sim.quanta(1)
    assert sim.phases()[1] == "running"


def test_gpus_that_a_gang_leaves_are_shared_by_the_others() -> None:
    sim = HostSim(2)
    sim.job(1, 1, nodes=2, rendezvous="a:1", ways=Ways(**QUICK))
    for number in (2, 3):
        sim.job(number, ways=Ways(**QUICK))
    sim.start_clock([ITS])
    sim.quanta(20)
    assert sim.gpu_s(GANG) == pytest.approx(1200.0, abs=65.0)
    assert sim.gpu_s(ONE) + sim.gpu_s(TWO) == pytest.approx(1200.0, abs=65.0)


def test_a_message_that_comes_late_by_whole_quanta_is_understood() -> None:
    sim = host()
    tell(sim, 0, OTHERS, OTHERS, 60.0)
    sim.run(30.0)
    tell(sim, 7, ITS, ITS, -70.0)  # 8 began 70 s ago, so this is 9, of which nothing was said
    assert sim.machine._board.agenda.quantum == 9
    assert sim.machine._board.next_edge_s == sim.now_s + 50.0


def test_a_message_that_comes_a_little_early_does_not_switch_early() -> None:
    sim = host()
    tell(sim, 0, OTHERS, ITS, 60.0)
    sim.run(59.5)
    tell(sim, 1, ITS, OTHERS, 60.5)
    assert sim.running() == {ONE, TWO}
    sim.run(0.7)
    assert sim.running() == {GANG}
    assert (60.0, "suspend 2 (hold)") in sim.log


def test_an_edge_that_was_taken_too_early_is_not_taken_back() -> None:
    sim = host()
    tell(sim, 0, OTHERS, ITS, 60.0)
    sim.run(60.3)
    tell(sim, 0, OTHERS, ITS, 0.2)  # the controller is half a second behind what it had said
    sim.run(1.0)
    assert sim.running() == {GANG}
    assert sim.machine._board.next_edge_s == pytest.approx(sim.start_s + 120.5)


def test_a_turn_that_changes_within_its_quantum_switches_at_once_and_moves_no_edge() -> None:
    sim = host()
    tell(sim, 0, OTHERS, OTHERS, 60.0)
    sim.run(20.0)
    tell(sim, 0, ITS, OTHERS, 40.0)
    sim.run(1.0)
    assert sim.running() == {GANG}
    sim.run(39.0)
    assert (60.0, "suspend 1 (hold)") in sim.log


def test_a_gang_that_leaves_the_turn_gives_its_gpus_to_others_within_the_quantum() -> None:
    sim = host()
    tell(sim, 0, OTHERS, ITS, 60.0)
    sim.run(70.0)
    del sim.wanted[GANG]
    tell(sim, 1, OTHERS, OTHERS, 50.0)
    sim.run(1.0)
    assert sim.running() == {ONE, TWO}


def test_the_same_word_again_changes_nothing() -> None:
    sim = host()
    sim.start_clock([OTHERS, ITS])
    for _ in range(300):
        sim.run(1.7)
        sim.send()
    once = host()
    once.start_clock([OTHERS, ITS])
    once.run(300 * 1.7)
    assert sim.log == once.log


def test_a_controller_that_counts_anew_is_followed() -> None:
    sim = host()
    tell(sim, 900, OTHERS, OTHERS, 60.0)
    sim.run(10.0)
    tell(sim, 3, ITS, OTHERS, 25.0)
    sim.run(1.0)
    assert sim.running() == {GANG}
    sim.run(25.0)
    assert sim.running() == {ONE, TWO}


def test_a_host_without_parts_goes_back_to_its_own_cadence() -> None:
    sim = host()
    tell(sim, 5, ITS, OTHERS, 13.0)
    sim.run(5.0)
    del sim.wanted[GANG]
    tell(sim, 0, OTHERS, None, None)
    sim.quanta(5)
    assert sim.running() == {ONE, TWO}


# --- the controller is away


def test_without_a_word_gangs_that_continue_keep_their_turns_by_number() -> None:
    sim = host(on_partition=OnPartition.CONTINUE)
    sim.start_clock([ITS, OTHERS, OTHERS, OTHERS])
    sim.quanta(20)
    sim.away = True
    before = sim.gpu_s(GANG)
    sim.quanta(160)
    assert sim.gpu_s(GANG) - before == pytest.approx(2 * 60.0 * 40, rel=0.02)


def test_without_a_word_gangs_that_are_fenced_stop_at_the_first_edge_and_the_others_go_on() -> None:
    sim = host(on_partition=OnPartition.FENCE)
    sim.start_clock([ITS, ITS, OTHERS])
    sim.quanta(3)
    sim.run(1.0)
    sim.away = True
    sim.quanta(1)
    assert sim.running() == {GANG}, "of this quantum there was a word"
    before = sim.gpu_s(ONE)
    sim.quanta(30)
    assert sim.phases()[GANG] == "held"
    assert sim.gpu_s(ONE) - before > 29 * 60.0
    sim.away = False
    sim.quanta(3)
    assert sim.gpu_s(GANG) > 60.0 * 2 * 4


def test_an_agent_that_restarts_while_the_controller_is_away_goes_on_with_the_turns() -> None:
    sims = [host(), host()]
    for sim in sims:
        sim.start_clock([ITS, OTHERS, ITS])
        sim.quanta(18)
        sim.away = True
        sim.quanta(3)
    sims[0].kill_agent()
    sims[0].start_agent()
    for sim in sims:
        sim.quanta(20)
    assert [r.gpu_s for r in sims[0].machine.reports()] == pytest.approx(
        [r.gpu_s for r in sims[1].machine.reports()], abs=1.0
    )


@given(
    st.lists(st.sampled_from(["gang", "other", "none"]), min_size=1, max_size=60),
    st.integers(0, 59),
    st.integers(1, 100),
)
def test_servers_that_heard_of_the_same_turns_agree_whenever_they_began_to_listen(
    said: list[str], joined: int, later: int
) -> None:
    turns = {"gang": ITS, "other": Turn(gangs=(ONE,)), "none": OTHERS}
    first, second = Agenda(), Agenda()
    for quantum, what in enumerate(said):
        wanted = Wanted(
            term=1, seq=quantum, quantum_s=1.0, turn=turns[what], jobs=(), quantum=quantum, edge_in_s=1.0
        )
        first.hear(wanted, quantum, quantum)
        if quantum >= joined:  # only from then on there is a part of the gang
            second.hear(replace(wanted, turn=turns[what]), quantum, quantum)
        else:
            first.known[quantum] = OTHERS
    if joined >= len(said):
        return
    first.quantum = second.quantum = len(said) + later
    assert first.turn(()) == second.turn(())
    assert len(first.known) <= REMEMBERED


def mixed() -> HostSim:
    """Two GPUs and three jobs of this host alone, of which the controller chooses two for each quantum."""
    sim = HostSim(2)
    for job in (1, 2, 3):
        sim.job(job, ways=Ways(**QUICK))
    return sim


def test_jobs_of_this_host_alone_that_the_controller_chooses_run_in_its_turns_whatever_their_passes() -> None:
    sim = mixed()
    sim.start_clock([Turn(gangs=(JobId(1), JobId(2)))])
    sim.quanta(1)
    for _ in range(10):
        sim.quanta(1)
        assert sim.running() == {JobId(1), JobId(2)}


def test_without_the_controllers_word_a_hosts_own_jobs_have_its_own_stride_at_once() -> None:
    """Its last turns would be repeated for ever, and who came last is in none of them."""
    sim = mixed()
    sim.start_clock([Turn(gangs=(JobId(1), JobId(2)))])
    sim.quanta(6)
    assert sim.running() == {JobId(1), JobId(2)}
    sim.away = True
    sim.quanta(2)
    before = {job: sim.trained(JobId(job)) for job in (1, 2, 3)}
    sim.quanta(30)
    had = [sim.trained(JobId(job)) - before[job] for job in (1, 2, 3)]
    assert had[2] == pytest.approx(had[1], rel=0.1)  # they are bound to one GPU
    assert sum(had) > 0.99 * 2 * 30 * 60


def test_a_chosen_job_that_is_on_its_way_up_leaves_its_gpus_to_others_until_it_stands() -> None:
    sim = mixed()
    sim.start_clock([Turn(gangs=(JobId(1), JobId(2)))])
    sim.quanta(4)
    sim.job(4, ways=Ways(hook_s=20.0, ready_s=90.0, hold_s=0.1))
    sim.pattern = (Turn(gangs=(JobId(4), JobId(1))),)
    sim.send()
    sim.run(5.0)
    for _ in range(11):  # to the end of its first quantum, in the middle of which it stands
        assert JobId(1) in sim.running()
        assert len(sim.running()) == 2
        sim.run(10.0)
    sim.run(10.0)
    assert sim.running() == {JobId(4), JobId(1)}


# --- meeting


def test_node_0_reserves_a_rendezvous_and_no_part_starts_before_all_know_it() -> None:
    sim = host(rendezvous="")
    sim.start_clock([ITS, OTHERS])
    sim.quanta(3)
    assert [what for _, what in sim.log if what.startswith("reserve")] == ["reserve 1"]
    report = sim.machine.report(GANG)
    assert (report.phase, report.rendezvous) == (Phase.WAITING, "10.0.0.1:29417")
    assert report.note == "waits until its nodes know where to meet"
    sim.change(GANG, rendezvous=report.rendezvous)
    sim.send()
    assert any(what == "launch 1 on 0,1" for _, what in sim.log)


def test_other_nodes_reserve_nothing() -> None:
    sim = host(rendezvous="", node_rank=1)
    sim.start_clock([ITS])
    sim.quanta(3)
    assert not any(what.startswith(("reserve", "launch 1")) for _, what in sim.log)


def test_a_reservation_that_nobody_answered_is_ordered_again_after_a_restart() -> None:
    sim = host(rendezvous="")
    sim.send()
    sim.kill_agent()
    sim._heap.clear()
    sim.start_agent()
    sim.run(1.0)
    assert [what for _, what in sim.log if what.startswith("reserve")] == ["reserve 1", "reserve 1"]
    assert sim.machine.report(GANG).rendezvous


def test_a_part_is_started_ahead_beside_jobs_that_train_and_costs_them_nothing() -> None:
    sim = host(rendezvous="")
    sim.job(1, 2, nodes=2, ways=Ways(ready_s=30.0))
    sim.start_clock([OTHERS, ITS])
    sim.run(5.0)
    sim.change(GANG, rendezvous="a:1")
    sim.send()
    sim.run(54.0)
    assert sim.running() == {ONE, TWO}
    assert sim.phases()[GANG] == "held"
    sim.run(1.5)
    assert sim.running() == {GANG}


def test_a_part_that_is_not_ready_leaves_its_turn_to_the_others() -> None:
    sim = host()
    sim.ways[GANG].ready_s = 100.0
    sim.start_clock([ITS])
    sim.run(90.0)
    assert sim.running() == {ONE, TWO}
    sim.run(60.0)
    assert sim.running() == {GANG}


def test_a_gang_that_another_node_stopped_a_moment_early_is_stopped_on_both() -> None:
    """Its JobHeld comes before this host's own edge: it asks to go on, and takes that back at its edge."""
    sim = host()
    sim.start_clock([ITS, OTHERS])
    sim.run(59.98)
    process = sim.processes[GANG, 1]
    process.hold(sim.machine.report(GANG).tier.HOLD)
    sim.run(0.5)
    assert sim.running() == {ONE, TWO}


def test_orders_of_a_part_carry_its_incarnation() -> None:
    sim = host()
    seen: list[object] = []
    handle = sim.machine.handle

    def listen(event: Any) -> Any:
        outcome = handle(event)
        seen.extend(outcome.commands)
        return outcome

    sim.machine.handle = listen  # type: ignore[method-assign]
    sim.start_clock([ITS, OTHERS])
    sim.quanta(3)
    kinds = {type(order) for order in seen if isinstance(order, Launch | Suspend | Resume | Reserve)}
    assert kinds == {Launch, Suspend, Resume}


# --- who comes up while the controller's turn changes


def coming_up(gang: int) -> HostSim:
    """On four GPUs: job 1 comes up in its turn, which is over then; job 2 has the next, for which nobody has a process yet."""
    sim = HostSim(4)
    sim.job(1, ways=Ways(ready_s=20.0))
    sim.job(2, gang, ways=Ways(ready_s=10.0))
    sim.turn = Turn(gangs=(JobId(1),), local=False)
    sim.send()
    sim.run(10.0)
    assert sim.phases()[1] == "starting"
    sim.turn = Turn(gangs=(JobId(2),), local=False)
    sim.send()
    return sim


def test_who_comes_up_as_the_turn_changes_leaves_its_gpu_to_a_gang_that_would_have_too_few() -> None:
    sim = coming_up(4)
    sim.run(15.0)
    assert sim.phases() == {1: "held", 2: "running"}
    charged_s = sim.machine.report(JobId(1)).run_s
    sim.run(30.0)
    assert sim.machine.report(JobId(1)).run_s == charged_s
    sim.turn = Turn(gangs=(JobId(1),), local=False)
    sim.send()
    sim.run(1.0)
    assert sim.phases() == {1: "running", 2: "held"}


def test_it_keeps_it_where_there_are_enough_beside() -> None:
    sim = coming_up(2)
    sim.run(15.0)
    assert sim.phases() == {1: "running", 2: "running"}


def test_it_leaves_it_to_one_of_the_turn_that_stands_there() -> None:
    sim = HostSim(1)
    sim.job(2)
    sim.turn = Turn(gangs=(JobId(2),), local=False)
    sim.send()
    sim.run(10.0)
    sim.job(1, ways=Ways(ready_s=20.0))
    sim.turn = Turn(gangs=(JobId(1),), local=False)
    sim.send()
    sim.run(10.0)
    assert sim.phases() == {1: "starting", 2: "held"}
    sim.turn = Turn(gangs=(JobId(2),), local=False)
    sim.send()
    sim.run(1.0)
    assert sim.phases() == {1: "starting", 2: "running"}
    sim.run(15.0)
    assert sim.phases() == {1: "held", 2: "running"}
