"""A job comes from another host, leaves for another, or is ended because nobody was heard."""

from itertools import pairwise

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.cluster import reports
from hs_core.events import ControllerHeard, Woke
from hs_core.forms import Shape
from hs_core.host import HostConfig
from hs_core.host.away import LOST
from hs_core.model import OnPartition, SuspendMode
from hs_core.names import JobId
from hs_core.reports import Phase

ONE, TWO = JobId(1), JobId(2)


def words(sim: HostSim, *kinds: str) -> list[str]:
    return [what for _, what in sim.log if what.startswith(kinds)]


# --- leaving


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
    assert words(sim, "suspend") == [f"suspend {leaver} (checkpoint)"]
    sim.quanta(10)
    assert not [w for w in words(sim, f"launch {leaver}") if "generation" in w]


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
    assert words(sim, "launch") == ["launch 1 on 0", "launch 1 on 0 from generation 0"]
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
            "cannot be moved: it gave no state to write a checkpoint of (hs_job.state)",
        ),
        (Ways(), SuspendMode.TRANSPARENT, "cannot be moved: it has no step hook"),
        (Ways(hooks=False), SuspendMode.AUTO, "cannot be moved: it has no step hook"),
    ],
)
def test_what_cannot_write_a_checkpoint_says_so_and_goes_on(ways: Ways, mode: SuspendMode, note: str) -> None:
    sim = HostSim(1)
    sim.job(1, ways=ways, mode=mode)
    sim.send()
    sim.run(40.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.quanta(5)
    assert note in sim.machine.report(ONE).note
    assert sim.running() == {ONE}


def test_a_checkpoint_that_fails_is_tried_again_each_quantum_while_it_is_to_leave() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True, disk_full=True))
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.quanta(4)
    assert 3 <= len(words(sim, "suspend 1 (checkpoint)")) <= 5
    assert "disk full" in sim.machine.report(ONE).note
    sim.ways[ONE].disk_full = False
    sim.quanta(2)
    assert sim.phases() == {1: "checkpointed"}


def test_a_part_leaves_like_any_other_job() -> None:
    sim = HostSim(1)
    sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(10.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    assert sim.phases() == {1: "checkpointed"}


# --- coming


def test_a_job_that_comes_with_a_checkpoint_elsewhere_starts_from_it() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 4), ways=Ways(fetch_s=5.0))
    sim.send()
    report = sim.machine.report(ONE)
    assert (report.phase, report.note) == (Phase.WAITING, "waits for checkpoint 4 from v9")
    sim.run(4.0)
    assert words(sim, "launch") == []
    sim.run(2.0)
    assert words(sim, "launch") == ["launch 1 on 0 from generation 4"]
    assert sim.machine.report(ONE).checkpoint_step == 700
    assert sim.machine.report(ONE).step == 700


def test_a_fetch_that_fails_is_tried_again_with_patience() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=0.0, fetch_fails=7))
    sim.send()
    sim.run(400.0)
    tried = [when for when, what in sim.log if what == "fetch 1"]
    waits = [round(b - a, 3) for a, b in pairwise(tried)]
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert words(sim, "launch") == ["launch 1 on 0 from generation 0"]


def test_a_checkpoint_that_is_torn_where_it_lies_is_given_up_with_the_reason() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=0.0, fetch_fails=99, torn=True))
    sim.send()
    sim.run(400.0)
    assert words(sim, "fetch", "launch") == ["fetch 1"] * 5
    report = sim.machine.report(ONE)
    assert report.phase is Phase.EXITED
    assert report.exit is not None
    assert "cannot fetch checkpoint 0 from" in report.exit.why
    assert "v9 does not answer; tried 5 times" in report.exit.why


def test_what_lies_here_and_is_newer_is_not_fetched() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    here = sim.machine.report(ONE)
    sim.change(ONE, leave=False, epoch=2, source=sim.source(here.checkpoint_step, here.checkpoint_generation))
    sim.send()
    sim.run(5.0)
    assert words(sim, "fetch") == []
    assert words(sim, "launch")[-1] == "launch 1 on 0 from generation 0"


def test_another_source_is_fetched_from_at_once() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 1), ways=Ways(fetch_s=1e6))
    sim.send()
    sim.change(ONE, source=sim.source(800, 2))
    sim.send()
    assert words(sim, "fetch") == ["fetch 1", "fetch 1"]


def test_a_fetch_is_ordered_again_by_an_agent_that_restarts() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=3.0))
    sim.send()
    sim.run(1.0)
    sim.kill_agent()
    sim._heap.clear()
    sim.start_agent()
    sim.run(4.0)
    assert words(sim, "fetch", "launch") == ["fetch 1", "fetch 1", "launch 1 on 0 from generation 0"]


def test_a_job_that_moved_here_is_started_ahead_of_its_turn() -> None:
    sim = HostSim(1)
    sim.job(1, user="A")
    sim.send()
    sim.run(10.0)
    sim.job(2, user="B", epoch=2, source=sim.source(100))
    sim.send()
    sim.run(10.0)
    assert sim.running() == {ONE}
    assert sim.phases()[TWO] == "held"
    sim.run(40.2)
    assert [round(when, 3) for when, what in sim.log if what == "resume 2"] == [60.1]


# --- lending


def test_what_is_lent_is_kept_until_it_is_no_longer_listed() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    sim.lend(ONE)
    del sim.wanted[ONE]
    sim.send()
    sim.send()
    assert sim.phases() == {}
    sim.kill_agent()
    sim.start_agent()
    assert words(sim, "forget") == []
    sim.lends = ()
    sim.send()
    sim.send()
    assert words(sim, "forget") == ["forget 1"]


def test_the_incarnation_before_is_kept_where_it_is_lent_while_the_next_one_lives_here() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    sim.lend(ONE, epoch=1)
    sim.change(ONE, leave=False, epoch=2)
    sim.send()
    sim.run(5.0)
    assert words(sim, "forget") == []
    sim.lends = ()
    sim.send()
    assert words(sim, "forget") == ["forget 1"]
    assert sim.running() == {ONE}


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
    assert words(sim, "launch 1") == ["launch 1 on 0", "launch 1 on 0,1,2,3 from generation 0"]
    assert (len(report.gpus), report.step > step > 0) == (4, True)
    assert report.gpu_s == pytest.approx(4 * report.run_s)
    assert report.run_s > 60.0


# --- nobody is heard


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
        assert exit_.why.startswith(reports.LOST)
    assert words(sim, "kill") == ["kill 1 (fenced: no word from the controller for 100 s)"]
    assert sim.running() == {TWO}


def test_host_and_controller_mean_the_same_by_lost() -> None:
    assert reports.LOST == LOST


def test_every_sign_of_life_puts_the_end_off() -> None:
    sim = fenced()
    for _ in range(10):
        sim.run(90.0)
        sim.hear()
    assert sim.running() == {ONE, TWO}


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
    machine = type(sim.machine)(sim.gpus, sim.config, now_s=3.0, saved=saved)
    machine.handle(ControllerHeard(now_s=3.5))
    assert machine.report(JobId(3)).exit is None
    machine = type(sim.machine)(sim.gpus, sim.config, now_s=3.0, saved=saved)
    machine.handle(Woke(now_s=4.0))
    assert machine.report(JobId(3)).exit is not None


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
    assert words(sim, "launch") == ["launch 1 on 0", "launch 2 on 1", "launch 1 on 1 from generation 0"]


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


def test_a_host_says_that_it_knows_when_nothing_is_left_of_what_is_not_wanted() -> None:
    sim = HostSim(1)
    job = sim.job(1, ways=Ways(die_s=5.0))
    sim.send()
    sim.run(10.0)
    assert sim.machine.heard == (1, 1)
    del sim.wanted[job]
    sim.send()
    assert sim.machine.heard == (1, 1), "it is being ended"
    sim.run(4.0)
    assert sim.machine.heard == (1, 1)
    sim.run(2.0)
    assert sim.machine.heard == (1, 2)


# --- other GPUs of the same host


def bound(sim: HostSim) -> dict[int, list[str]]:
    """Where each job was launched, time after time."""
    found: dict[int, list[str]] = {}
    for launch in words(sim, "launch"):
        _, job, _, gpus, *_ = launch.split()
        found.setdefault(int(job), []).append(gpus)
    return found


def test_a_job_that_shares_its_gpu_goes_to_one_whose_job_is_ahead_and_never_back_to_the_same() -> None:
    """Five jobs on four GPUs: two of them share one, and the others must give some of their time to them."""
    sim = HostSim()
    ways = Ways(hook_s=0.01, ready_s=10.0, hold_s=0.001, resume_s=0.001, can_checkpoint=True)
    jobs = [sim.job(number, ways=ways) for number in range(1, 6)]
    sim.send()
    sim.quanta(20)
    received = []
    for _ in range(200):
        received.append([sim.gpu_s(job) / sim.quantum_s for job in jobs])
        sim.quanta(1)
    for before, after in zip(received, received[40:], strict=False):
        for was, now in zip(before, after, strict=True):
            assert now - was == pytest.approx(0.8 * 40, abs=4), "over 40 quanta"
    for launches in bound(sim).values():
        assert all(one != other for one, other in pairwise(launches))
    moves = sum(len(launches) - 1 for launches in bound(sim).values())
    assert 0 < moves < 220 / 3


def test_jobs_whose_start_takes_longer_than_many_quanta_are_moved_less_often() -> None:
    def moves(quantum_s: float) -> int:
        sim = HostSim(quantum_s=quantum_s)
        ways = Ways(hook_s=0.01, ready_s=20.0, hold_s=0.001, resume_s=0.001, can_checkpoint=True)
        for number in range(1, 6):
            sim.job(number, ways=ways)
        sim.send()
        sim.quanta(200)
        return sum(len(launches) - 1 for launches in bound(sim).values())

    assert 0 < moves(2.0) < moves(60.0) / 2


SHORT = {"hook_s": 0.01, "hold_s": 0.001, "resume_s": 0.001}


def test_where_tickets_can_be_even_for_good_one_job_moves_at_once_and_then_none() -> None:
    """Four jobs are left on one GPU and two on the other: one of the four moves, though a start takes five quanta."""
    sim = HostSim(2, quantum_s=2.0)
    jobs = [sim.job(number, ways=Ways(ready_s=10.0, can_checkpoint=True, **SHORT)) for number in range(1, 9)]
    sim.send()
    sim.quanta(150)
    on_one = [job for job in jobs if bound(sim)[job] == ["1"]]
    assert len(on_one) == 4
    for job in on_one[:2]:
        sim.change(job, cancelled=True)
    sim.send()
    left = [job for job in jobs if job not in on_one[:2]]
    sim.quanta(15)
    assert sum(len(bound(sim)[job]) - 1 for job in left) == 1
    before = {job: sim.gpu_s(job) for job in left}
    sim.quanta(60)
    for job in left:
        assert (sim.gpu_s(job) - before[job]) / 2.0 == pytest.approx(20, abs=1), (
            "of 60 quanta, on 2 GPUs, for 6"
        )
    assert sum(len(bound(sim)[job]) - 1 for job in left) == 1


def test_one_that_makes_tickets_even_goes_where_they_are_fewest_and_not_where_somebody_is_ahead_just_now() -> (
    None
):
    """Two tickets on each GPU are to be had by one move. One that went where least is due now would have to go on from there."""
    sim = HostSim(3, quantum_s=2.0)
    jobs = [
        sim.job(number, tickets=tickets, ways=Ways(ready_s=20.0, can_checkpoint=True, **SHORT))
        for number, tickets in enumerate((2.0, 2.0, 1.0, 1.0, 1.0, 1.0), start=1)
    ]
    two, beside_two, lone, *end = jobs[1], jobs[5], jobs[2], jobs[3], jobs[4]
    sim.send()
    sim.quanta(100)
    assert {job: bound(sim)[job] for job in jobs} == dict(
        zip(jobs, (["0"], ["2"], ["1"], ["1"], ["1"], ["2"]), strict=True)
    )
    for job in end:
        sim.change(job, cancelled=True)
    sim.send()
    sim.quanta(60)
    assert bound(sim)[beside_two] == ["2", "1"]
    before = {job: sim.gpu_s(job) for job in (jobs[0], two, lone, beside_two)}
    sim.quanta(60)
    had = [round((sim.gpu_s(job) - was) / 2.0) for job, was in before.items()]
    assert had == [60, 60, 30, 30], "of 60 quanta"
    assert sum(len(launches) - 1 for launches in bound(sim).values()) == 1


@pytest.mark.parametrize("quantum_s", [2.0, 60.0])
def test_a_gpu_that_stays_idle_is_used_after_as_long_as_two_starts_take(quantum_s: float) -> None:
    sim = HostSim(2, quantum_s=quantum_s)
    jobs = [sim.job(number, ways=Ways(ready_s=20.0, can_checkpoint=True, **SHORT)) for number in range(1, 4)]
    sim.send()
    sim.quanta(150)
    gpus = {job: bound(sim)[job][-1] for job in jobs}
    lone = next(job for job in jobs if list(gpus.values()).count(gpus[job]) == 1)
    sim.change(lone, cancelled=True)
    sim.send()
    sim.run(2 * 20.0 + 3 * quantum_s + 20.0)  # two starts, the edge after them, the job's own start
    left = [job for job in jobs if job != lone]
    before = {job: sim.gpu_s(job) for job in left}
    sim.quanta(20)
    for job in left:
        assert (sim.gpu_s(job) - before[job]) / quantum_s == pytest.approx(20, abs=0.5)


def test_who_is_behind_nobody_goes_to_a_gpu_that_has_been_idle_for_as_long_as_two_starts_take() -> None:
    """It never waits for as long as a start takes, and nobody can make room for it: a gang that cannot move has every other turn."""
    sim = HostSim(3, quantum_s=2.0)

    def job(number: int, gpus: int, tickets: float, *, can_move: bool) -> JobId:
        ways = Ways(ready_s=20.0, can_checkpoint=can_move, **SHORT)
        return sim.job(number, gpus, tickets=tickets, ways=ways)

    gang, ends = job(1, 2, 2.0, can_move=False), job(2, 1, 2.0, can_move=False)
    moves, stays = job(3, 1, 1.0, can_move=True), job(4, 1, 1.0, can_move=False)
    sim.send()
    sim.quanta(100)
    assert bound(sim) == {gang: ["0,1"], ends: ["2"], moves: ["0"], stays: ["1"]}
    sim.change(ends, cancelled=True)
    sim.send()
    sim.run(2 * 20.0)
    assert bound(sim)[moves] == ["0"]
    sim.run(3 * 2.0 + 20.0)  # the edge after them, the job's own start
    assert bound(sim)[moves] == ["0", "2"]
    before = sim.gpu_s(moves)
    sim.quanta(20)
    assert (sim.gpu_s(moves) - before) / 2.0 == pytest.approx(20, abs=0.5)
