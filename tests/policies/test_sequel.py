"""A verdict's sequel: quanta in which nothing changes but time go on as they would if the policy were asked."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hs_core.job_tickets import JobTickets
from hs_core.mechanism import crowd, sequel
from hs_core.mechanism.sequel import LOOK, MANY_JOBS, PACED_JOBS, pace
from hs_core.names import JobId
from hs_core.policies import find, gandiva_fair
from hs_core.policies.gandiva_fair import LIMITS
from hs_core.policy import Had, JobFacts, Memory, Onward, Snapshot, Verdict

from .worlds import Strides, after, host, job, snapshot  # noqa: TID252 — tests are no package on the path

FAIR = find("gandiva-fair")


def had(asked: Snapshot) -> Had:
    model = {host.name: host.model for host in asked.hosts}
    place = {owner: at for at, owner in enumerate(product(sorted(asked.tickets), sorted({*model.values()})))}
    gpus = np.zeros(len(place))
    for one in asked.jobs:
        if one.id in asked.running:
            gpus[place[one.user, model[one.hosts[0]]]] += one.gang
    return Had(place, lambda: gpus)


def remembered(memory: Memory) -> Memory:
    """But for when moves were made last: only a decision makes any."""
    return {name: value for name, value in memory.items() if name != "moved"}


def asked_about(*jobs: JobFacts, servers: int = 3) -> Snapshot:
    hosts = [host(f"h{at}", 4, "V100" if at < servers else "K80") for at in range(servers + 1)]
    return snapshot(hosts, list(jobs), now_s=1e6, migrations_left=1000)


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    jobs = []
    for at in range(draw(st.integers(1, 14))):
        gang, nodes = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (8, 2), (4, 2)]))
        user = draw(st.sampled_from("ABC"))
        jobs.append(job(at + 1, user, gang, nodes=nodes, movable=True, job_class=f"{user}/x"))
    tickets = {user: draw(st.integers(1, 500)) for user in "ABC"}
    asked = asked_about(*jobs, servers=draw(st.integers(1, 3)))
    return snapshot(
        list(asked.hosts), list(asked.jobs), tickets, now_s=asked.now_s, migrations_left=asked.migrations_left
    )


class Story:
    """Quanta one after the other, decided about where there is no sequel and where that does not know."""

    def __init__(self, asked: Snapshot) -> None:
        self.asked = asked
        self.strides = Strides()
        self.verdict = FAIR.decide(asked, {})
        self.plan = self.verdict.plan
        self.went_on = 0

    def pass_quantum(self) -> tuple[Onward | None, Verdict]:
        """What goes on, and what is decided by who is asked all the same."""
        self.asked = after(self.asked, Verdict(plan=self.plan), self.strides.run(self.asked, self.plan))
        sequel = self.verdict.sequel
        memory = sequel.memory() if sequel else self.verdict.memory
        decided = FAIR.decide(self.asked, json.loads(json.dumps(memory)))
        onward = None
        if sequel is not None:
            onward = sequel.edge(self.asked.quantum, self.asked.now_s, had(self.asked))
        return onward, decided


@settings(max_examples=30)
@given(worlds())
def test_what_goes_on_is_what_would_be_decided(asked: Snapshot) -> None:
    story = Story(asked)
    moved = True
    for _ in range(40):
        onward, decided = story.pass_quantum()
        if onward is None or moved or decided.plan.moves:
            story.verdict = decided
            moved = bool(decided.plan.moves)
        else:
            tickets = {**story.plan.tickets, **onward.tickets}
            assert onward.turns == decided.plan.turns
            assert tickets == decided.plan.tickets
            assert story.verdict.sequel is not None
            assert remembered(story.verdict.sequel.memory()) == remembered(decided.memory)
        story.plan = decided.plan


@pytest.mark.parametrize("few_turns", [True, False])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=worlds())
def test_what_is_weighed_at_once_is_what_is_weighed_one_by_one(
    few_turns: bool, asked: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those who take turns as few, and as a crowd."""
    monkeypatch.setattr(crowd, "FEW", 256 if few_turns else -1)
    verdicts = []
    for few_jobs in (0, 1000):
        monkeypatch.setattr(gandiva_fair, "FEW_JOBS", few_jobs)
        verdicts.append(FAIR.decide(asked, {}))
    at_once, one_by_one = verdicts
    assert isinstance(at_once.plan.tickets, JobTickets)
    tickets, strides = dict(one_by_one.plan.tickets), Strides()
    assert at_once.plan.tickets == tickets
    if one_by_one.sequel is None or at_once.sequel is None:
        assert one_by_one.sequel is at_once.sequel
        return
    plan = one_by_one.plan
    for _ in range(20):
        asked = after(asked, Verdict(plan=plan), strides.run(asked, plan))
        found, expected = (
            verdict.sequel.edge(asked.quantum, asked.now_s, had(asked))
            for verdict in (at_once, one_by_one)
            if verdict.sequel is not None
        )
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            return
        assert found.tickets == expected.tickets
        if found.tickets:
            assert isinstance(found.tickets, JobTickets)
            floats = found.tickets.floats().tolist()
            assert floats == pytest.approx(list(map(float, found.tickets.by_id.values())))
        assert found.turns == expected.turns
        tickets.update(expected.tickets)
        plan = replace(plan, turns=expected.turns, tickets=tickets)


@pytest.mark.parametrize("few_turns", [True, False])
def test_who_takes_turns_with_gangs_is_told_of_all_tickets_at_once_as_of_each(
    few_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang of A lags behind the jobs of B and C beside it: what those who take turns have got by their tickets is the same."""
    monkeypatch.setattr(crowd, "FEW", 256 if few_turns else -1)
    jobs = [job(1, "A", 8, nodes=2, hosts=("h0", "h1"), started=True)]
    jobs += [job(n, "BC"[n % 2], hosts=(f"h{n % 3}",), started=True) for n in range(2, 20)]
    asked = asked_about(*jobs)
    ran = had(replace(asked, running=frozenset(range(2, 14))))
    got: list[list[dict[str, float]]] = []
    for few_jobs in (0, 1000):
        monkeypatch.setattr(gandiva_fair, "FEW_JOBS", few_jobs)
        found, books, heavier = FAIR.decide(asked, {}).sequel, list[dict[str, float]](), 0
        assert found is not None
        for quantum in range(1, LOOK):
            if (onward := found.edge(quantum, asked.now_s + 60.0 * quantum, ran)) is None:
                break
            heavier += JobId(1) in onward.tickets
            books.append({key: float(Fraction(kept)) for key, kept in found.memory()["books"].items()})
        assert heavier
        got.append(books)
    at_once, one_by_one = got
    assert len(one_by_one[-1]) > 2
    for found_books, expected in zip(at_once, one_by_one, strict=True):
        assert found_books == pytest.approx(expected)


def test_in_a_large_world_tickets_follow_lags_before_it_is_decided_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequel, "MANY_JOBS", 0)
    monkeypatch.setattr(sequel, "PACED_JOBS", 1)
    monkeypatch.setattr(sequel, "WEIGHED_JOBS", 3)
    jobs = [job(1, "A", hosts=("h0",), started=True), *(job(n, "B", hosts=("h0",)) for n in range(2, 13))]
    asked = asked_about(*jobs)
    found = FAIR.decide(asked, {}).sequel
    assert found is not None
    ran = had(replace(asked, running=frozenset({2, 3, 4, 5})))
    told: dict[int, Fraction] = {}
    for quantum in range(1, pace(len(jobs))):
        onward = found.edge(quantum, asked.now_s + 60.0 * quantum, ran)
        assert onward is not None
        if onward.tickets:
            told[quantum] = onward.tickets[JobId(1)]
    assert list(told) == [5, 10], "each fifth quantum"
    assert told[10] > told[5] > 1


def test_a_world_that_stands_still_is_decided_about_now_and_then_only() -> None:
    story = Story(asked_about(job(1, "A", 8, nodes=2), *(job(n, "B", movable=True) for n in range(2, 12))))
    decisions = 0
    for _ in range(150):
        onward, decided = story.pass_quantum()
        if onward is None:
            decisions += 1
            story.verdict = decided
        story.plan = decided.plan
    assert 10 <= decisions <= 30


def test_nothing_goes_on_from_a_quantum_that_was_decided_about_twice() -> None:
    asked = asked_about(job(1), job(2, "B"))
    first = FAIR.decide(asked, {})
    assert first.sequel is not None
    assert FAIR.decide(asked, first.memory).sequel is None, "moves wait for the next quantum"


def test_in_a_large_world_less_is_asked_and_as_much_is_moved() -> None:
    count = MANY_JOBS + 2 * PACED_JOBS
    jobs = [
        job(n, "A", movable=True, hosts=("h0",), started=True, job_class="A/x") for n in range(1, count + 1)
    ]
    asked = asked_about(*jobs, servers=8)
    first = FAIR.decide(asked, {})
    assert len(first.plan.moves) == LIMITS.started_a_quantum
    assert first.sequel is not None
    for quantum in (1, 2):
        assert first.sequel.edge(quantum, asked.now_s + 60.0 * quantum, had(asked)) is not None
    assert first.sequel.edge(3, asked.now_s + 180.0, had(asked)) is None, (
        "some could not move for lack of budget"
    )
    later = replace(asked, quantum=3, now_s=asked.now_s + 180.0)
    second = FAIR.decide(later, json.loads(json.dumps(first.sequel.memory())))
    assert len(second.plan.moves) == 3 * LIMITS.started_a_quantum


def test_who_may_move_again_is_thought_of_after_a_few_quanta() -> None:
    """Where nothing else has changed: of ten such looks most move nobody."""
    now_s = 1e6
    jobs = [
        job(n, "A", movable=True, hosts=("h0",), started=True, job_class="A/x", settled_s=now_s - 120.0)
        for n in range(1, 13)
    ]
    first = FAIR.decide(asked_about(*jobs), {})
    assert not first.plan.moves, "they have just come"
    assert first.sequel is not None
    went_on = 0
    while first.sequel.edge(went_on + 1, now_s + 60.0 * (went_on + 1), had(asked_about(*jobs))) is not None:
        went_on += 1
    assert went_on == LOOK - 1
    later = replace(asked_about(*jobs), quantum=LOOK, now_s=now_s + 60.0 * LOOK)
    assert FAIR.decide(later, json.loads(json.dumps(first.sequel.memory()))).plan.moves
