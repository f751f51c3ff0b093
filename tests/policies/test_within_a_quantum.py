"""Within a quantum `gandiva-fair` places who has come; all that follows for others is decided at the quantum's end."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.model import MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Snapshot, Verdict

from .asked import GANDIVA_FAIR, ask, at, rates, sweep  # noqa: TID252 — tests are no package on the path
from .worlds import having, host, job  # noqa: TID252 — tests are no package on the path

HOSTS = [host(f"v{n}") for n in range(3)] + [host(f"k{n}", model="K80") for n in range(15)]
UNLIKE = rates(A={"V100": 1.25, "K80": 1.0}, B={"V100": 5.0, "K80": 1.0}, C={"V100": 6.25, "K80": 1.0})
THREE = [one for n, user in enumerate("ABC") for one in sweep(1 + n * 100, 60, user)]


def at_edge(asked: Snapshot, before: Verdict | None = None) -> Verdict:
    memory = {} if before is None else before.memory
    return GANDIVA_FAIR.decide(replace(asked, quantum=asked.quantum + (before is not None)), memory)


def within(asked: Snapshot, before: Verdict, come: Iterable[JobFacts] = ()) -> Verdict:
    """Decided again in that quantum, about those who have their homes by then and about who has come."""
    there = [replace(one, hosts=before.plan.homes.get(one.id, ())) for one in asked.jobs]
    tickets = {one.user: Fraction(100) for one in (*there, *come)}
    return GANDIVA_FAIR.decide(
        having(asked, [*there, *come], tickets=tickets), json.loads(json.dumps(before.memory))
    )


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    hosts = [host(f"v{n}") for n in range(draw(st.integers(1, 3)))]
    hosts += [host(f"k{n}", model="K80") for n in range(draw(st.integers(1, 3)))]
    jobs: list[JobFacts] = []
    for number in range(1, draw(st.integers(2, 14))):
        user, gang = draw(st.sampled_from("ABC")), draw(st.sampled_from([1, 1, 2, 4]))
        home = draw(st.sampled_from(hosts)).name
        jobs += at(home, job(number, user, gang, job_class=f"{user}/x"))
    speed = {user: {"V100": draw(st.sampled_from([1.0, 2.0, 6.0])), "K80": 1.0} for user in "ABC"}
    return ask(hosts, jobs, rates=rates(**speed), migrations_left=0)


@settings(max_examples=60)
@given(worlds())
def test_where_nothing_has_changed_jobs_weigh_as_they_did_at_the_edge(asked: Snapshot) -> None:
    """With trades, with what was given for amends, fitted to homes, and with what users lack."""
    lags = {"V100": {"A": 20.0, "B": -20.0}, "K80": {"C": 20.0}}
    edge = GANDIVA_FAIR.decide(asked, {"lags": lags})
    again = within(asked, edge)
    assert again.plan == edge.plan
    assert again.trades == edge.trades
    assert again.entitled == edge.entitled
    assert {**again.memory} == {**edge.memory}


def test_who_comes_within_a_quantum_has_a_home_and_its_share_at_once() -> None:
    asked = ask([host("h")], at("h", *sweep(1, 4, "A")))
    edge = at_edge(asked)
    assert set(edge.plan.tickets.values()) == {1}
    verdict = within(asked, edge, sweep(5, 4, "B"))
    assert {verdict.plan.homes[JobId(number)] for number in range(5, 9)} == {(HostName("h"),)}
    assert set(verdict.plan.tickets.values()) == {Fraction(1, 2)}


def test_who_comes_within_a_quantum_goes_to_gpus_that_idle() -> None:
    asked = ask([host("x"), host("y"), host("z")], [*at("x", *sweep(1, 4, "A")), *at("z", *sweep(5, 4, "A"))])
    verdict = within(asked, at_edge(asked), [job(9, "B", 4)])
    assert verdict.plan.homes[JobId(9)] == (HostName("y"),)


def test_trades_are_made_at_the_edge_and_not_within_a_quantum() -> None:
    asked = ask(HOSTS, THREE, migrations_left=0)
    edge = at_edge(asked)
    known = replace(asked, rates=UNLIKE)
    again = within(known, edge)
    assert (again.trades, again.news) == ((), ())
    assert at_edge(known, again).trades


def test_a_trade_that_a_side_no_longer_carries_is_taken_back_within_the_quantum() -> None:
    asked = ask(HOSTS, THREE, rates=UNLIKE, migrations_left=0)
    edge = at_edge(asked)
    assert edge.trades
    alone = having(asked, [one for one in asked.jobs if one.user == "A"])
    verdict = within(alone, edge)
    assert verdict.trades == ()
    assert verdict.news
    assert all(news.undone for news in verdict.news)
    assert "trades" not in verdict.memory
    assert verdict.entitled == {("A", "V100"): 12, ("A", "K80"): 48}


def test_a_drained_server_is_left_within_the_quantum_and_fuller_ones_at_its_end() -> None:
    hosts = [host("x"), host("y"), host("z")]
    jobs = [*at("x", *sweep(1, 8, "A")), *at("z", *sweep(11, 1, "B"))]
    asked = ask(hosts, jobs, migrations_left=0)
    edge = at_edge(asked)
    drained = replace(asked, hosts=(*hosts[:2], host("z", accepts=False)), migrations_left=100)
    verdict = within(drained, edge)
    assert _reasons(verdict) == {11: MoveReason.DRAIN}
    assert set(_reasons(at_edge(drained, verdict))) > {11}


def _reasons(verdict: Verdict) -> Mapping[int, MoveReason]:
    return {int(of): reason for of, (reason, _) in verdict.plan.moves.items()}
