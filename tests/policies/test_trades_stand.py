"""Trades stand until they are taken back, and that is told: whoever comes into office, and whenever."""

import json
from dataclasses import replace

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.cluster.state import State
from hs_core.facts import Fact
from hs_core.job_class import named_class
from hs_core.policies import find
from hs_core.profile import KEEP, SETTLE_S, Profile, RateSample

ALICE_GAINS, BOB_GAINS = 1.2, 2.0  # by a V100


def profile() -> Profile:
    found = Profile()
    for user, gains in (("alice", ALICE_GAINS), ("bob", BOB_GAINS)):
        for model, rate in (("V100", gains), ("K80", 1.0)):
            sample = RateSample(
                job_class=named_class(user, "c", 1),
                model=model,
                steps_per_s=rate,
                now_s=0.0,
                since_resume_s=SETTLE_S,
            )
            for _ in range(KEEP):
                found.add(sample)
    return found


@pytest.fixture
def at() -> World:
    """Two users who have traded: Alice gave Bob a V100."""
    world = World(find("gandiva-fair"), Settings(settle_s=0.0))
    world.start(State(profile=profile().dump()))
    world.play(
        """
        user alice
        user bob
        host n1 V100:4
        host n2 K80:4
        submit alice a job_class=c count=8
        submit bob b job_class=c count=8
        @60
        tick
        """
    )
    (trade,) = world.machine.trades()
    assert (trade.giver, trade.taker, trade.fast_gpus, trade.price) == ("alice", "bob", 1, 1.6)
    return world


def told(world: World) -> list[Fact]:
    return [fact for fact in world.outcome.facts if fact.kind in ("trade", "trade-undone")]


def test_another_policy_in_office_takes_all_trades_back_and_says_so(at: World) -> None:
    (trade,) = at.machine.trades()
    base = at.machine.base()
    at.do("policy las")
    (undone,) = told(at)
    assert (undone.kind, undone.data["why"]) == (
        "trade-undone",
        "taken back: root puts the policy las in office",
    )
    assert undone.data["fast_gpus"] == trade.fast_gpus
    assert at.machine.trades() == ()
    at.do("policy gandiva-fair")
    (made,) = told(at)
    assert made.kind == "trade"
    assert at.machine.base() == base


def test_a_controller_that_takes_office_knows_the_trades_that_stand(at: World) -> None:
    standing, state = at.machine.trades(), at.machine.state
    at.start(replace(state, memory=json.loads(json.dumps(state.memory))))
    assert at.machine.trades() == standing
    at.do("policy las")
    assert [fact.kind for fact in told(at)] == ["trade-undone"]


def test_no_trade_is_taken_back_as_servers_come_back_to_a_controller_that_was_restarted(at: World) -> None:
    standing, entitled = at.machine.trades(), at.machine.entitled()
    at.now_s = 90.0
    at.do("restart")
    for line in ("tick", "host n1 V100:4", "host n2 K80:4", "tick"):
        at.do(line)
        assert not told(at), line
        assert at.machine.trades() == standing
        assert at.machine.entitled() == entitled


def test_a_server_that_does_not_come_back_after_a_restart_counts_as_away_once_it_had_time_for_it(
    at: World,
) -> None:
    at.now_s = 90.0
    at.do("restart")
    at.do("host n1 V100:4")
    assert at.wake_s is not None
    assert at.wake_s <= 90.0 + at.settings.lease_s
    assert at.machine.trades()
    at.now_s = 90.0 + at.settings.lease_s
    at.do("tick")
    assert [fact.kind for fact in told(at)] == ["trade-undone"]


def test_no_trade_is_taken_back_for_a_server_that_is_away_for_a_moment(at: World) -> None:
    standing, entitled = at.machine.trades(), at.machine.entitled()
    for line in ("@90", "leave n1", "@91", "tick", "host n1 V100:4"):
        at.do(line)
        assert line[0] == "@" or not told(at), line
        assert at.machine.trades() == standing
        assert at.machine.entitled() == entitled
    at.do("@100")
    at.do("leave n1")
    at.now_s += at.settings.lease_s
    at.do("tick")
    assert [fact.kind for fact in told(at)] == ["trade-undone"]


def test_trades_are_taken_back_when_there_is_no_job_any_more(at: World) -> None:
    at.do(f"cancel root {' '.join(str(row.id) for row in at.machine.jobs())}")
    assert [fact.kind for fact in told(at)] == ["trade-undone"]
    assert at.machine.trades() == ()
    assert at.machine.base() == {}
