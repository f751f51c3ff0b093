"""A policy that is asked beside the machine: what goes on meanwhile, and what of its answer still stands."""

from dataclasses import replace

import pytest
from clusters import SETTINGS, world

from hs_core.cluster import Reason
from hs_core.cluster.harness import World, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.events import Consult
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import Memory, Snapshot, Verdict

APART = replace(SETTINGS, decides_apart=True)
J1, J2 = JobId(1), JobId(2)


def asked(*lines: str, wishes: Wishes | None = None) -> World:
    """The policy is at the question that the last of these lines came to."""
    at = world(policy=plain_policy(wishes=wishes), settings=APART)
    for line in lines:
        if at.machine.question is not None:
            at.do("answer")
        at.do(line)
    assert at.machine.question is not None
    return at


def home(at: World, job: JobId) -> tuple[HostName, ...]:
    return at.machine.job(job).hosts


def test_nobody_has_a_home_before_the_policy_has_answered() -> None:
    at = asked("submit alice a")
    assert home(at, J1) == ()
    at.do("answer")
    assert home(at, J1) == ("n1",)
    assert [job.job for job in at.wanted[HostName("n1")].jobs] == [1]
    assert at.machine.question is None


def test_what_comes_while_the_policy_decides_is_taken_in_and_asked_about_once_it_has() -> None:
    at = asked("submit alice a")
    told = at.do("submit alice b")
    assert not any(isinstance(command, Consult) for command in at.outcome.commands), told
    assert at.machine.job(J2).spec.name == "b"
    at.do("answer")
    assert (home(at, J1), home(at, J2)) == (("n1",), ())
    assert at.machine.question is not None
    at.do("answer")
    assert home(at, J2) == ("n1",)


@pytest.mark.parametrize(
    ("meanwhile", "homes"),
    [
        ("cancel alice 1", ()),
        ("pause alice 1", ()),
        ("leave n1", ()),
        ("drain n1", ()),
        ("gpus n1 sick=4", ()),
        ("user alice 7", ("n1",)),
        ("host n2 V100:4", ("n1",)),
        ("submit alice b", ("n1",)),
    ],
)
def test_nothing_is_done_about_who_or_what_is_another_since(meanwhile: str, homes: tuple[str, ...]) -> None:
    at = asked("submit alice a gpus=2")
    at.do(meanwhile)
    at.do("answer")
    assert home(at, J1) == homes


def test_a_move_to_a_server_that_has_gone_since_is_none_and_the_policy_is_asked_again() -> None:
    wishes: Wishes = {}
    at = asked(
        "host n1 V100:4 peer=n1:1",
        "host n2 V100:4 peer=n2:1",
        "submit alice a",
        "report n1 1:0=running can_checkpoint=yes checkpoint_generation=1",
        wishes=wishes,
    )
    at.do("answer")
    at.wishes = wishes
    at.do("wish 1 n2")
    at.do("submit alice b")
    at.do("leave n2")
    at.do("answer")
    assert at.machine.job(J1).move is None
    assert at.machine.question is not None
    at.do("host n2 V100:4 peer=n2:1")
    at.do("answer")  # to what was asked while it was away
    at.do("answer")
    move = at.machine.job(J1).move
    assert move is not None
    assert move.to == ("n2",)


def test_what_a_policy_answers_that_is_not_in_office_any_more_is_no_matter() -> None:
    at = asked("submit alice a")
    late = at.event("answer", ())
    at.do("policy las")
    assert at.machine.question is not None
    at.handle(late)
    assert home(at, J1) == ()
    at.do("answer")
    assert home(at, J1) == ("n1",)


def test_what_was_asked_before_a_restart_is_no_matter() -> None:
    at = asked("submit alice a")
    late = at.event("answer", ())
    at.do("restart")
    at.do("host n1 V100:4")
    at.handle(late)
    assert home(at, J1) == ()
    at.do("answer")
    assert home(at, J1) == ("n1",)


def test_no_timer_is_asked_for_to_decide_while_the_policy_does() -> None:
    at = asked("submit alice a")
    at.wake_s = None
    at.do("submit alice b")
    assert at.wake_s is None


def test_a_policy_that_fails_beside_the_machine_is_told_of_and_asked_again_at_the_next_edge() -> None:
    fifo, fails = find("fifo"), [True]

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        if fails[0]:
            raise KeyError("a job")
        return fifo.decide(snapshot, memory)

    at = World(replace(fifo, decide=decide), APART)
    at.play("user alice\nhost n1 V100:4\nsubmit alice a")
    assert any("policy-failed" in line for line in at.do("answer"))
    assert at.machine.failure.startswith("KeyError")
    fails[0] = False
    at.play(f"@{at.wake_s:g}\ntick")
    assert any("policy-recovered" in line for line in at.do("answer"))
    assert home(at, J1) == ("n1",)


def test_who_waits_for_a_policy_that_is_long_at_it_is_told_so() -> None:
    at = asked("submit alice a")
    at.now_s += APART.quantum_s + 1.0
    assert "has been deciding for 11 s" in at.machine.why(J1, at.now_s).text
    assert at.machine.why(J1, at.now_s).reason is Reason.WAITING_FOR_GPUS
    assert at.machine.deciding_s(at.now_s) == pytest.approx(11.0)
    at.do("answer")
    assert at.machine.deciding_s(at.now_s) == 0.0


@pytest.mark.parametrize(("takes_s", "wake_s"), [(0.02, 10.5), (0.1, 11.0), (0.2, 12.0), (0.9, 12.5)])
def test_the_longer_a_decision_takes_the_later_comes_the_next_but_within_a_quarter_of_a_quantum(
    takes_s: float, wake_s: float
) -> None:
    at = world("@10", "submit alice a", settings=replace(APART, settle_s=0.5))
    at.now_s += takes_s
    at.do("answer")
    at.do("submit alice b")
    assert at.machine.question is None
    assert at.wake_s == pytest.approx(wake_s)
    at.play(f"@{at.wake_s}\ntick")
    assert at.machine.question is not None
