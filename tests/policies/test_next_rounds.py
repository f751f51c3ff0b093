"""Rounds between two allocations of time go on without a decision as they would if the policy were asked."""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hs_core.model import Migrate
from hs_core.names import JobId
from hs_core.policies import GAVEL_COMPAT, find
from hs_core.policy import Had, JobFacts, Snapshot, Verdict

from .worlds import after, having, host, job, snapshot  # noqa: TID252 — tests are no package on the path

ROUND_S = 360.0
HOSTS = [
    host("h0", 4),
    host("h1", 4),
    host("h2", 2),
    host("h3", 4, "K80"),
    host("h4", 4, "K80"),
    host("h5", 8, "Q9"),
]
GANGS = [(1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (8, 2), (4, 2)]
ALONE = sorted(name for name in GAVEL_COMPAT if not name.endswith("-packed"))
GOES_ON = sorted({*ALONE} - {"allox", "fifo"})  # the others allocate anew each round, or have no fractions


@dataclass
class Jobs:
    """As a driver tells a sequel of them."""

    asked: Snapshot
    came: bool = False
    gone: list[JobId] = field(default_factory=list)
    on_their_way: bool = False

    @property
    def migrations_left(self) -> int:
        return self.asked.migrations_left

    def _of(self, jobs: NDArray[np.int64]) -> list[JobFacts | None]:
        facts = {one.id: one for one in self.asked.jobs}
        return [facts.get(JobId(one)) for one in jobs.tolist()]

    def running(self, jobs: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.array([one is not None and one.id in self.asked.running for one in self._of(jobs)])

    def attained_gpu_s(self, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([one.attained_gpu_s if one is not None else 0.0 for one in self._of(jobs)])


def asked_about(*jobs: JobFacts, speeds: list[float]) -> Snapshot:
    numbers = iter(speeds * 100)
    rates = {(one.job_class, model): next(numbers) for one in jobs for model in ("V100", "K80", "Q9")}
    asked = snapshot(HOSTS, list(jobs), rates=rates, migrations_left=1000)
    return replace(asked, quantum_s=ROUND_S)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Snapshot, list[JobFacts]]:
    """With jobs that come later."""
    jobs = []
    for at in range(draw(st.integers(3, 16))):
        gang, nodes = draw(st.sampled_from(GANGS))
        user = draw(st.sampled_from("ABC"))
        jobs.append(job(at + 1, user, gang, nodes=nodes, movable=True, job_class=f"{user}/{gang}", steps=1e6))
    here = draw(st.integers(2, len(jobs)))
    speeds = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 4.0]), min_size=7, max_size=7))
    asked = asked_about(*jobs, speeds=speeds)
    return having(asked, jobs=tuple(jobs[:here])), jobs[here:]


@pytest.mark.parametrize("name", GOES_ON)
@settings(max_examples=6)
@given(worlds(), st.data())
def test_what_goes_on_is_what_would_be_decided(
    name: str, world: tuple[Snapshot, list[JobFacts]], data: st.DataObject
) -> None:
    asked, later = world
    policy = find(name, compat=True)
    verdict, decided = policy.decide(asked, {}), policy.decide(asked, {})
    since = Jobs(asked)
    for _ in range(20):
        sequel = verdict.sequel
        ran = {at: list(turn.gangs) for at, turn in decided.plan.turns.items()}
        asked = after(asked, decided, ran)
        happens = data.draw(st.sampled_from(["", "", "", "comes", "ends"]))
        jobs = list(asked.jobs)
        if happens == "comes" and later:
            jobs.append(later.pop(0))
            since.came = True
        if happens == "ends" and len(jobs) > 1:
            since.gone.append(jobs.pop(data.draw(st.integers(0, len(jobs) - 1))).id)
        asked = since.asked = having(asked, jobs=tuple(jobs))
        memory = sequel.memory() if sequel is not None else verdict.memory
        decided = policy.decide(asked, json.loads(json.dumps(memory)))
        onward = None
        if sequel is not None:
            onward = sequel.edge(asked.quantum, asked.now_s, Had({}, lambda: np.zeros(0), since))
        if onward is None or sequel is None:
            verdict = decided
            since = Jobs(asked)
            continue
        since.came, since.gone = False, []
        homes = {one.id: one.hosts for one in asked.jobs if one.hosts}
        assert {**homes, **onward.homes} == decided.plan.homes
        assert onward.turns == decided.plan.turns
        assert onward.tickets == decided.plan.tickets
        assert onward.entitled == decided.entitled
        assert sequel.memory() == decided.memory


def test_who_was_passed_over_by_larger_ones_is_first_as_it_would_be_decided() -> None:
    """Gangs of 4 on two servers of 6: three are promised GPUs, and two find some."""
    jobs = [job(at, "A", 4, movable=True, job_class="x", steps=1e6) for at in range(1, 4)]
    asked = replace(asked_about(*jobs, speeds=[1.0]), hosts=(host("h0", 6), host("h1", 6)))
    policy = find("gavel-max-min", compat=True)
    verdict = decided = policy.decide(asked, {})
    sequel, ran = verdict.sequel, set[JobId]()
    assert sequel is not None
    for _ in range(12):
        asked = after(asked, decided, {at: list(turn.gangs) for at, turn in decided.plan.turns.items()})
        decided = policy.decide(asked, json.loads(json.dumps(sequel.memory())))
        onward = sequel.edge(asked.quantum, asked.now_s, Had({}, lambda: np.zeros(0), Jobs(asked)))
        assert onward is not None
        assert onward.turns == decided.plan.turns
        ran |= {one for turn in onward.turns.values() for one in turn.gangs}
    assert ran == {1, 2, 3}


def test_between_two_allocations_nothing_is_decided() -> None:
    jobs = [job(at, "A", 4, movable=True, job_class="x") for at in range(1, 9)]
    asked = asked_about(*jobs, speeds=[2.0, 1.0, 1.5])
    policy = find("gavel-max-min", compat=True)
    verdict = policy.decide(asked, {})
    ran = {at: list(turn.gangs) for at, turn in verdict.plan.turns.items()}
    sequel, moved = verdict.sequel, 0
    assert sequel is not None
    for _ in range(20):
        asked = after(asked, verdict, ran)
        onward = sequel.edge(asked.quantum, asked.now_s, Had({}, lambda: np.zeros(0), Jobs(asked)))
        assert onward is not None
        ran = {at: list(turn.gangs) for at, turn in onward.turns.items()}
        moved += len(onward.homes)
        verdict = Verdict(plan=replace(verdict.plan, homes={**verdict.plan.homes, **onward.homes}))
    assert moved > 0, "more want GPUs than there are"


def test_when_somebody_has_come_and_an_allocation_is_due_it_is_decided() -> None:
    jobs = [job(at, "A", 4, movable=True, job_class="x") for at in range(1, 9)]
    asked = replace(asked_about(*jobs, speeds=[2.0, 1.0, 1.5]), now_s=ROUND_S)
    verdict = find("gavel-max-min", compat=True, reset_s=1000.0).decide(asked, {})
    assert verdict.sequel is not None
    ran = {at: list(turn.gangs) for at, turn in verdict.plan.turns.items()}
    went_on = 0
    for _ in range(5):
        asked = after(asked, verdict, ran)
        if (
            verdict.sequel.edge(
                asked.quantum, asked.now_s, Had({}, lambda: np.zeros(0), Jobs(asked, came=True))
            )
            is None
        ):
            break
        went_on += 1
    assert went_on == 2, "1,000 s are not over before the third edge"


@pytest.mark.parametrize(
    "odd",
    [{"sliceable": False}, {"migrate": Migrate.NEVER}, {"migrate": Migrate.SAME_TYPE}, {"dataset": "d"}],
)
def test_where_a_job_is_not_free_to_go_each_round_is_decided(odd: dict[str, object]) -> None:
    jobs = [job(1, "A", 2, movable=True, job_class="x"), job(2, "B", 2, movable=True, job_class="x", **odd)]
    asked = asked_about(*jobs, speeds=[2.0, 1.0, 1.5])
    assert find("gavel-max-min", compat=True).decide(asked, {}).sequel is None


def test_who_may_not_move_often_or_is_on_the_way_is_decided_about() -> None:
    jobs = [job(at, "A", 4, movable=True, job_class="x") for at in range(1, 9)]
    asked = asked_about(*jobs, speeds=[2.0, 1.0, 1.5])
    verdict = find("gavel-max-min", compat=True).decide(asked, {})
    sequel = verdict.sequel
    assert sequel is not None
    asked = after(asked, verdict, {at: list(turn.gangs) for at, turn in verdict.plan.turns.items()})
    for told in (Jobs(asked, on_their_way=True), Jobs(replace(asked, migrations_left=7)), None):
        assert sequel.edge(asked.quantum, asked.now_s, Had({}, lambda: np.zeros(0), told)) is None
    assert sequel.memory() == verdict.memory, "who does not go on changes nothing"
