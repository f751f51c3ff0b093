"""Why a job waits for its turn, in words: whose it is, and when its own comes."""

from dataclasses import replace
from fractions import Fraction

import pytest
from clusters import world

from hs_core.cluster import Reason
from hs_core.events.cluster import PolicySet
from hs_core.names import JobId, UserName
from hs_core.policies import find
from hs_core.policy import Memory, Snapshot, Verdict


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
@pytest.mark.parametrize("policy", ["las", "gandiva-fair"])
def test_one_that_may_run_beside_jobs_that_hold_the_memory_of_its_gpus_is_told_so(
    policy: str, note: str
) -> None:
    at = world(policy=find(policy))
    at.do("submit alice a gpus=4")
    at.do("submit alice b gpus=4")
    at.do(f"report n1 1:0=waiting note={note.replace(' ', '_')} 2:0=running")
    why = at.machine.why(JobId(1), 0.0)
    assert (why.reason, why.text) == (Reason.WAITING_FOR_GPUS, f"its turn is not given to it on n1: {note}")


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


@pytest.mark.parametrize("policy", ["gandiva-fair", "fifo", "las"])
def test_a_gang_that_is_chosen_for_the_next_quantum_is_told_when_that_begins(policy: str) -> None:
    at = world("host n2 V100:4", "submit alice a gpus=2 nodes=2", policy=find(policy))
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
