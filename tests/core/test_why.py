"""Why a job is where it is, in words: what stands in its way on its server."""

from dataclasses import replace
from fractions import Fraction

import pytest

from hs_core.cluster import Reason, Settings
from hs_core.cluster.harness import World, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.events.cluster import PolicySet
from hs_core.names import JobId, UserName
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict

SETTINGS = Settings(quantum_s=10.0, settle_s=0.0)


def world(policy: Policy | None = None, settings: Settings = SETTINGS) -> World:
    made = World(policy or plain_policy(), settings)
    made.do("user alice")
    made.do("host n1 V100:4")
    return made


def test_one_that_its_server_has_no_memory_for_is_told_so_and_that_shares_alone_say_too_little() -> None:
    at = world()
    at.do("submit alice a gpus=4 count=2")
    at.do("report n1 1:0=running 2:0=held")
    assert at.machine.why(JobId(2), 0.0).text.endswith("next turn in about 10 s")
    at.do("report n1 2:0=waiting note=waits_for_host_memory_of_its_server")
    at.do("report n1 2:0=checkpointed step=5 checkpoint_step=5 note=waits_for_host_memory_of_its_server")
    why = at.machine.why(JobId(2), 0.0)
    assert why.reason is Reason.WAITING_FOR_TURN
    assert why.text.endswith("next turn in about 10 s, or later: it waits for host memory of its server")
    at.do("report n1 2:0=waiting checkpoint_step=-1 note=")
    assert at.machine.why(JobId(2), 0.0).text.endswith("next turn in about 10 s")


def test_one_that_waits_far_longer_than_its_share_makes_is_not_told_again_and_again_that_its_turn_is_next() -> (
    None
):
    """Who had more than its share, on a GPU that nobody else could have, say, lets the others go first."""
    at = world()
    at.do("submit alice a gpus=4 count=3")
    at.do("report n1 1:0=running 2:0=held 3:0=held")
    waits = {now_s: at.machine.why(JobId(2), now_s) for now_s in (5.0, 25.0, 39.0, 40.0, 95.0)}
    assert [why.expected_wait_s for why in waits.values()] == [15.0, 5.0, 1.0, -1.0, -1.0]
    assert waits[39.0].text.endswith(
        "it runs in 1 of 3 quanta; unless jobs come or go, next turn in about 1 s"
    )
    assert waits[95.0].text.endswith(
        "so it runs in 1 of 3 quanta; it has waited for 95 s, longer than that,"
        " as others there have had less of their shares: when its turn comes is not known"
    )
    other = world()
    for line in ("submit alice a gpus=4 count=3", "report n1 1:0=running 2:0=held 3:0=held"):
        other.do(line)
    other.handle(PolicySet(now_s=95.0, name="gandiva-fair", by=UserName("root")))
    assert "longer than that" not in other.machine.why(JobId(2), 96.0).text, "what was under another policy"
    at.do("report n1 2:0=waiting note=waits_for_host_memory_of_its_server")
    assert at.machine.why(JobId(2), 95.0).text.endswith(
        "longer than that, as it waits for host memory of its server: when its turn comes is not known"
    )


@pytest.mark.parametrize("migrate", ["auto", "never"])
def test_one_whose_user_has_no_share_where_it_lives_is_told_so_and_not_that_its_turn_is_in_hours(
    migrate: str,
) -> None:
    """It has just moved there, say, and stays for a while: its user's share is of other GPUs by now."""
    fair = find("gandiva-fair")

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = fair.decide(snapshot, memory)
        little = {job: Fraction(1, 500) for job in verdict.plan.tickets if job == JobId(2)}
        tickets = {**verdict.plan.tickets, **little}
        entitled = {(UserName("bob"), "V100"): Fraction(4)}
        return replace(verdict, plan=replace(verdict.plan, tickets=tickets), entitled=entitled, sequel=None)

    at = world(policy=replace(fair, decide=decide))
    at.do("user bob")
    at.do("submit bob b gpus=4")
    at.do(f"submit alice a gpus=4 migrate={migrate}")
    at.do("report n1 1:0=running 2:0=held run_s=5 suspends=1")
    why = at.machine.why(JobId(2), 1.0)
    moved = ", until it is moved to where it can have more" if migrate == "auto" else ""
    assert why.text == (
        f"it waits for its turn on n1: alice has no share of V100 GPUs now, so it has there what others leave{moved}"
    )
    assert (why.reason, why.expected_wait_s) == (Reason.WAITING_FOR_TURN, -1.0)


def test_one_whose_process_cannot_leave_its_gpu_is_told_so_while_another_gpu_idles() -> None:
    at = world()
    at.do("submit alice a gpus=1 count=2")
    at.do("report n1 1:0=running gpus=GPU-n1-0 2:0=held gpus=GPU-n1-0 can_checkpoint=no")
    why = at.machine.why(JobId(2), 0.0)
    assert why.reason is Reason.WAITING_FOR_TURN
    assert "stays on GPU 0" in why.text
    assert "cannot go to GPUs 1, 2, 3, idle now" in why.text
    at.do("report n1 2:0=held can_checkpoint=yes")
    assert "idle now" not in at.machine.why(JobId(2), 0.0).text
    everything = ",".join(f"GPU-n1-{gpu}" for gpu in range(4))
    at.do(f"report n1 2:0=held can_checkpoint=no 1:0=running gpus={everything}")
    assert "idle now" not in at.machine.why(JobId(2), 0.0).text


def test_one_whose_process_stays_on_a_gpu_that_is_out_of_use_is_told_so_and_not_that_others_have_turns_there() -> (
    None
):
    at = world()
    at.do("submit alice a gpus=2")
    at.do("report n1 1:0=held step=5 checkpoint_step=5 gpus=GPU-n1-2,GPU-n1-3 can_checkpoint=no")
    at.do("gpus n1 sick=1")  # the first of them
    at.do("report n1 1:0=held gpus=GPU-n1-0,GPU-n1-1")
    why = at.machine.why(JobId(1), 0.0)
    assert why.text == (
        "it waits for its turn on n1: its process stays on GPUs 0, 1, of which GPU 0 is unhealthy;"
        " it cannot go to GPUs 2, 3, idle now, before its first turn there"
    )
    assert "does not go on there" in why.next_step
    at.do("report n1 1:0=held run_s=20 suspends=1 gpus=GPU-n1-0,GPU-n1-1")
    assert at.machine.why(JobId(1), 0.0).text.endswith("idle now, as it writes no checkpoints")


@pytest.mark.parametrize("policy", ["gandiva-fair", "las"])
def test_one_that_its_server_cannot_start_is_told_so_before_all_else(policy: str) -> None:
    at = world(policy=find(policy))
    at.do("submit alice a")
    at.do("report n1 1:0=waiting note=cannot_be_started_on_its_server:_No_space_left_on_device")
    why = at.machine.why(JobId(1), 0.0)
    assert (why.reason, why.expected_wait_s) == (Reason.HOST_TROUBLE, -1.0)
    assert why.text == "it cannot be started on its server: No space left on device"
    assert "tell an administrator" in why.next_step


def test_one_that_a_policy_lets_run_and_its_server_has_no_memory_for_waits_for_that() -> None:
    at = world(policy=find("las"))
    at.do("submit alice a gpus=4")
    at.do("report n1 1:0=waiting note=waits_for_host_memory_of_its_server")
    assert at.machine.why(JobId(1), 0.0).text == "it waits for host memory of its server"


@pytest.mark.parametrize(
    "note",
    [
        "needs more memory than job 3 leaves on GPUs that it is to share",
        "its GPUs' memory is held by jobs that can't be moved out",
        "the memory of GPU 0 is held by jobs that can't be moved out",
        "the memory of GPUs 0,1 is held by jobs that can't be moved out",
    ],
)
def test_one_that_a_policy_lets_run_beside_jobs_that_hold_the_memory_of_its_gpus_is_told_so(
    note: str,
) -> None:
    at = world(policy=find("las"))
    at.do("submit alice a gpus=4")
    at.do(f"report n1 1:0=waiting note={note.replace(' ', '_')}")
    why = at.machine.why(JobId(1), 0.0)
    assert (why.reason, why.text) == (Reason.WAITING_FOR_GPUS, f"its turn is not given to it on n1: {note}")


def test_one_that_its_owner_paused_and_that_cannot_be_stopped_is_said_to_run_and_keeps_its_gpus() -> None:
    at = world(policy=find("las"))
    at.do("submit alice a gpus=4 count=2")
    at.do("report n1 1:0=running sliceable=no note=no_step_hook:_runs_unsliced")
    assert not any("placed" in line for line in at.do("pause alice 1"))
    why = at.machine.why(JobId(1), 0.0)
    assert (
        why.text
        == "it was paused by its owner, but runs on n1: it cannot be stopped (no step hook: runs unsliced)"
    )
    assert why.next_step == "`hsctl cancel 1` ends it"
    assert any("job 2 placed" in line for line in at.do("report n1 1:0=held"))
    assert at.machine.why(JobId(1), 0.0).text == "it is paused by its owner"


def test_an_array_that_goes_one_by_one_is_said_so_in_the_singular() -> None:
    at = world()
    at.do("submit alice a array=2 array_limit=1")
    why = at.machine.why(JobId(2), 0.0)
    assert (why.reason, why.next_step) == (Reason.ARRAY_LIMIT, "it starts when that one ends")
    assert why.text == "its array may have 1 job under way at once, and has"


def test_one_that_was_asked_to_stop_and_did_not_is_said_to_run_on() -> None:
    """As a gang does whose ranks have gone apart, where there is no freezer."""
    at = world()
    at.do("submit alice a gpus=4")
    at.do("report n1 1:0=running")
    assert at.machine.why(JobId(1), 0.0).text == "it runs on n1, on 4 GPUs"
    at.do("report n1 1:0=running note=does_not_stop:_no_answer_in_30_s")
    assert (
        at.machine.why(JobId(1), 0.0).text == "it runs on n1, on 4 GPUs; it does not stop: no answer in 30 s"
    )


def test_one_that_never_began_is_not_sent_to_a_log_that_there_is_none_of() -> None:
    at = world()
    at.do("submit alice a count=2")
    at.do("report n1 1:0=exited why=launch_failed:_no_program_of_that_name 2:0=exited code=3")
    never, began = (at.machine.why(JobId(job), 0.0) for job in (1, 2))
    assert never.text == "it failed: launch failed: no program of that name"
    assert never.next_step == "it said nothing, as it never began: submit it again when that is mended"
    assert began.next_step == "`hsctl logs 2` shows what it said"


def test_one_whose_later_start_failed_is_sent_to_the_log_of_what_it_said_before() -> None:
    at = world()
    at.do("submit alice a retry_max=1")
    at.do("report n1 1:0=running step=5")
    at.do("report n1 1:0=exited code=3")
    at.do("report n1 1:1=exited why=launch_failed:_its_folder_is_gone")
    why = at.machine.why(JobId(1), 0.0)
    assert why.text == "it failed: launch failed: its folder is gone"
    assert why.next_step == "`hsctl logs 1` shows what it said before: submit it again when that is mended"


def test_where_no_gpu_is_left_in_health_it_is_said_in_whole_sentences() -> None:
    at = world()
    at.do("submit alice a gpus=1")
    at.do("report n1 1:0=held step=5 can_checkpoint=yes gpus=GPU-n1-0")
    at.do("gpus n1 sick=4")
    at.do("submit alice b gpus=1")
    stays, waits = (at.machine.why(JobId(job), 0.0).text for job in (1, 2))
    assert stays.endswith(
        "; no other server can take it: it needs a server with a healthy GPU, and there is none"
    )
    assert waits == "too few healthy GPUs: it needs a server with a healthy GPU, and there is none"


def test_a_gang_that_lacks_one_of_its_servers_is_not_told_that_all_are_away() -> None:
    at = world()
    for line in ("host n2 V100:4", "leave n2", "submit alice a gpus=4 nodes=2", "submit alice b gpus=4"):
        at.do(line)
    gang = at.machine.why(JobId(1), 0.0)
    assert gang.reason is Reason.HOST_AWAY
    assert gang.text == "it needs 2 servers at once, and too many of those that could hold it are away: n2"
    assert gang.next_step.startswith("it is placed when enough of them are back")
    at.do("leave n1")
    assert at.machine.why(JobId(1), 0.0).text.endswith("away: n1, n2")


def test_while_nothing_can_be_taken_in_it_is_told_by_who_is_connected_and_that_the_journal_cannot_be_written() -> (
    None
):
    at = world(policy=find("fifo"))
    at.do("host n2 V100:4")
    at.do("submit alice a gpus=4 count=4")
    at.do("report n1 1:0=running step=5")
    at.do("report n2 2:0=running")
    at.do("cancel alice 4")
    at.start(at.machine.state)  # as after a commit that failed
    at.machine.look_on(["n1", "n3"])  # n3: it joined since
    told = "the controller cannot write its journal just now: nothing new is decided, running jobs go on"
    runs, away, waits, ended = (at.machine.why(JobId(job), 0.0) for job in (1, 2, 3, 4))
    assert (runs.reason, runs.text) == (Reason.RUNNING, f"it runs on n1, on 4 GPUs; {told}")
    assert (waits.reason, waits.text) == (Reason.READ_ONLY, f"it waits for GPUs; {told}")
    assert "room on the controller's disk" in waits.next_step
    assert away.reason is Reason.HOST_AWAY
    assert away.text.startswith("its server n2 is not connected")
    assert ended.reason is Reason.CANCELLED
    assert told not in ended.text
    at.machine.look_on(["n2"])
    assert at.machine.connected == {"n2"}
    at.machine.check()


def test_of_an_array_of_which_nobody_runs_who_waits_for_another_s_place_is_told_whose() -> None:
    at = world()
    at.do("drain n1")
    at.do("submit alice a array=3 array_limit=1 gpus=2")
    for job in (2, 3):
        why = at.machine.why(JobId(job), 0.0)
        assert why.reason is Reason.ARRAY_LIMIT
        assert (
            why.text
            == "its array may have 1 job under way at once, and job 1 of it, waiting too, comes first"
        )
        assert why.next_step == "`hsctl why 1` says what that one waits for"
    at.do("undrain n1")
    assert at.machine.why(JobId(2), 0.0).text == "its array may have 1 job under way at once, and has"


def test_one_that_cannot_write_its_checkpoint_is_told_that_it_does_not_leave_a_drained_server_for_that() -> (
    None
):
    at = world()
    at.do("host n2 V100:4")
    at.do("submit alice a")
    at.do("report n1 1:0=running step=5 can_checkpoint=yes")
    at.do("drain n1")
    at.do(
        "report n1 1:0=running step=6 can_checkpoint=yes checkpoint_fails=1 note=checkpoint_failed:_disk_full"
    )
    assert at.machine.job(JobId(1)).move is None
    why = at.machine.why(JobId(1), 0.0)
    assert why.text.endswith(
        "; n1 is drained: it was to leave, but its checkpoint could not be written (checkpoint failed: disk full)"
    )
    assert "is asked again" in why.next_step
    at.do("@11")
    at.do("tick")
    at.do(
        "report n1 1:0=checkpointed step=7 checkpoint_step=7 checkpoint_generation=0 checkpoint_fails=0 note="
    )
    at.do("report n2 1:1=running step=7 can_checkpoint=yes")
    assert at.machine.why(JobId(1), 11.0).text == "it runs on n2, on 1 GPU"


def test_one_whose_gpus_are_out_of_use_and_that_cannot_write_its_checkpoint_is_told_why_it_does_not_go_elsewhere() -> (
    None
):
    at = world(policy=find("gandiva-fair"))
    for line in ("host n2 V100:4", "submit alice a gpus=4", "submit alice b gpus=4"):
        at.do(line)
    job = next(job for job in (1, 2) if at.machine.job(JobId(job)).host == "n1")
    kept = "step=6 can_checkpoint=yes run_s=9 suspends=1"
    at.do(f"report n1 {job}:0=held {kept}")
    at.do("drain-gpus n1 0")
    assert at.machine.job(JobId(job)).move is not None
    at.do(f"report n1 {job}:0=held {kept} checkpoint_fails=1 note=checkpoint_failed:_disk_full")
    assert at.machine.job(JobId(job)).move is None
    why = at.machine.why(JobId(job), 0.0)
    assert why.text == (
        "too few healthy GPUs: it needs 4, its server n1 has 3 of 4 (GPU 0 is drained);"
        " it was to leave, but its checkpoint could not be written (checkpoint failed: disk full)"
    )
    assert "or elsewhere once its checkpoint can be written" in why.next_step


@pytest.mark.parametrize(
    ("policy", "peer", "then", "said"),
    [
        ("fifo", "n1:7444", "@2", "the policy in office, fifo, leaves it where it is for now"),
        (
            "gandiva-fair",
            "",
            "@2",
            "its checkpoint cannot be fetched from there, as n1 has no address for other agents (peer_listen)",
        ),
        (
            "gandiva-fair",
            "n1:7444",
            "drain n2 reason=fans",
            "too few of the others that could take it take anybody now: n2 (drained: fans)",
        ),
        (
            "gandiva-fair",
            "n1:7444",
            "leave n2",
            "too few of the others that could take it take anybody now: n2 (away)",
        ),
    ],
)
def test_one_whose_gpus_are_out_of_use_is_told_why_it_does_not_go_to_a_server_that_has_enough(
    policy: str, peer: str, then: str, said: str
) -> None:
    at = World(find(policy), SETTINGS)
    for line in ("user alice", f"host n1 V100:4 peer={peer}", "submit alice a gpus=4"):
        at.do(line)
    at.do("report n1 1:0=held step=6 can_checkpoint=yes run_s=9 suspends=1")
    for line in ("host n2 V100:4", then, "drain-gpus n1 0"):
        at.do(line)
    assert at.machine.job(JobId(1)).move is None
    assert at.machine.why(JobId(1), 2.0).text == (
        f"too few healthy GPUs: it needs 4, its server n1 has 3 of 4 (GPU 0 is drained); {said}"
    )


def test_one_without_a_step_hook_stays_on_a_drained_gpu_until_it_ends_and_not_until_its_first_turn_does() -> (
    None
):
    at = world()
    at.do("submit alice a")
    at.do("report n1 1:0=running gpus=GPU-n1-0 note=no_step_hook:_suspended_by_the_freezer")
    at.do("drain-gpus n1 0")
    assert at.machine.why(JobId(1), 0.0).text.endswith("drained: it is there until its first turn ends")
    at.do("report n1 1:0=frozen gpus=GPU-n1-0 run_s=9 suspends=1")
    at.do("report n1 1:0=running gpus=GPU-n1-0 run_s=9 suspends=1")
    assert at.machine.why(JobId(1), 0.0).text.endswith(
        "GPU 0 of n1 is drained: it is there until it ends, as it writes no checkpoints"
    )
    at.do("drain n1")
    assert (
        "; it cannot go to another server as it writes no checkpoints" in at.machine.why(JobId(1), 0.0).text
    )


def test_one_that_has_not_left_in_time_is_asked_again_later_and_each_time_after_longer() -> None:
    at = world()
    deadline_s, quantum_s = at.machine.settings.move_deadline_s, at.machine.settings.quantum_s
    for line in (
        "host n2 V100:4",
        "submit alice a",
        "report n1 1:0=running step=5 can_checkpoint=yes",
        "drain n1",
    ):
        at.do(line)
    for quanta in (1, 2, 4):
        assert at.machine.job(JobId(1)).move is not None
        at.do(f"@{at.now_s + deadline_s}")
        at.do("tick")
        assert at.machine.job(JobId(1)).move is None
        assert "was not written within" in at.machine.why(JobId(1), at.now_s).text
        at.do(f"@{at.now_s + quanta * quantum_s - 1.0}")
        at.do("tick")
        assert at.machine.job(JobId(1)).move is None
        at.do(f"@{at.now_s + 1.0}")
        at.do("tick")


def test_one_that_is_to_move_is_not_said_to_write_its_checkpoint_before_it_has_stopped() -> None:
    """That it was told to is all that is known: its script may stand in a fetch of a batch that never comes."""
    at = world(find("gandiva-fair"))
    at.do("host n2 V100:4")
    at.do("submit alice a gpus=1")
    (home,) = at.machine.job(JobId(1)).hosts
    at.do(f"report {home} 1:0=running step=5 can_checkpoint=yes gpus=GPU-{home}-0")
    at.do(f"drain {home}")
    at.do(f"report {home} 1:0=suspending step=5 can_checkpoint=yes gpus=GPU-{home}-0")
    why = at.machine.why(JobId(1), 0.0)
    assert why.reason is Reason.MOVING
    assert why.text.endswith("; it is told to stop and to write its checkpoint")


def test_one_that_begins_again_where_its_checkpoint_is_waits_for_its_turn_there() -> None:
    at = world()
    at.do("submit alice a gpus=4 count=2 retry_max=1")
    kept = "step=5 checkpoint_step=5 checkpoint_generation=1 can_checkpoint=yes"
    at.do(f"report n1 1:0=running 2:0=held {kept}")
    at.do(f"report n1 2:0=exited {kept} code=1")
    why = at.machine.why(JobId(2), 0.0)
    assert why.text == "it is being started on n1 from its checkpoint of step 5"
    at.do("report n1 2:1=waiting")
    why = at.machine.why(JobId(2), 0.0)
    assert why.reason is Reason.WAITING_FOR_TURN
    assert why.text.startswith("it waits for its turn on n1")


def test_one_whose_checkpoint_has_come_along_is_told_what_its_policy_says_and_not_that_it_is_being_started() -> (
    None
):
    wishes: Wishes = {}
    at = World(plain_policy(wishes=wishes), SETTINGS, wishes=wishes)
    for line in ("user alice", "host n1 V100:4", "host n2 P100:4", "submit alice a gpus=4 gpu_types=P100"):
        at.do(line)
    at.do("submit alice b gpus=4")
    at.do("report n2 1:0=running")
    at.do("report n1 2:0=running step=7 can_checkpoint=yes")
    at.do("wish 2 n2")
    at.do("user alice 90")
    kept = "step=7 checkpoint_step=7 checkpoint_generation=0"
    at.do(f"report n1 2:0=checkpointed {kept}")
    at.do("submit alice c gpus=4 gpu_types=V100")
    at.do("report n1 3:0=running")
    at.do("policy fifo")
    at.do("report n2 2:1=waiting")
    fetching = at.machine.why(JobId(2), 0.0)
    assert (fetching.reason, "from its checkpoint of step 7 on n1" in fetching.text) == (
        Reason.STARTING,
        True,
    )
    at.do("report n2 2:1=waiting note=cannot_fetch_checkpoint_0_from_n1:_nothing_came_for_60_s")
    in_vain = at.machine.why(JobId(2), 0.0)
    assert (in_vain.reason, in_vain.text) == (
        Reason.HOST_TROUBLE,
        "it cannot fetch checkpoint 0 from n1: nothing came for 60 s",
    )
    assert "see that n2 can have it" in in_vain.next_step
    at.do(f"report n2 2:1=waiting {kept}")
    why = at.machine.why(JobId(2), 0.0)
    assert (why.reason, why.text) == (
        Reason.WAITING_FOR_GPUS,
        "first in line: waits until 4 GPUs on one server are free",
    )
    at.do("report n2 1:0=exited code=0")
    assert "it has its turn on n2" in at.machine.why(JobId(2), 0.0).text


def test_who_waits_for_a_turn_is_told_of_a_whole_quantum_at_least_and_then_of_the_next_edge() -> None:
    """Turns change at edges only, so the part of the time that it is not to run comes in whole quanta."""
    at = world()
    at.do("submit alice a gpus=3")
    at.do("submit alice b gpus=2")
    at.do("report n1 1:0=running 2:0=held")
    at.do("report n1 1:0=held 2:0=running")
    said = [at.machine.why(JobId(1), now_s) for now_s in (0.0, 4.0, 13.0)]
    assert "not all jobs there fit beside one another it runs in 1 of " in said[0].text
    assert [why.expected_wait_s for why in said] == [10.0, 6.0, 7.0]


def _gang_of_two(policy: str) -> World:
    at = world(policy=find(policy))
    at.do("host n2 V100:4")
    at.do("submit alice a gpus=2 nodes=2")
    return at


@pytest.mark.parametrize("policy", ["gandiva-fair", "fifo", "las"])
def test_a_gang_that_is_chosen_for_the_next_quantum_is_told_when_that_begins(policy: str) -> None:
    at = _gang_of_two(policy)
    at.do("@3")
    at.do("report n1 1:0=held gpus=GPU-n1-0,GPU-n1-1")
    at.do("report n2 1:0=held gpus=GPU-n2-0,GPU-n2-1")
    why = at.machine.why(JobId(1), 3.0)
    assert why.reason is Reason.WAITING_FOR_TURN
    assert why.text == "it has its turn on n1, n2 in the next quantum, as planned now: in about 7 s"
    assert why.expected_wait_s == 7.0
    at.do("@10")
    at.do("tick")
    why = at.machine.why(JobId(1), 10.0)
    assert why.text == "it has its turn on n1, n2 now, and is about to start"
    assert why.expected_wait_s == 0.0


def test_a_gang_over_several_servers_is_told_of_a_gpu_that_its_process_stays_on_and_that_is_out_of_use() -> (
    None
):
    at = _gang_of_two("gandiva-fair")
    at.do("report n1 1:0=held gpus=GPU-n1-0,GPU-n1-1 can_checkpoint=no run_s=9 suspends=1")
    at.do("report n2 1:0=held gpus=GPU-n2-0,GPU-n2-1 can_checkpoint=no run_s=9 suspends=1")
    at.do("gpus n2 sick=1")
    why = at.machine.why(JobId(1), 0.0)
    assert why.reason is Reason.WAITING_FOR_TURN
    assert why.text == (
        "it waits for its turn on n1, n2: its process on n2 stays on GPUs 0, 1, of which GPU 0 is unhealthy;"
        " it cannot go to others as it writes no checkpoints"
    )
    assert "does not go on there" in why.next_step


@pytest.mark.parametrize("policy", ["las", "fifo", "gavel-max-min"])
def test_under_every_policy_a_gpu_that_its_process_stays_on_and_that_is_out_of_use_is_named(
    policy: str,
) -> None:
    at = world(policy=find(policy))
    at.do("submit alice a gpus=2")
    at.do("report n1 1:0=held gpus=GPU-n1-0,GPU-n1-1 can_checkpoint=no run_s=9 suspends=1")
    at.do("gpus n1 sick=1")
    why = at.machine.why(JobId(1), 0.0)
    assert "stays on GPUs 0, 1, of which GPU 0 is unhealthy" in why.text


def test_one_that_only_drained_servers_could_hold_is_told_which_and_why_they_are() -> None:
    at = world()
    at.do("host n2 V100:2")
    at.do("drain n1 reason=fans")
    for line in ("submit alice a gpus=4", "submit alice b gpus=2 nodes=2"):
        at.do(line)
    wide, gang = (at.machine.why(JobId(job), 0.0) for job in (1, 2))
    assert wide.reason is gang.reason is Reason.HOST_DRAINED
    assert wide.text == "every server that could hold it is drained: n1 (drained: fans)"
    assert wide.next_step.startswith("it is placed when one of them is drained no longer")
    assert gang.text.startswith("it needs 2 servers at once, and too many of those that could hold it are")
    at.do("leave n2")
    gang = at.machine.why(JobId(2), 0.0)
    assert gang.reason is Reason.HOST_AWAY
    assert gang.text.endswith("away or drained: n1 (drained: fans), n2 (away)")
    at.do("undrain n1")
    assert at.machine.why(JobId(1), 0.0).reason is Reason.STARTING


def test_under_fifo_the_head_of_the_line_whose_process_is_on_a_server_waits_for_gpus_of_that_one() -> None:
    at = world(policy=find("gandiva-fair"))
    at.do("submit alice a gpus=4 count=2")
    at.do("report n1 1:0=running 2:0=held step=5 gpus=GPU-n1-0,GPU-n1-1,GPU-n1-2,GPU-n1-3")
    at.do("host n2 V100:4")
    at.do("policy fifo")
    first, second = (at.machine.why(JobId(job), 0.0) for job in (1, 2))
    assert first.reason is Reason.RUNNING
    assert second.text == (
        "first in line: waits until 4 GPUs of n1 are free; GPUs of n2 are idle, but its process cannot leave its own server"
    )


def test_one_behind_a_job_that_cannot_be_suspended_is_told_so_and_of_no_next_turn() -> None:
    at = world()
    at.do("submit alice a gpus=3 count=2")
    at.do("submit alice b gpus=1")
    at.do("report n1 1:0=running sliceable=no gpus=GPU-n1-0,GPU-n1-1,GPU-n1-2 2:0=held 3:0=held")
    wide, narrow = (at.machine.why(JobId(job), 0.0) for job in (2, 3))
    assert wide.reason is Reason.WAITING_FOR_TURN
    assert wide.text == ("it waits for its turn on n1: job 1 has 3 of 4 GPUs there and cannot be suspended")
    assert wide.expected_wait_s == -1.0
    assert "when that one ends" in wide.next_step
    assert "next turn in about" in narrow.text
    at.do("report n1 1:0=exited code=0")
    assert "next turn in about" in at.machine.why(JobId(2), 0.0).text


def test_the_part_of_the_time_that_is_stated_counts_gpus_that_idle_beside_a_gang() -> None:
    """On four GPUs a job of three and one of two never run at once, so what is due to both is twice as much as can be had."""
    at = world()
    at.do("submit alice a gpus=3")
    at.do("submit alice b gpus=2")
    at.do("report n1 1:0=held 2:0=held")
    for job in (1, 2):
        assert (
            "not all jobs there fit beside one another it runs in 1 of 2 quanta;"
            in at.machine.why(JobId(job), 0.0).text
        )
    at = world()
    at.do("submit alice a gpus=2 count=3")
    at.do("report n1 1:0=running 2:0=running 3:0=held")
    assert "GPUs, so it runs in 1 of 1.5 quanta;" in at.machine.why(JobId(3), 0.0).text


@pytest.mark.parametrize("policy", ["gandiva-fair", "fifo", "las", "gavel-max-min"])
@pytest.mark.parametrize(
    ("has_run", "said"), [(True, "it goes on by itself"), (False, "it starts by itself")]
)
def test_one_that_has_run_is_said_to_go_on_and_one_that_has_not_to_start(
    policy: str, has_run: bool, said: str
) -> None:
    at = world(policy=find(policy))
    at.do("submit alice a gpus=4")
    if has_run:
        at.do("report n1 1:0=running")
    at.do("pause alice 1")
    at.do("report n1 1:0=held")
    at.do("submit alice b gpus=4")
    at.do("report n1 2:0=running")
    at.do("unpause alice 1")
    assert at.machine.why(JobId(1), 0.0).next_step.startswith(said)


def test_one_in_whose_turn_another_has_not_left_its_gpus_is_told_who_and_not_that_it_is_about_to_start() -> (
    None
):
    """One that is coming up cannot be stopped before its first step."""
    at = world(policy=find("fifo"))
    at.do("submit alice a gpus=4")
    at.do("report n1 1:0=starting")
    at.do("pause alice 1")
    at.do("submit alice b gpus=4")
    at.do("report n1 1:0=running gpus=GPU-n1-0,GPU-n1-1,GPU-n1-2,GPU-n1-3 2:0=waiting")
    why = at.machine.why(JobId(2), 0.0)
    assert why.text == "it has its turn on n1 now, and starts as soon as job 1 has left its GPUs"
    assert (why.reason, why.expected_wait_s) == (Reason.WAITING_FOR_TURN, -1.0)
    assert why.next_step == "nothing to do; `hsctl why 1` says where that one stands"
    at.do("report n1 1:0=suspending gpus=GPU-n1-0,GPU-n1-1,GPU-n1-2,GPU-n1-3")
    assert at.machine.why(JobId(2), 60.0) == why, "a gang of which a part is cut off may be at it for long"
    at.do("report n1 1:0=held")
    why = at.machine.why(JobId(2), 0.0)
    assert why.text == "it has its turn on n1 now, and is about to start"
    assert why.expected_wait_s == 0.0


def test_a_gang_out_of_turn_is_told_when_it_has_its_next_one_and_has_it_then() -> None:
    at = world(policy=find("gandiva-fair"))
    at.do("host n2 V100:4")
    for user in ("bob", "carol"):
        at.do(f"user {user}")
    for user in ("alice", "bob", "carol"):  # each wants all GPUs
        at.do(f"submit {user} a gpus=4 nodes=2")
    gpus = {name: ",".join(f"GPU-{name}-{gpu}" for gpu in range(4)) for name in ("n1", "n2")}
    told: dict[JobId, float] = {}
    met = 0
    for quantum in range(1, 16):
        at.now_s = 10.0 * quantum
        at.do("tick")
        for name in ("n1", "n2"):
            for job in (1, 2, 3):
                at.do(f"report {name} {job}:0=held gpus={gpus[name]} run_s={quantum}")
        for job in (JobId(1), JobId(2), JobId(3)):
            why = at.machine.why(job, at.now_s)
            assert why.expected_wait_s >= 0.0, why
            turn_s = at.now_s + why.expected_wait_s
            met += job in told and told[job] > at.now_s
            assert told.get(job, 0.0) <= at.now_s or told[job] == turn_s, "it stays so, if nothing changes"
            told[job] = turn_s
            if why.expected_wait_s > 10.0:
                assert why.reason is Reason.WAITING_FOR_TURN
                assert "; next turn, as planned now, in about" in why.text
                assert "its share is 33% of the quanta" in why.text
    assert met > 10


def test_a_gang_that_fits_over_several_gpu_models_alone_is_told_that_the_policy_is_in_its_way() -> None:
    at = World(find("hadar"), SETTINGS)
    for line in ("user alice", "host n1 V100:1", "host n2 K80:1", "submit alice a nodes=2 count=2"):
        at.do(line)
    at.do("report n1 1:0=running")
    at.do("report n2 1:0=running")
    at.do("policy las")
    why = at.machine.why(JobId(2), 0.0)
    assert why.reason is Reason.TOO_LARGE
    assert why.text.startswith(
        "under the policy in office it cannot run: it asks for 2 servers of one GPU model"
    )
    assert "(hadar, hadar-exact)" in why.next_step
    at.do("policy hadar")
    assert at.machine.why(JobId(2), 0.0).reason is Reason.WAITING_FOR_GPUS
    at.do("policy las")
    at.do("leave n2")
    at.do("remove n2 force")
    assert at.machine.why(JobId(2), 0.0).text.startswith("it can never run on the servers that are left")


def test_one_that_shares_its_gpus_is_told_with_whom() -> None:
    at = world(find("sjf-bsbf"))
    at.do("submit alice a count=3")
    both = "gpus=GPU-n1-0 beside"
    at.do(f"report n1 1:0=running {both}=2 2:0=running {both}=1 3:0=running gpus=GPU-n1-1")
    assert at.machine.why(JobId(1), 0.0).text == "it runs on n1, on 1 GPU, shared with job 2"
    assert at.machine.why(JobId(3), 0.0).text == "it runs on n1, on 1 GPU"
