"""A verdict's sequel: quanta in which nothing changes but time go on as they would if the policy were asked."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.mechanism.sequel import LOOK
from hs_core.policies import find
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
    jobs = [job(n, "A", movable=True, hosts=("h0",), started=True, job_class="A/x") for n in range(1, 4_001)]
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
