"""GangMachine: messages of ranks in, host events out."""

import pytest
from gangsim import CHECKPOINT, HOLD, JOB, SWAP, Gang, kinds

from hs_core.events.host import (
    Checkpoint,
    CheckpointFailed,
    JobCapable,
    JobCheckpointed,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
    Resume,
    SuspendFailed,
)
from hs_core.gang import GangMachine


def test_the_first_hello_says_that_the_job_is_hooked_and_is_welcomed() -> None:
    gang = Gang(2, arrived=False, pace_s=0.25, progress_s=2.0)
    assert kinds(gang.events) == [JobHooked]
    assert gang.newest("welcome")[1] == {
        "type": "welcome",
        "pace_s": 0.25,
        "progress_s": 2.0,
    }


def test_the_job_is_ready_when_every_rank_has_arrived() -> None:
    gang = Gang(2, arrived=False)
    gang.say(0, type="arrived", step=4, can=["hold", "checkpoint"], rank=0, world=2)
    assert JobReady not in kinds(gang.events)
    gang.say(1, type="arrived", step=4, can=["hold", "swap", "checkpoint"], rank=1, world=2)
    assert gang.events[-1] == JobReady(
        now_s=1.0, job=JOB, epoch=1, step=4, can_swap=False, can_checkpoint=True
    )
    assert gang.newest("go") == {}


def test_a_gang_has_no_average_with_copies_where_a_rank_of_it_has_none() -> None:
    gang = Gang(2, arrived=False)
    gang.say(0, type="arrived", step=4, can=["hold", "checkpoint"], rank=0, world=2)
    gang.say(1, type="arrived", step=4, can=["hold", "checkpoint", "single"], rank=1, world=2)
    ready = JobReady(now_s=1.0, job=JOB, epoch=1, step=4, can_checkpoint=True, single=True)
    assert gang.events[-1] == ready


def test_a_launcher_that_never_arrives_is_no_rank() -> None:
    gang = Gang(2, arrived=False)
    gang.hello(0, connection=99, pid=50, world=1)
    for rank in range(2):
        gang.say(rank, type="arrived", step=0, can=["hold"], rank=rank, world=2)
    assert kinds(gang.events)[-1] is JobReady
    gang.suspend()
    assert 99 - 10 not in gang.newest("stop")


def sibling(gang: Gang, connection: int = 50) -> None:
    """Another process that trains, and is no rank of the same gang."""
    gang.hello(0, connection=connection, pid=900 + connection)
    gang.say_on(connection, type="arrived", step=1, can=["hold"], rank=0, world=1)


def test_a_process_that_trains_beside_a_rank_under_its_number_goes_and_waits_with_it() -> None:
    gang = Gang(1, going=False)
    sibling(gang)
    assert 50 - 10 not in gang.newest("go"), "the job's turn has not come"
    gang.order(Resume(job=JOB, epoch=1))
    assert set(gang.newest("go")) == {0, 40}
    gang.say(0, type="going", step=0, seconds=0.0)
    sibling(gang, 51)
    assert gang.newest("go")[41] == {"type": "go"}, "the job is in its turn"


def test_where_several_processes_train_that_are_no_gang_the_hook_cannot_stop_the_job() -> None:
    gang = Gang(1)
    sibling(gang)
    for tier in (HOLD, SWAP):
        gang.suspend(tier)
        assert kinds(gang.events)[-1] is SuspendFailed
        assert "several of its processes train" in gang.events[-1].why
    assert gang.newest("stop") == {}, "whoever stops would not stop the others"
    gang._keep(gang.machine.gone(50, 1.0))
    gang.suspend()
    assert set(gang.newest("stop")) == {0}, "it is alone again"


def test_one_of_several_processes_that_train_counts_when_the_one_that_counted_is_gone() -> None:
    gang = Gang(1)
    sibling(gang)
    gang.say_on(50, type="going", step=1, seconds=0.0)
    gang.say_on(50, type="progress", step=30, seconds=1.0, steps=29, device_bytes=0)
    assert JobProgressed not in kinds(gang.events)
    gang.gone(0)
    gang.say_on(50, type="progress", step=60, seconds=1.0, steps=30, device_bytes=0)
    assert gang.events[-1] == JobProgressed(
        now_s=1.0, job=JOB, epoch=1, step=60, steps_per_s=30.0, device_memory_bytes=0
    )
    gang.suspend()
    assert set(gang.newest("stop")) == {40}


def test_ranks_that_wait_for_one_without_steps_are_let_go_when_the_host_waits_no_longer() -> None:
    gang = Gang(3, arrived=False)
    gang.say(1, type="arrived", step=1, can=["hold"], rank=1, world=3)
    assert gang.newest("go") == {}
    gang.order(Resume(job=JOB, epoch=1))
    assert set(gang.newest("go")) == {1}
    gang.say(2, type="arrived", step=1, can=["hold"], rank=2, world=3)
    assert set(gang.newest("go")) == {1, 2}, "also those that come later"
    for rank in (1, 2):
        gang.say(rank, type="going", step=1, seconds=0.0)
    assert JobReady not in kinds(gang.events), "the hook cannot stop all of it"


def pipeline() -> Gang:
    """Rank 0 has the loader; 1 and 2 wait for what it sends them."""
    gang = Gang(3, arrived=False)
    gang.say(0, type="arrived", step=0, can=["hold", "checkpoint"], rank=0, world=3)
    gang.say(1, type="blocked", on=True, rank=1, world=3)
    return gang


def test_a_job_is_ready_where_all_who_have_not_come_are_in_calls_to_those_who_wait() -> None:
    gang = pipeline()
    assert JobReady not in kinds(gang.events)
    gang.say(2, type="blocked", on=True, rank=2, world=3)
    ready = gang.events[-1]
    assert isinstance(ready, JobReady)
    assert not ready.can_checkpoint
    gang.order(Resume(job=JOB, epoch=1))
    assert gang.newest("go").keys() == {0}
    gang.say(0, type="going", step=0, seconds=0.0)
    for rank in (1, 2):
        gang.say(rank, type="arrived", step=1, can=["hold", "checkpoint"], rank=rank, world=3)
    answered = 1
    while len(gos := [told for told, message in gang.told if message["type"] == "go"]) > answered:
        gang.say_on(gos[answered], type="going", step=1, seconds=0.0)
        answered += 1
    assert {JobWentOn, JobCapable} <= set(kinds(gang.events))
    gang.forget()
    gang.suspend()
    gang.agree()


def test_one_that_comes_out_of_its_call_is_waited_for() -> None:
    gang = pipeline()
    gang.say(1, type="blocked", on=False, rank=1, world=3)
    gang.say(2, type="blocked", on=True, rank=2, world=3)
    assert JobReady not in kinds(gang.events)


def test_a_gang_that_stands_in_part_is_held_and_one_that_trains_in_part_cannot_be_stopped_by_the_hook() -> (
    None
):
    gang = pipeline()
    gang.say(2, type="blocked", on=True, rank=2, world=3)
    gang.suspend()
    assert kinds(gang.events)[-2:] == [JobReady, JobHeld]
    gang.order(Resume(job=JOB, epoch=1))
    gang.say(0, type="going", step=0, seconds=0.0)
    gang.suspend()
    assert isinstance(gang.events[-1], SuspendFailed)


def test_a_step_counts_though_nobody_has_measured_how_long_it_took() -> None:
    gang = Gang(1)
    gang.say(0, type="progress", step=1, seconds=0.0, steps=0, device_bytes=0)
    assert gang.events[-1] == JobProgressed(
        now_s=1.0, job=JOB, epoch=1, step=1, steps_per_s=0.0, device_memory_bytes=0
    )


def test_all_ranks_are_asked_for_one_step_ahead_of_the_newest() -> None:
    gang = Gang(2, margin=3)
    gang.say(1, type="progress", step=40, seconds=1.0, steps=40, device_bytes=1)
    gang.suspend(SWAP)
    assert {m["at_step"] for m in gang.newest("stop").values()} == {43}
    assert gang.agree() == 43
    gang.held(0, 43, "swap")
    assert JobHeld not in kinds(gang.events)
    gang.held(1, 43, "swap")
    assert gang.events[-1] == JobHeld(now_s=1.0, job=JOB, epoch=1, step=43, tier=SWAP, parked_bytes=10)


def test_a_reject_raises_the_proposal_for_everybody_to_one_step_ahead_of_it() -> None:
    gang = Gang(2)
    gang.suspend()
    first = gang.newest("stop")[0]
    gang.say(0, type="accept", id=first["id"], at_step=first["at_step"], step=0)
    gang.say(1, type="reject", id=first["id"], at_step=first["at_step"], step=30)
    assert {m["at_step"] for m in gang.newest("stop").values()} == {31}
    gang.say(1, type="accept", id=first["id"], at_step=31, step=30)
    assert gang.newest("commit") == {}, "an accept of the lower proposal must not count for the higher one"
    gang.say(0, type="accept", id=first["id"], at_step=31, step=2)
    assert set(gang.newest("commit")) == {0, 1}


def test_ranks_that_outrun_the_proposals_are_asked_further_and_further_ahead() -> None:
    gang = Gang(2)
    gang.suspend()
    asked = []
    for step in (30, 40, 50, 60):
        at_step = gang.newest("stop")[0]["at_step"]
        gang.say(1, type="reject", id=1, at_step=at_step, step=step)
        asked.append(gang.newest("stop")[0]["at_step"] - step)
    assert asked == [1, 2, 4, 8]


def test_a_late_reject_of_a_lower_proposal_changes_nothing() -> None:
    gang = Gang(2)
    gang.suspend()
    first = gang.newest("stop")[0]
    gang.say(1, type="reject", id=first["id"], at_step=first["at_step"], step=30)
    gang.forget()
    gang.say(0, type="reject", id=first["id"], at_step=first["at_step"], step=31)
    assert gang.told == []


def test_a_resume_before_the_commit_lets_all_go_on() -> None:
    gang = Gang(2)
    gang.suspend()
    gang.forget()
    gang.order(Resume(job=JOB, epoch=1))
    assert gang.newest("go") == {0: {"type": "go"}, 1: {"type": "go"}}
    for rank in range(2):
        gang.say(rank, type="going", step=3, seconds=0.0)
    assert kinds(gang.events) == [JobWentOn]


def test_a_resume_after_the_commit_lets_go_who_stands_though_others_never_get_to_that_step() -> None:
    """As ranks that have run out of data, and take part in the collectives of those that have not."""
    gang = Gang(2)
    gang.suspend()
    gang.held(0, gang.agree())
    gang.forget()
    gang.order(Resume(job=JOB, epoch=1))
    assert gang.newest("go") == {0: {"type": "go"}, 1: {"type": "go"}}
    for rank in range(2):
        gang.say(rank, type="going", step=1 - rank, seconds=0.0)
    assert kinds(gang.events) == [JobWentOn]


def test_a_checkpoint_that_not_all_ranks_get_to_is_given_up_when_the_job_is_to_go_on() -> None:
    gang = Gang(2)
    gang.suspend(CHECKPOINT)
    at = gang.agree()
    gang.say(0, type="progress", step=at, steps=at, seconds=1.0)
    gang.forget()
    gang.order(Resume(job=JOB, epoch=1))
    stop = gang.machine._last_id
    assert gang.newest("drop") == {rank: {"type": "drop", "id": stop} for rank in range(2)}
    assert gang.newest("go") == {0: {"type": "go"}, 1: {"type": "go"}}
    gang.say(0, type="failed", id=stop, what="checkpoint", why="another rank could not write its part")
    for rank in range(2):
        gang.say(rank, type="going", step=at - rank, seconds=0.0)
    assert CheckpointFailed in kinds(gang.events)
    assert kinds(gang.events)[-1] is JobWentOn


def test_a_resume_after_the_commit_of_a_checkpoint_waits_where_all_are_there_and_write() -> None:
    gang = Gang(2)
    gang.suspend(CHECKPOINT)
    at = gang.agree()
    for rank in range(2):
        gang.say(rank, type="progress", step=at, steps=at, seconds=1.0)
    gang.forget()
    gang.order(Resume(job=JOB, epoch=1))
    assert gang.told == []
    for rank in range(2):
        gang.held(rank, at, "checkpoint", generation=0, id=gang.machine._last_id)
    assert set(gang.newest("leave")) == {0, 1}


def test_a_rank_alone_is_not_asked_first_and_can_be_called_back() -> None:
    gang = Gang(1)
    gang.forget()
    gang.suspend()
    assert [message["type"] for _, message in gang.told] == ["stop", "commit"]
    gang.order(Resume(job=JOB, epoch=1))
    assert gang.newest("go") == {0: {"type": "go"}}
    gang.held(0, 5)
    gang.say(0, type="going", step=5, seconds=0.0)
    assert kinds(gang.events) == [JobWentOn]


def test_a_held_gang_is_taken_to_the_next_tier_where_it_stands() -> None:
    gang = Gang(2)
    gang.suspend()
    at = gang.agree()
    for rank in range(2):
        gang.held(rank, at)
    gang.forget()
    gang.suspend(SWAP)
    assert {m["at_step"] for m in gang.newest("stop").values()} == {at}
    gang.agree()
    for rank in range(2):
        gang.held(rank, at, "swap")
    assert [e.tier for e in gang.events] == [SWAP]


def test_a_rank_that_could_not_swap_leaves_the_job_held_in_place() -> None:
    gang = Gang(2)
    gang.suspend(SWAP)
    at = gang.agree()
    gang.say(0, type="failed", id=1, what="swap", why="no host memory")
    gang.held(0, at, "hold")
    gang.held(1, at, "swap")
    assert gang.events[-1].tier is HOLD
    assert gang.events[-1].parked_bytes == 5


def test_a_checkpoint_on_the_way_out_is_told_and_all_leave_together_the_launcher_first() -> None:
    gang = Gang(2)
    gang.hello(0, connection=99, pid=50, world=1)
    gang.suspend(CHECKPOINT)
    assert gang.newest("stop")[0]["generation"] == 0
    at = gang.agree()
    gang.held(0, at, "checkpoint", generation=0, digest="x")
    gang.held(1, at, "checkpoint", generation=0, digest="y")
    assert kinds(gang.events)[-2:] == [JobCheckpointed, JobHeld]
    assert gang.events[-1].tier is CHECKPOINT
    assert gang.events[-1].generation == 0
    assert [connection for connection, m in gang.told if m["type"] == "leave"] == [99, 10, 11]
    gang.gone(0)
    gang.gone(1)
    assert kinds(gang.events)[-1] is JobHeld, "leaving is what was asked for"


def test_a_rank_that_is_durable_and_gone_early_still_counts() -> None:
    gang = Gang(2)
    gang.suspend(CHECKPOINT)
    at = gang.agree()
    gang.held(0, at, "checkpoint", generation=0, digest="x")
    gang.gone(0)
    gang.held(1, at, "checkpoint", generation=0, digest="y")
    assert kinds(gang.events)[-1] is JobHeld


def test_a_failed_checkpoint_lets_the_job_go_on_and_drops_it_everywhere() -> None:
    gang = Gang(2)
    gang.suspend(CHECKPOINT)
    gang.agree()
    gang.say(1, type="failed", id=1, what="checkpoint", why="No space left on device")
    assert kinds(gang.events)[-2:] == [CheckpointFailed, SuspendFailed]
    assert gang.events[-2].why == "No space left on device"
    assert set(gang.newest("drop")) == {0, 1}
    gang.order(Checkpoint(job=JOB, epoch=1))
    assert gang.newest("save")[0]["generation"] == 1, "a number is used once"


def test_a_save_is_told_when_every_rank_has_saved() -> None:
    gang = Gang(2)
    gang.order(Checkpoint(job=JOB, epoch=1))
    at = gang.agree("save")
    gang.say(0, type="saved", id=1, step=at, generation=0, digest="x")
    gang.say(1, type="saved", id=1, step=at, generation=0, digest="y")
    assert gang.events[-1] == JobCheckpointed(now_s=1.0, job=JOB, epoch=1, step=at, generation=0)


def test_a_suspend_during_a_save_follows_it() -> None:
    gang = Gang(1)
    gang.order(Checkpoint(job=JOB, epoch=1))
    gang.suspend()
    assert gang.newest("stop") == {}
    gang.say(0, type="saved", id=1, step=5, generation=0, digest="x")
    assert set(gang.newest("stop")) == {0}


def test_a_rank_that_leaves_before_the_stop_ends_it_and_frees_the_others() -> None:
    gang = Gang(2)
    gang.suspend()
    at = gang.agree()
    gang.held(0, at)
    gang.forget()
    gang.gone(1)
    assert kinds(gang.events) == [SuspendFailed]
    assert gang.newest("go") == {0: {"type": "go"}}
    assert gang.newest("drop") == {0: {"type": "drop", "id": 1}}


def test_suspending_a_job_that_waits_to_be_let_go_is_done_at_once() -> None:
    gang = Gang(2, going=False)
    gang.suspend()
    assert kinds(gang.events)[-1] is JobHeld
    gang.order(Resume(job=JOB, epoch=1))
    assert set(gang.newest("go")) == {0, 1}


def test_a_suspend_before_all_arrived_is_done_when_they_have() -> None:
    gang = Gang(2, arrived=False)
    gang.suspend()
    for rank in range(2):
        gang.say(rank, type="arrived", step=0, can=["hold"], rank=rank, world=2)
    assert kinds(gang.events) == [JobHooked, JobReady, JobHeld]
    assert gang.newest("go") == {}


@pytest.mark.parametrize("state", ["held", "running"])
def test_a_new_machine_learns_how_the_job_stands_from_its_hellos(state: str) -> None:
    gang = Gang(2, arrived=False)
    gang.forget()
    gang.machine = GangMachine(JOB, 1)
    gang.hello(0, state=state, step=8, id=9)
    assert kinds(gang.events) == [JobHooked]
    gang.hello(1, state=state, step=8, id=9)
    assert gang.events[-1].step == 8
    assert type(gang.events[-1]) is (JobHeld if state == "held" else JobWentOn)
    told = len(gang.events)
    gang.hello(1, state=state, step=8, id=9)
    assert not [e for e in gang.events[told:] if type(e) not in (JobHeld, JobWentOn)]
    gang.suspend(SWAP)
    assert gang.newest("stop")[0]["id"] == 10, "no number that the machine before may have used"


def test_ranks_that_wrote_their_checkpoint_while_no_agent_was_there_leave_with_it() -> None:
    gang = Gang(2, arrived=False)
    gang.machine = GangMachine(JOB, 1)
    gang.forget()
    gang.suspend(CHECKPOINT)
    gang.hello(0, connection=99, pid=50, world=1)
    gang.hello(0, state="held", step=8, id=9, tier="checkpoint", generation=3)
    gang.held(0, 8, "checkpoint", id=9, generation=3, digest="x")
    assert not [message for _, message in gang.told if message["type"] in ("go", "leave", "stop")]
    gang.hello(1, state="held", step=8, id=9, tier="checkpoint", generation=3)
    gang.held(1, 8, "checkpoint", id=9, generation=3, digest="y")
    assert [connection for connection, m in gang.told if m["type"] == "leave"] == [99, 10, 11]
    assert kinds(gang.events) == [JobHooked, JobCheckpointed, JobHeld]
    assert (gang.events[-1].tier, gang.events[-1].step, gang.events[-1].generation) == (CHECKPOINT, 8, 3)


def test_ranks_that_are_still_writing_when_an_agent_comes_back_leave_with_what_they_wrote() -> None:
    gang = Gang(2, arrived=False)
    gang.machine = GangMachine(JOB, 1)
    gang.forget()
    for rank in range(2):
        gang.hello(rank, state="running", step=8, id=9, generation=3)
    gang.suspend(CHECKPOINT)
    assert gang.newest("stop")[0]["generation"] == 4
    for rank in range(2):
        gang.held(rank, 8, "checkpoint", id=9, generation=3, digest="x")
    assert gang.newest("go") == {}, "they hear nothing more"
    assert set(gang.newest("leave")) == {0, 1}
    assert (gang.events[-1].tier, gang.events[-1].generation) == (CHECKPOINT, 3)


def test_a_gang_that_was_left_half_held_is_let_go_whole() -> None:
    gang = Gang(2, arrived=False)
    gang.forget()
    gang.machine = GangMachine(JOB, 1)
    gang.hello(0, state="held", step=8)
    gang.hello(1, state="running", step=8)
    assert gang.newest("go") == {0: {"type": "go"}}
    gang.say(0, type="going", step=8, seconds=0.0)
    assert kinds(gang.events)[-1] is JobWentOn


def test_a_copy_that_did_its_portion_while_no_agent_was_there_says_so_again_when_it_is_let_go() -> None:
    """Its host had let it go, and repeats that; the simulator's processes answer alike."""
    gang = Gang(1, arrived=False)
    gang.machine = GangMachine(JOB, 1, last_step=8)
    gang.forget()
    gang.order(Resume(job=JOB, epoch=1, order=4))
    gang.hello(0, state="held", step=8, id=9)
    assert kinds(gang.events) == [JobHooked, JobCapable, JobHeld]
    assert gang.newest("go") == {0: {"type": "go"}}
    gang.say(0, type="going", step=8, seconds=0.0)
    portion = {"step": 8, "tier": "hold", "bytes": 0, "seconds": 0.0, "portion": True}
    gang.say(0, type="held", id=9, **portion)
    assert kinds(gang.events[3:]) == [JobWentOn, JobHeld]
    assert [event.step for event in gang.events[2:]] == [8, 8, 8]


def test_a_stop_of_the_agent_before_that_comes_true_late_is_taken_back() -> None:
    gang = Gang(2, arrived=False)
    gang.machine = GangMachine(JOB, 1)
    for rank in range(2):
        gang.hello(rank, state="running", step=8, id=4)
    gang.suspend()
    before = gang.newest("stop")[0]["at_step"]
    gang.say(0, type="held", id=4, step=9, tier="hold", bytes=0, seconds=0.0)
    assert gang.newest("go") == {0: {"type": "go"}}
    assert gang.newest("stop")[0]["at_step"] > before


def test_a_process_that_starts_in_the_jobs_turn_is_let_go_at_once() -> None:
    gang = Gang(1)
    gang.gone(0)
    gang.forget()
    gang.hello(0, connection=20, pid=777)
    gang.say_on(20, type="arrived", step=0, can=["hold"], rank=0, world=1)
    assert gang.newest("go") == {10: {"type": "go"}}


def test_progress_is_summed_up_over_ranks() -> None:
    gang = Gang(2)
    gang.say(1, type="progress", step=9, seconds=1.0, steps=9, device_bytes=700)
    assert JobProgressed not in kinds(gang.events)
    gang.say(0, type="progress", step=10, seconds=2.0, steps=10, device_bytes=300)
    assert gang.events[-1] == JobProgressed(
        now_s=1.0, job=JOB, epoch=1, step=9, steps_per_s=5.0, device_memory_bytes=700
    )


def test_the_step_that_the_slowest_rank_says_last_is_told() -> None:
    """It may be the last one that is said at all."""
    gang = Gang(2)
    gang.say(0, type="progress", step=10, seconds=2.0, steps=10, device_bytes=300)
    assert gang.events[-1].step == 0
    gang.say(1, type="progress", step=10, seconds=1.0, steps=9, device_bytes=700)
    assert gang.events[-1] == JobProgressed(
        now_s=1.0, job=JOB, epoch=1, step=10, steps_per_s=5.0, device_memory_bytes=700
    )


def test_a_noise_scale_comes_with_progress_and_one_that_is_none_is_left_out() -> None:
    gang = Gang(1)
    progress = {"type": "progress", "step": 9, "seconds": 1.0, "steps": 9, "device_bytes": 0}
    gang.say(0, **progress, noise_scale=812.5, noise_samples=60)
    told = gang.events[-1]
    assert isinstance(told, JobProgressed)
    assert (told.noise_scale, told.noise_samples) == (812.5, 60)
    before = gang.machine.malformed
    for scale in (-1.0, "much", True, float("inf"), float("nan")):
        gang.say(0, **progress, noise_scale=scale, noise_samples=60)
    gang.say(0, **progress, noise_scale=1.0, noise_samples=-1)
    assert gang.machine.malformed == before + 6
    gang.say(0, **progress, noise_scale=1e30, noise_samples=60)  # of gradients that all but vanish
    assert gang.events[-1].noise_scale == 1e15


def test_a_restore_is_told_once_with_what_was_torn() -> None:
    gang = Gang(2, arrived=False)
    gang.forget()
    for rank in range(2):
        gang.say(rank, type="restored", step=12, generation=3, note="generation 4: torn", rank=rank, world=2)
    assert gang.events == [
        JobRestored(now_s=1.0, job=JOB, epoch=1, step=12, generation=3, note="generation 4: torn")
    ]


def test_what_a_rank_says_to_people_is_text_that_goes_over_any_wire() -> None:
    """Halves of surrogate pairs are what Python makes of bytes in a path that are no UTF-8."""
    gang = Gang(2, arrived=False)
    gang.forget()
    for rank, note in enumerate(("torn: \udcff", "x" * 60_000)):
        gang.say(rank, type="restored", step=12, generation=3, note=note, rank=rank, world=2)
    gang.say(0, type="arrived", step=0, can=["hold"])
    gang.say(1, type="arrived", step=0, can=["hold"])
    gang.say(0, type="failed", id=1, what="checkpoint", why="disk \ud800 full" + "x" * 60_000)
    restored, ready, failed = gang.events
    assert isinstance(ready, JobReady)
    assert restored.note.startswith("torn: ?; xxx")
    assert failed.why.startswith("disk ? full")
    assert [len(restored.note), len(failed.why)] == [1000, 1000]


def test_a_change_of_what_the_job_can_is_told_when_all_ranks_can() -> None:
    gang = Gang(2)
    gang.forget()
    gang.say(0, type="can", can=["hold", "swap", "checkpoint"])
    assert gang.events == []
    gang.say(1, type="can", can=["hold", "swap", "checkpoint"])
    assert gang.events == [JobCapable(now_s=1.0, job=JOB, epoch=1, can_swap=True, can_checkpoint=True)]
