"""FFT's round against brute force, its own bound and the paper's formulas."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError, RefusedError
from hs_core.mechanism.fft.costs import Jobs, fair_rounds, owed_next, round_costs
from hs_core.mechanism.fft.exchange import exchanged
from hs_core.mechanism.fft.most import most_gpus
from hs_core.mechanism.fft.program import Floats, Ints, decide

Case = tuple[Floats, Ints, Ints]


@st.composite
def cases(draw: st.DrawFn, jobs: int = 5, types: int = 3) -> Case:
    jobs, types = draw(st.integers(1, jobs)), draw(st.integers(1, types))
    costs = np.array(
        draw(
            st.lists(
                st.one_of(st.floats(-50, 50), st.just(np.inf)), min_size=jobs * types, max_size=jobs * types
            )
        )
    ).reshape(jobs, types)
    gpus = np.array(draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 8]), min_size=jobs, max_size=jobs)))
    capacity = np.array(draw(st.lists(st.integers(0, 12), min_size=types, max_size=types)))
    return costs, gpus, capacity


def brute(costs: Floats, gpus: Ints, capacity: Ints) -> tuple[int, float]:
    """Most GPUs, and the least cost with so many."""
    jobs, types = costs.shape
    best = (0, 0.0)
    for choice in itertools.product(range(-1, types), repeat=jobs):
        runs = [job for job in range(jobs) if choice[job] >= 0]
        used = np.zeros(types, np.int64)
        for job in runs:
            used[choice[job]] += gpus[job]
        value = sum(costs[job, choice[job]] for job in runs)
        if (used <= capacity).all() and np.isfinite(value):
            best = min(best, (-int(used.sum()), float(value)))
    return -best[0], best[1]


def large(jobs: int, types: int, gpus: int, seed: int) -> Case:
    dice = np.random.default_rng(seed)
    gangs = dice.choice([1, 2, 4, 8], jobs, p=[0.6, 0.2, 0.15, 0.05])
    rates = dice.uniform(0.5, 1.5, (jobs, types)) * np.sort(dice.uniform(1, 6, types))
    work = np.exp(dice.normal(3, 1.5, jobs)) * rates.mean(axis=1)
    moved = np.where(dice.random((jobs, types)) < 0.5, dice.random((jobs, types)) * 0.3, 0)
    rates[dice.random((jobs, types)) < 0.05] = 0
    facts = Jobs(
        rates=rates,
        work=work,
        gpus=gangs,
        age=dice.integers(0, 200, jobs).astype(float),
        owed=np.zeros(jobs),
        transfer=moved,
    )
    return round_costs(facts), gangs, np.full(types, gpus // types)


@given(cases())
@settings(max_examples=40, deadline=None)
def test_a_small_round_is_the_best_there_is(case: Case) -> None:
    gpus, value = brute(*case)
    found = decide(*case, gap=0.0)
    assert found.gpus == gpus
    assert found.value == pytest.approx(value, abs=1e-5)
    assert found.bound <= found.value


@given(cases(jobs=6, types=2))
@settings(max_examples=40, deadline=None)
def test_no_choice_uses_more_gpus(case: Case) -> None:
    costs, gpus, capacity = case
    found = most_gpus(gpus, np.isfinite(costs), capacity)
    assert found.proved
    assert found.gpus == brute(*case)[0]
    runs = np.flatnonzero(found.choice >= 0)
    assert found.gpus == gpus[runs].sum()
    assert (np.bincount(found.choice[runs], gpus[runs], len(capacity)) <= capacity).all()
    assert np.isfinite(costs[runs, found.choice[runs]]).all()


@pytest.mark.parametrize(
    ("jobs", "gangs", "most"),
    [(4000, [3, 5, 7], 1000), (300, [6, 10, 15], 1000), (4000, [3, 6, 12], 984), (4000, [7, 11, 13], 1000)],
)
def test_odd_gangs_fill_what_their_sums_can(jobs: int, gangs: list[int], most: int) -> None:
    dice = np.random.default_rng(jobs)
    found = most_gpus(dice.choice(gangs, jobs), dice.random((jobs, 8)) > 0.4, np.full(8, 125))
    assert (found.gpus, found.proved) == (most, True)


@pytest.mark.parametrize("seed", range(4))
def test_a_large_round_is_within_a_two_thousandth_of_its_bound(seed: int) -> None:
    costs, gpus, capacity = large(1500, 6, 400, seed)
    found = decide(costs, gpus, capacity)
    assert found.gap <= 5e-4
    runs = np.flatnonzero(found.choice >= 0)
    assert found.gpus == gpus[runs].sum() == capacity.sum()  # nothing idles while a thousand jobs wait
    assert (np.bincount(found.choice[runs], gpus[runs], 6) == capacity).all()
    assert found.value == pytest.approx(costs[runs, found.choice[runs]].sum())


def test_the_same_question_has_the_same_answer() -> None:
    case = large(300, 4, 80, 7)
    assert decide(*case).choice.tolist() == decide(*case).choice.tolist()


def test_a_thousand_jobs_alike_are_no_harder() -> None:
    costs = np.tile([3.0, 2.0], (1000, 1))
    found = decide(costs, np.full(1000, 2), np.array([41, 60]))
    assert (found.gpus, found.value) == (100, 20 * 3.0 + 30 * 2.0)
    assert found.gap == 0


def test_when_all_fit_each_gets_its_cheapest_type() -> None:
    costs, gpus, _ = large(50, 4, 80, 1)
    found = decide(costs, gpus, np.full(4, 1000))
    assert found.choice.tolist() == costs.argmin(axis=1).tolist()


def test_who_can_run_nowhere_waits() -> None:
    found = decide(np.full((3, 2), np.inf), np.array([1, 2, 1]), np.array([4, 4]))
    assert (found.choice.tolist(), found.gpus, found.value) == ([-1, -1, -1], 0, 0.0)


def test_no_gpus_no_jobs() -> None:
    for busy in (True, False):
        assert decide(np.array([[-41.5], [np.inf]]), np.array([4, 8]), np.array([0]), busy=busy).gpus == 0


def test_idle_gpus_are_left_idle_where_nothing_makes_them_busy() -> None:
    found = decide(np.array([[5.0], [-9.0], [-2.0]]), np.array([1, 2, 2]), np.array([4]), busy=False)
    assert (found.choice.tolist(), found.value) == ([-1, 0, 0], -11.0)


def test_gpus_are_kept_busy_even_at_a_positive_cost() -> None:
    found = decide(np.array([[5.0], [9.0]]), np.array([1, 2]), np.array([2]))
    assert found.choice.tolist() == [-1, 0]


def jobs(**changes: object) -> Jobs:
    facts: dict[str, object] = {
        "rates": np.array([[4.0, 2.0], [1.0, 0.0]]),
        "work": np.array([100.0, 10.0]),
        "gpus": np.array([2, 1]),
        "age": np.array([5.0, 0.0]),
        "owed": np.array([0.25, 0.0]),
        "transfer": np.array([[0.0, 0.5], [0.0, 0.0]]),
    }
    return Jobs(**{**facts, **changes})  # type: ignore[arg-type]


def test_the_cost_is_the_papers_sum() -> None:
    found = round_costs(jobs())
    assert found[0].tolist() == pytest.approx(
        [5 * 4 / 100 + 2 * 25 - 0.25 * 4, 5 * 2 / 100 + 2 * 50 + 0.5 - 0.25 * 2]
    )
    assert found[1].tolist() == [10.0, np.inf]  # too large for the second type's memory


def test_a_job_shorter_than_a_round_does_no_more_in_it_than_it_has() -> None:
    """Its time alone is as short as it is: of two such jobs the shorter one still costs less."""
    short, shorter = np.array([40.0, 20.0]), np.array([400.0, 5.0])
    found = round_costs(
        jobs(
            rates=np.array([short, shorter]),
            work=np.full(2, 10.0),
            age=np.full(2, 5.0),
            owed=np.full(2, 0.25),
        )
    )
    assert found[0].tolist() == pytest.approx([5 + 2 / 4 - 0.25 * 10, 5 + 2 / 2 + 0.5 - 0.25 * 10])
    assert found[1].tolist() == pytest.approx([5 + 1 / 40 - 0.25 * 10, 5 / 2 + 2 - 0.25 * 5])


def test_who_is_behind_is_owed_more_and_who_is_ahead_less() -> None:
    facts = jobs()
    fair = fair_rounds(facts.rates, facts.work, facts.gpus, np.array([2, 4]) / 2)
    # Half of (2, 4) GPUs: the pair of GPUs half the time on the fast type and half the time on the slow one.
    assert fair.tolist() == pytest.approx([100 / (0.5 * 4 + 0.5 * 2), 10 / 1.0])
    waited = owed_next(facts, fair, np.array([-1, -1]))
    assert waited.tolist() == pytest.approx([0.25 + 5 / (100 / 3) * 3, 0.0])
    ran = owed_next(facts, fair, np.array([0, 0]))
    assert ran.tolist() == pytest.approx([0.25 + 5 / (100 / 3) * (3 - 4), 0.0])


def test_a_starved_job_is_served_before_a_shorter_one() -> None:
    """Without compensation the long job would wait for as long as short ones come."""
    owed = np.zeros(2)
    rates, gpus, capacity = np.array([[1.0], [1.0]]), np.array([1, 1]), np.array([1])
    for age in range(200):
        facts = Jobs(
            rates=rates,
            work=np.array([30.0, 5.0]),
            gpus=gpus,
            age=np.array([float(age), 0.0]),
            owed=owed,
            transfer=np.zeros((2, 1)),
        )
        choice = decide(round_costs(facts), gpus, capacity).choice
        if choice[0] == 0:
            break
        owed = owed_next(facts, fair_rounds(rates, facts.work, gpus, capacity / 2), choice) * [1, 0]
    assert 60 < age < 100  # it is owed age^2 / 240 and costs 25 more than the short ones


@pytest.mark.parametrize("rounds", [300.0, 1e4])
@pytest.mark.parametrize("short", [[], [5.0]], ids=["alone", "beside-a-short-one"])
def test_equal_jobs_run_equally_often_however_long_they_are(rounds: float, short: list[float]) -> None:
    """What they are owed is little beside the rounds that each of them takes: less than what the program is exact to."""
    long = np.array([rounds] * 3 + short)
    jobs, capacity = len(long), np.array([2 + len(short)])
    rates, gpus, owed = 100.0 / long[:, None], np.ones(jobs, np.int64), np.zeros(jobs)
    ran = np.zeros(jobs, np.int64)
    for age in range(1, 61):
        facts = Jobs(
            rates=rates,
            work=np.full(jobs, 100.0),
            gpus=gpus,
            age=np.full(jobs, float(age)),
            owed=owed,
            transfer=np.zeros((jobs, 1)),
        )
        choice = decide(round_costs(facts), gpus, capacity).choice
        ran += choice >= 0
        owed = owed_next(facts, fair_rounds(rates, facts.work, gpus, capacity / jobs), choice)
    assert ran[:3].sum() == 120
    assert ran[:3].min() >= 39


@given(cases(jobs=6), st.sampled_from([0.0, 1e5]))
@settings(max_examples=60, deadline=None)
def test_no_exchange_of_places_costs_less(case: Case, beside: float) -> None:
    """Of those with gangs of one size; `beside` what all of them cost."""
    costs, gpus, capacity = case
    costs = costs + beside
    first = most_gpus(gpus, np.isfinite(costs), capacity).choice
    made = exchanged(costs, gpus, first)

    def places(choice: Ints) -> list[tuple[int, int]]:
        return sorted(zip(gpus.tolist(), choice.tolist(), strict=True))

    def cost(choice: Sequence[int]) -> float:
        return sum(float(costs[job, kind]) for job, kind in enumerate(choice) if kind >= 0)

    assert places(made) == places(first)
    assert (made == exchanged(costs, gpus, made)).all()
    others = itertools.product(range(-1, len(capacity)), repeat=len(gpus))
    least = min(cost(other) for other in others if places(np.array(other)) == places(first))
    assert cost(made.tolist()) == pytest.approx(least, abs=1e-9 * max(1.0, beside))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"work": np.array([0.0, 1.0])}, "work has 0.0"),
        ({"gpus": np.array([0, 1])}, "gpus has 0; expected at least 1"),
        ({"rates": np.array([[-1.0, 0.0], [1.0, 1.0]])}, "rates has -1.0"),
        ({"age": np.array([np.nan, 0.0])}, "age has nan"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        jobs(**change)


def test_shapes_must_agree() -> None:
    with pytest.raises(BrokenError, match=r"costs has shape \(2, 2\); expected \(3, 2\)"):
        decide(np.zeros((2, 2)), np.ones(3, np.int64), np.ones(2, np.int64))
