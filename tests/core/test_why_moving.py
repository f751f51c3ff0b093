"""Why a job is still where it was, or has come and does not run yet, in words."""

from clusters import SETTINGS, world

from hs_core.cluster import Reason
from hs_core.cluster.harness import World, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.names import JobId
from hs_core.policies import find


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
    at = world(policy=find("gandiva-fair"))
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
