"""A job comes from another host, or leaves for another."""

from dataclasses import replace
from itertools import pairwise

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.events.host import CheckpointFetched, JobProgressed, JobRestored, Lack, NothingFetched
from hs_core.forms import Shape
from hs_core.host import HostConfig
from hs_core.model import SuspendMode
from hs_core.names import HostName, JobId
from hs_core.reports import Phase
from hs_core.wanted import NOBODY, Peer, Source

ONE, TWO = JobId(1), JobId(2)


# --- leaving


def told_to_leave(ways: Ways, mode: SuspendMode = SuspendMode.AUTO) -> HostSim:
    """Job 1 alone on a GPU, up for a while."""
    sim = HostSim(1)
    sim.job(1, ways=ways, mode=mode)
    sim.send()
    sim.run(40.0)
    sim.change(ONE, leave=True)
    sim.send()
    return sim


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


# --- coming


def test_a_job_that_comes_with_a_checkpoint_elsewhere_starts_from_it() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 4), ways=Ways(fetch_s=5.0))
    sim.send()
    report = sim.machine.report(ONE)
    assert (report.phase, report.note) == (Phase.WAITING, "waits for checkpoint 4 from v9")
    sim.run(4.0)
    assert sim.ordered("launch") == []
    sim.run(2.0)
    assert sim.ordered("launch") == ["launch 1 on 0 from generation 4"]
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
    assert sim.ordered("launch") == ["launch 1 on 0 from generation 0"]


@pytest.mark.parametrize(("lack", "tries"), [(Lack.GONE, 5), (Lack.DAMAGED, 2)])
def test_a_checkpoint_that_is_gone_or_torn_where_it_lies_is_given_up_with_the_reason(
    lack: Lack, tries: int
) -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=0.0, fetch_fails=99, lack=lack))
    sim.send()
    sim.run(400.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * tries
    report = sim.machine.report(ONE)
    assert report.phase is Phase.EXITED
    assert report.exit is not None
    assert "cannot fetch checkpoint 0 from" in report.exit.why
    assert f"v9 does not answer; tried {tries} times" in report.exit.why


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
    assert sim.ordered("fetch") == []
    assert sim.ordered("launch")[-1] == "launch 1 on 0 from generation 0"


@pytest.mark.parametrize("peer", [NOBODY, Peer(host=HostName("v1"), address="10.0.0.1:7444")])
def test_where_its_checkpoint_is_sought_in_a_folder_what_is_known_here_of_the_incarnation_before_says_nothing(
    peer: Peer,
) -> None:
    """Another server has written there since, perhaps, and let go of that."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True, fetch_s=1.0))
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    here = sim.machine.report(ONE)
    known = sim.source(here.checkpoint_step, here.checkpoint_generation)
    sim.change(ONE, leave=False, epoch=3, source=replace(known, peer=peer, look=peer != NOBODY))
    sim.send()
    assert sim.machine.report(ONE).checkpoint_generation == -1
    sim.run(5.0)
    assert sim.ordered("fetch", "launch")[-2:] == ["fetch 1", "launch 1 on 0 from generation 0"]


def test_one_of_which_no_checkpoint_was_ever_heard_begins_afresh_once_none_was_found() -> None:
    sim = HostSim(1)
    anything = replace(sim.source(0, 0), peer=NOBODY)
    sim.job(1, epoch=2, source=anything, ways=Ways(fetch_s=1e6))
    sim.send()
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"], "it is waited for"
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=-1, step=0))
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "launch 1 on 0"]
    assert "no checkpoint was found" in [fact.text for fact in sim.machine.story]


@pytest.mark.parametrize("found", [3, -1])
def test_one_that_ran_before_and_of_which_nothing_is_remembered_is_looked_for_in_its_folder(
    found: int,
) -> None:
    """What its agent knew may have been lost: of its checkpoint, which is here or nowhere, the controller says nothing then."""
    sim = HostSim(1)
    sim.job(1, epoch=2, ways=Ways(fetch_s=1e6))
    sim.change(ONE, restarts=1)
    sim.send()
    assert sim.machine.report(ONE).note == "waits for any checkpoint in its folder"
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"], "it is waited for"
    sim.kill_agent()
    sim.start_agent()
    sim.send()
    sim.run(1.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * 2, "asked again by the next agent"
    sim.generations[ONE] = found
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=found, step=max(0, 100 * found)))
    sim.run(5.0)
    began = "launch 1 on 0 from generation 3" if found >= 0 else "launch 1 on 0"
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * 2 + [began]


def test_one_of_which_none_was_found_and_that_has_not_begun_fetches_what_turns_up_elsewhere_even_of_step_0() -> (
    None
):
    sim = HostSim(1)
    sim.job(1, epoch=2, source=replace(sim.source(0, 0), peer=NOBODY), ways=Ways(fetch_s=1e6))
    sim.change(ONE, hold=True)
    sim.send()
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=-1, step=0))
    sim.change(ONE, hold=False, source=sim.source(0, 0))
    sim.send()
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "fetch 1"]
    sim.generations[ONE] = 0
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=0, step=0))
    sim.run(5.0)
    assert sim.ordered("launch") == ["launch 1 on 0 from generation 0"]


def test_those_of_whom_nothing_was_found_are_told_together_and_begin() -> None:
    sim = HostSim(2)
    for number in (1, 2):
        sim.job(number, epoch=2, ways=Ways(fetch_s=1e6))
        sim.change(JobId(number), restarts=1)
    sim.send()
    sim.tell(NothingFetched(now_s=sim.now_s, jobs=((JobId(1), 2), (JobId(2), 1), (JobId(3), 2))))
    sim.run(5.0)
    assert sim.ordered("launch") == ["launch 1 on 0"], "the other is of another incarnation"
    assert sim.machine.report(JobId(2)).note == "waits for any checkpoint in its folder"
    sim.tell(NothingFetched(now_s=sim.now_s, jobs=((JobId(2), 2),)))
    sim.run(5.0)
    assert sim.ordered("launch") == ["launch 1 on 0", "launch 2 on 1"]


def test_one_whose_last_incarnation_is_remembered_here_is_not_looked_for() -> None:
    sim = HostSim(1)
    sim.job(1)
    sim.send()
    sim.run(5.0)
    sim.change(ONE, epoch=2, restarts=1)
    sim.send()
    sim.run(30.0)
    assert sim.ordered("fetch", "launch") == ["launch 1 on 0"] * 2


@pytest.mark.parametrize("came", [False, True])
def test_one_that_is_to_begin_without_what_it_could_not_fetch_is_looked_for_first(came: bool) -> None:
    """An incarnation before that, a copy perhaps, may have left something here; what was fetched is known to be here."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(fetch_s=1.0 if came else 1e6))
    sim.change(ONE, epoch=2, restarts=1, source=sim.source(700, 4))
    sim.send()
    sim.run(1.5)
    sim.change(ONE, epoch=3, restarts=2, source=None)
    sim.send()
    sim.run(30.0)
    looked = sim.fetches[-1] == Source(peer=NOBODY, epoch=3, generation=0, step=0)
    assert looked != came


ALONE, ONE_OF_TWO = Shape(gpus=1, per_gpu=8), Shape(gpus=2, per_gpu=8, nodes=2)


def test_what_was_fetched_as_one_part_of_two_is_fetched_anew_for_all_of_the_job() -> None:
    """Each part has files of its own."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(fetch_s=1.0))
    sim.change(ONE, epoch=2, source=sim.source(700, 4), shape=ONE_OF_TWO, node_rank=1)
    sim.send()
    sim.run(5.0)
    assert sim.machine.report(ONE).checkpoint_generation == 4
    sim.change(ONE, epoch=3, shape=ALONE, node_rank=0)
    sim.send()
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "fetch 1", "launch 1 on 0 from generation 4"]


def wrote_here_alone(fetch_s: float) -> HostSim:
    """What job 1 wrote is lent."""
    sim = HostSim(1)
    sim.job(1, rendezvous="a:1", ways=Ways(can_checkpoint=True, fetch_s=fetch_s))
    sim.change(ONE, shape=ALONE)
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    assert sim.machine.report(ONE).phase is Phase.CHECKPOINTED
    sim.lend(ONE, epoch=1)
    return sim


def assert_goes_on_from_that(sim: HostSim) -> None:
    sim.lends = ()
    sim.change(ONE, epoch=3, source=None, shape=ALONE, node_rank=0)
    sim.send()
    sim.run(5.0)
    assert sim.ordered("launch")[-1] == "launch 1 on 0 from generation 0"
    assert sim.machine.report(ONE).epoch == 3


@pytest.mark.parametrize("fetch_s", [1e6, 1.0])
def test_what_a_job_wrote_here_alone_is_not_forgotten_over_a_part_of_it_that_did_not_go_on(
    fetch_s: float,
) -> None:
    """It has no process yet, or one that is ended first."""
    sim = wrote_here_alone(fetch_s)
    here = sim.machine.report(ONE)
    source = sim.source(here.checkpoint_step, here.checkpoint_generation)
    sim.change(ONE, leave=False, epoch=2, source=source, shape=ONE_OF_TWO, node_rank=1)
    sim.send()
    sim.run(2.0)
    assert_goes_on_from_that(sim)


def test_what_is_lent_is_still_known_after_a_part_of_the_job_was_to_be_here_and_was_not() -> None:
    sim = wrote_here_alone(fetch_s=1e6)
    sim.change(ONE, leave=False, epoch=2, source=sim.source(700, 0), shape=ONE_OF_TWO, node_rank=1)
    sim.send()
    elsewhere = sim.wanted.pop(ONE)
    sim.send()
    sim.wanted[ONE] = elsewhere
    assert_goes_on_from_that(sim)


def test_another_source_is_fetched_from_at_once() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 1), ways=Ways(fetch_s=1e6))
    sim.send()
    sim.change(ONE, source=sim.source(800, 2))
    sim.send()
    assert sim.ordered("fetch") == ["fetch 1", "fetch 1"]


def test_a_fetch_is_ordered_again_by_an_agent_that_restarts() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=3.0))
    sim.send()
    sim.run(1.0)
    sim.kill_agent()
    sim._heap.clear()
    sim.start_agent()
    sim.run(4.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "fetch 1", "launch 1 on 0 from generation 0"]


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
    assert sim.ordered("forget") == []
    sim.lends = ()
    sim.send()
    sim.send()
    assert sim.ordered("forget") == ["forget 1"]


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
    assert sim.ordered("forget") == []
    sim.lends = ()
    sim.send()
    assert sim.ordered("forget") == ["forget 1"]
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
    assert sim.ordered("launch 1") == ["launch 1 on 0", "launch 1 on 0,1,2,3 from generation 0"]
    assert (len(report.gpus), report.step > step > 0) == (4, True)
    assert report.gpu_s == pytest.approx(4 * report.run_s)
    assert report.run_s > 60.0


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


def test_a_process_that_finds_its_checkpoint_torn_is_told_of_and_what_it_writes_next_counts() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True, rotten=True))
    sim.run(5.0)
    written = sim.machine.report(ONE)
    assert (written.phase, written.checkpoint_generation, written.fallbacks) == (Phase.CHECKPOINTED, 0, 0)
    sim.change(ONE, leave=False, epoch=2)
    sim.send()
    sim.run(5.0)
    torn = sim.machine.report(ONE)
    assert (torn.phase, torn.checkpoint_generation, torn.checkpoint_step) == (Phase.RUNNING, -1, 0)
    assert torn.fallbacks == 1
    assert torn.note == "generation 0: torn; no valid checkpoint: started afresh"
    told = [fact.text for fact in sim.machine.story if fact.kind == "fell-back"]
    assert told == [f"{torn.note}; it goes on from step 0"]
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    again = sim.machine.report(ONE)
    assert again.phase is Phase.CHECKPOINTED
    assert 0 < again.checkpoint_step < written.checkpoint_step
    assert (again.fallback_why, again.began_step) == (torn.note, 0), "though a later one was written since"


def test_work_that_is_done_again_twice_counts_as_lost_twice_and_no_more() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True, rotten=True))
    for _ in range(2):
        sim.run(5.0)
        written = sim.machine.report(ONE)
        assert written.phase is Phase.CHECKPOINTED
        sim.change(ONE, leave=False)
        sim.send()
        sim.run(5.0)
        torn = sim.machine.report(ONE)
        assert (torn.phase, torn.checkpoint_step) == (Phase.RUNNING, 0)
        assert written.gpu_s - 1e-9 <= torn.lost_gpu_s < torn.gpu_s
        sim.run(20.0)
        sim.change(ONE, leave=True)
        sim.send()


def test_work_since_an_older_checkpoint_is_lost_as_a_part_of_what_this_epoch_has_done() -> None:
    """And not of all steps since the job began: these were of earlier epochs, whose GPU-seconds the host does not have."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.tell(JobRestored(now_s=sim.now_s, job=ONE, epoch=1, step=1000, generation=3))
    sim.run(30.0)
    progressed = JobProgressed(
        now_s=sim.now_s, job=ONE, epoch=1, step=1100, steps_per_s=4.0, device_memory_bytes=0
    )
    sim.tell(progressed)
    sim.tell(JobRestored(now_s=sim.now_s, job=ONE, epoch=1, step=1050, generation=2, note="3: torn"))
    report = sim.machine.report(ONE)
    assert report.gpu_s > 20.0
    assert report.lost_gpu_s == pytest.approx(report.gpu_s / 2)
