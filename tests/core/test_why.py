"""Why a job is where it is, in words: it has no home, runs, or has ended; its server is away, or cannot start it."""

import pytest
from clusters import SETTINGS, world

from hs_core.cluster import Reason
from hs_core.cluster.harness import World
from hs_core.names import JobId
from hs_core.policies import find


@pytest.mark.parametrize("policy", ["gandiva-fair", "las"])
def test_one_that_its_server_cannot_start_is_told_so_before_all_else(policy: str) -> None:
    at = world(policy=find(policy))
    at.do("submit alice a")
    at.do("report n1 1:0=waiting note=cannot_be_started_on_its_server:_No_space_left_on_device")
    why = at.machine.why(JobId(1), 0.0)
    assert (why.reason, why.expected_wait_s) == (Reason.HOST_TROUBLE, -1.0)
    assert why.text == "it cannot be started on its server: No space left on device"
    assert "tell an administrator" in why.next_step


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
    at = world(policy=find("sjf-bsbf"))
    at.do("submit alice a count=3")
    both = "gpus=GPU-n1-0 beside"
    at.do(f"report n1 1:0=running {both}=2 2:0=running {both}=1 3:0=running gpus=GPU-n1-1")
    assert at.machine.why(JobId(1), 0.0).text == "it runs on n1, on 1 GPU, shared with job 2"
    assert at.machine.why(JobId(3), 0.0).text == "it runs on n1, on 1 GPU"
