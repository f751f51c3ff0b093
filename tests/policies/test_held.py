"""Jobs that have changed homes together (`mechanism.exchange`) stay, but for what would idle all the time and what nobody knows yet."""

from dataclasses import replace

import pytest

from hs_core.mechanism import exchange
from hs_core.mechanism.better_homes import Found, Table
from hs_core.policies.gandiva_fair import GANDIVA_FAIR
from hs_core.policy import HostFacts, JobFacts, Verdict

from .asked import ask, at, moves, rates, sweep  # noqa: TID252 — tests are no package on the path
from .worlds import host  # noqa: TID252


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they had changed homes before: nothing is another since, nor are other homes thought of."""
    monkeypatch.setattr(exchange, "stillness", lambda *_: "still")
    monkeypatch.setattr(exchange, "settle_together", lambda _: False)


def decide(hosts: list[HostFacts], jobs: list[JobFacts], held: str, **facts: object) -> Verdict:
    return GANDIVA_FAIR.decide(ask(hosts, jobs, **facts), {"held": held})


CROWDED = [host("a"), host("b")]


@pytest.mark.usefixtures("held")
def test_nobody_who_is_held_moves_to_a_server_that_carries_less() -> None:
    jobs = [*at("a", *sweep(1, 4, "A", 2)), *at("b", *sweep(5, 2, "B", 2), *sweep(7, 1, "B", 1))]
    assert len(moves(decide(CROWDED, jobs, "another"))) == 1
    verdict = decide(CROWDED, jobs, "still")
    assert moves(verdict) == {}
    assert verdict.memory["held"] == "still"


@pytest.mark.usefixtures("held")
def test_held_jobs_go_to_gpus_that_idle_all_the_time() -> None:
    jobs = [*at("a", *sweep(1, 6, "A")), *at("b", *sweep(7, 2, "A"))]
    verdict = decide(CROWDED, jobs, "still")
    assert len(moves(verdict)) == 2
    assert "held" not in verdict.memory


@pytest.mark.usefixtures("held")
def test_a_held_job_goes_to_find_out_how_fast_its_class_is_on_another_model() -> None:
    hosts = [host("v"), host("k", model="K80")]
    jobs = [*at("v", *sweep(1, 4, "B")), *at("k", *sweep(5, 4, "A"), *sweep(9, 1, "B"))]
    known = rates(B={"V100": 2.0, "K80": 1.0}, A={"K80": 1.0})
    assert list(moves(decide(hosts, jobs, "still", rates=known))) != []
    both = rates(B={"V100": 2.0, "K80": 1.0}, A={"V100": 5.0, "K80": 1.0})
    assert list(moves(decide(hosts, jobs, "still", rates=both))) == []
    assert list(moves(decide(hosts, jobs, "another", rates=both))) != []


def test_of_who_cannot_be_suspended_no_other_homes_are_thought_of(monkeypatch: pytest.MonkeyPatch) -> None:
    thought_of: list[tuple[frozenset[int], ...]] = []
    better = exchange.better

    def heard(table: Table, may_use: tuple[frozenset[int], ...]) -> Found:
        thought_of.append(may_use)
        return better(table, may_use)

    monkeypatch.setattr(exchange, "better", heard)
    jobs = at("a", *sweep(1, 1, "A", 4), *sweep(2, 1, "B", 3))
    forced = [jobs[0], replace(jobs[1], sliceable=False)]
    for there in (jobs, forced):
        GANDIVA_FAIR.decide(ask([host("a")], there, running=frozenset(one.id for one in there)), {})
    assert thought_of == [(frozenset({0}), frozenset({0})), (frozenset({0}), frozenset())]
