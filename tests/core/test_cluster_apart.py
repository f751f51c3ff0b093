"""A policy that is asked beside the machine: what goes on meanwhile, and what of its answer still stands."""

from dataclasses import replace

import pytest
from clusters import SETTINGS, world

from hs_core.cluster import Reason
from hs_core.cluster.harness import World, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.events.cluster import Consult, GiveUp, PolicyAnswered
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


def gives_up(at: World) -> bool:
    return any(isinstance(command, GiveUp) for command in at.outcome.commands)


def test_another_policy_decides_at_once_however_long_the_one_before_stays_at_its_decision() -> None:
    at = world("@10", "submit alice a", settings=replace(APART, settle_s=2.0))
    at.do("answer")
    at.do("submit alice b")
    at.play(f"@{at.wake_s:g}\ntick")
    given_up = at.machine.question
    assert given_up is not None
    at.now_s += 312.0
    told = at.do("policy las")
    assert gives_up(at)
    asked = at.machine.question
    assert asked is not None
    assert (asked.policy.name, asked.memory, asked.snapshot.now_s) == ("las", {}, at.now_s)
    assert (
        told[0] == "policy-given-up: root gives up the decision at which the policy plain has been for 312 s"
    )
    fact = at.outcome.facts[0]
    assert (fact.user, fact.deed, fact.data) == (
        "root",
        True,
        {"by": "root", "policy": "plain", "after_s": 312.0},
    )
    assert at.machine.deciding_s(at.now_s) == 0.0
    assert at.handle(PolicyAnswered(now_s=at.now_s, question=given_up, answer=given_up.answer())).facts == ()
    assert (home(at, J2), at.machine.memory, at.machine.question) == ((), {}, asked)
    at.do("answer")
    assert home(at, J2) == ("n1",)


def test_what_the_policy_is_at_for_less_than_a_quantum_is_given_up_without_a_word() -> None:
    at = asked("submit alice a")
    at.now_s += 9.0
    assert at.do("policy las")[0].startswith("policy-set: root puts the policy las in place of plain")
    assert gives_up(at)


def test_the_same_policy_again_is_asked_anew_with_what_it_remembers_if_it_has_been_at_it_for_longer_than_a_quantum() -> (
    None
):
    at = world("policy las", "submit alice a", settings=APART)
    at.do("answer")
    memory = at.machine.memory
    assert memory
    at.do("submit alice b")
    given_up = at.machine.question
    assert given_up is not None
    at.now_s += 9.0
    assert at.do("policy las") == []
    assert at.machine.question is given_up
    at.now_s += 9.0
    told = at.do("policy las")
    assert told[0] == "policy-given-up: root gives up the decision at which the policy las has been for 18 s"
    assert not any("policy-set" in line for line in told)
    assert gives_up(at)
    asked = at.machine.question
    assert asked is not None
    assert asked is not given_up
    assert (asked.policy, asked.memory, asked.snapshot.now_s) == (given_up.policy, memory, at.now_s)
    at.handle(PolicyAnswered(now_s=at.now_s, question=given_up, answer=given_up.answer()))
    assert (home(at, J2), at.machine.memory, at.machine.question) == ((), memory, asked)
    at.do("answer")
    assert home(at, J2) == ("n1",)


def test_a_policy_is_not_asked_the_later_for_how_long_the_one_before_took() -> None:
    at = world("@10", "submit alice a", settings=replace(APART, settle_s=0.5))
    at.now_s += 5.0
    at.do("answer")
    at.do("cancel alice 1")
    at.do("report n1 1:0=exited")
    at.do("policy las")
    at.do("submit alice b")
    assert at.wake_s == pytest.approx(at.now_s + 0.5)


def test_the_policy_that_took_office_over_one_that_hangs_is_in_office_after_a_restart() -> None:
    at = asked("submit alice a")
    at.now_s += 100.0
    at.do("policy las")
    assert at.outcome.touched.meta
    at.do("restart")
    at.do("host n1 V100:4")
    question = at.machine.question
    assert question is not None
    assert question.policy.name == "las"


def test_where_the_policy_is_asked_in_the_event_there_is_nothing_to_give_up() -> None:
    at = world("submit alice a")
    at.do("policy las")
    assert not gives_up(at)


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
