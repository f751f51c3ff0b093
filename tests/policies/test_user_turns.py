"""Turns that go by users, as Gandiva_fair plans them: on which servers, and who takes part."""

from dataclasses import replace

import pytest

from hs_core.mechanism.user_turns import MOST_SERVERS
from hs_core.names import HostName
from hs_core.plan import check
from hs_core.policy import Going, JobFacts, Verdict

from .asked import GANDIVA_FAIR, ask, at, decide, sweep  # noqa: TID252 — tests are no package on the path
from .worlds import host, job  # noqa: TID252

A, B = HostName("a"), HostName("b")


def chosen(verdict: Verdict) -> set[int]:
    return {int(one) for turn in verdict.plan.turns.values() for one in turn.gangs}


def jobs() -> list[JobFacts]:
    """Two of each user's on each of two servers of two GPUs."""
    return [
        *at("a", *sweep(1, 2, "A"), *sweep(11, 2, "B")),
        *at("b", *sweep(3, 2, "A"), *sweep(13, 2, "B")),
    ]


def test_of_all_who_wait_for_one_another_so_many_are_chosen_as_there_are_gpus() -> None:
    verdict = decide([host("a", 2), host("b", 2)], jobs())
    assert verdict.plan.in_step == {A, B}
    assert len(chosen(verdict)) == 4
    assert verdict.sequel is not None


@pytest.mark.parametrize(
    ("servers", "there"),
    [
        ([host("a", 2), host("b", 2, "K80")], jobs()),
        ([host("a", 4), host("b", 4)], jobs()),
        ([host("a", 2), host("b", 2)], [replace(one, user="A") for one in jobs()]),
        ([host("a", 2), host("b", 2)], [*jobs(), *at("a+b", job(20, "B", 2, nodes=2))]),
        ([host(name, 2) for name in ("a", "b", *map(str, range(MOST_SERVERS)))], jobs()),
    ],
    ids=["models", "nobody waits", "one user", "a gang over both", "many servers"],
)
def test_servers_share_themselves_out_where_turns_do_not_go_by_users(
    servers: list[object], there: list[JobFacts]
) -> None:
    verdict = decide(servers, there)  # type: ignore[arg-type]  # the tests' own
    assert not verdict.plan.in_step
    assert chosen(verdict) <= {20}


@pytest.mark.parametrize(
    "facts",
    [
        {"going": Going(hosts=(B,), gpus=1), "movable": False},
        {"held_up": True, "started": False},
    ],
    ids=["on its way", "held up"],
)
def test_who_could_not_run_is_not_chosen_and_the_policy_is_asked_again_until_it_can(
    facts: dict[str, object],
) -> None:
    first, *others = jobs()
    for _ in range(8):
        verdict = decide([host("a", 2), host("b", 2)], [replace(first, **facts), *others])  # type: ignore[arg-type]
        assert first.id not in chosen(verdict)
        assert len(chosen(verdict)) == 4
        assert verdict.sequel is None


def test_who_has_just_come_may_be_chosen() -> None:
    verdict = decide(
        [host("a", 2), host("b", 2)],
        [*at("a", *sweep(1, 1, "A", 2)), *at("b", *sweep(2, 2, "A", 2)), job(9, "B")],
    )
    assert 9 in chosen(verdict)


def test_who_has_left_for_another_server_since_gives_its_turn_to_a_gang_that_came() -> None:
    servers, there = [host("a", 2), host("b", 2)], jobs()
    before = GANDIVA_FAIR.decide(ask(servers, there, quantum=7), {})
    assert len(chosen(before)) == 4
    k = Going(hosts=(HostName("k"),), gpus=1)
    gang = job(20, "C", 4, nodes=2)
    leaving = [replace(one, movable=False, going=k) for one in there]
    meanwhile = ask([*servers, host("k", 8, "K80")], [*leaving, gang], quantum=7)
    verdict = GANDIVA_FAIR.decide(meanwhile, before.memory)
    check(meanwhile, verdict.plan, GANDIVA_FAIR.needs)
    assert verdict.plan.homes[gang.id] == (A, B)
    assert chosen(verdict) == {20}
