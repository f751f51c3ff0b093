"""Why a job stays on the GPUs of its process, in words, while these are out of use or others idle."""

import pytest
from clusters import SETTINGS, world

from hs_core.cluster import Reason
from hs_core.cluster.harness import World
from hs_core.names import JobId
from hs_core.policies import find


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


def test_a_gang_over_several_servers_is_told_of_a_gpu_that_its_process_stays_on_and_that_is_out_of_use() -> (
    None
):
    at = world("host n2 V100:4", "submit alice a gpus=2 nodes=2", policy=find("gandiva-fair"))
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
