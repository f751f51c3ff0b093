"""Hadar's prices, and its two ways to admit."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError, RefusedError
from hs_core.mechanism import hadar
from hs_core.mechanism.hadar import Holdings, Terms, decide
from hs_core.mechanism.hadar_exact import exact, seat
from hs_core.mechanism.hadar_servers import Servers
from hs_core.mechanism.prices import Floats, Ints, Jobs, effective_throughput, prices
from tests.mechanism.hadar_recursion import recursive
from tests.mechanism.hadar_rounds import FREE, cases, columns, jobs, whole_gangs


@given(cases())
@settings(max_examples=40, deadline=None)
def test_gangs_are_whole_and_no_gpu_is_promised_twice(case: tuple[Jobs, Ints]) -> None:
    facts, capacity = case
    first = decide(facts, capacity)
    whole_gangs(facts, capacity, first.holdings)
    again = decide(facts, capacity, held=first.holdings)
    whole_gangs(facts, capacity, again.holdings)
    kept = decide(facts, capacity, held=first.holdings, terms=Terms(preempt=False)).holdings
    rows = set(zip(kept.job, kept.server, kept.kind, kept.gpus, strict=True))
    assert (
        set(
            zip(
                first.holdings.job,
                first.holdings.server,
                first.holdings.kind,
                first.holdings.gpus,
                strict=True,
            )
        )
        <= rows
    )


@given(cases())
@settings(max_examples=25, deadline=None)
def test_only_who_gains_is_admitted(case: tuple[Jobs, Ints]) -> None:
    found = decide(*case)
    runs = np.unique(found.holdings.job)
    assert (found.payoff[runs] > 0).all()
    assert found.payoff.sum() == pytest.approx(found.payoff[runs].sum())
    assert (found.worth >= found.payoff).all()


@given(cases())
@settings(max_examples=25, deadline=None)
def test_filling_leaves_no_gpus_that_a_waiting_job_could_use(case: tuple[Jobs, Ints]) -> None:
    facts, capacity = case
    found = decide(facts, capacity, terms=Terms(fill=True)).holdings
    free = (capacity - found.taken(*capacity.shape)).sum(axis=0)
    for job in set(range(len(facts.workers))) - set(found.job.tolist()):
        assert free[facts.rates[job] > 0].sum() < facts.workers[job]


@given(cases(most=5))
@settings(max_examples=25, deadline=None)
def test_the_recursion_gains_what_the_best_subset_does(case: tuple[Jobs, Ints]) -> None:
    facts, capacity = case
    count = len(facts.workers)
    utility = effective_throughput(facts)
    table = hadar._table(facts, hadar.NOBODY, utility, Terms())
    best = 0.0
    for subset in itertools.product([False, True], repeat=count):
        servers = Servers.of(
            capacity, np.zeros_like(capacity), prices(facts, capacity, utility, Terms().round_s)
        )
        total = 0.0
        for job in np.flatnonzero(subset):
            choice = hadar.Auction(servers, table, [other == job for other in range(count)]).best()
            if choice is None or choice.payoff <= 0:
                break
            servers.take(choice.picks)
            total += choice.payoff
        else:
            best = max(best, total)
    found = recursive(facts, capacity)
    whole_gangs(facts, capacity, found.holdings)
    assert found.payoff.sum() == pytest.approx(best)


def test_the_greedy_loop_gains_nearly_what_the_recursion_does() -> None:
    total = np.zeros(2)
    for seed in range(25):
        dice = np.random.default_rng(seed)
        rates = dice.uniform(0.5, 2, (7, 3)) * [4, 2, 1]
        iterations = np.exp(dice.uniform(6, 9, 7))
        facts = jobs(rates, dice.choice([1, 2, 4], 7), iterations)
        capacity = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 4]])
        total += decide(facts, capacity).payoff.sum(), recursive(facts, capacity).payoff.sum()
    assert 0.95 * total[1] <= total[0]


def test_workers_of_one_job_sit_on_unlike_gpus_where_no_type_has_enough() -> None:
    facts = jobs([[4.0, 2.0, 1.0]], [3], [1000])
    capacity = np.array([[2, 0, 0], [0, 1, 0], [0, 0, 1]])
    found = decide(facts, capacity, terms=FREE)
    assert found.holdings.kind.tolist() == [0, 1]
    assert found.worth[0] == pytest.approx(3 * 2.0)  # three times its slowest worker
    assert exact(facts, capacity, terms=FREE).holdings.kind.tolist() == [0, 1]


def test_a_job_stays_where_it_is_when_moving_gains_nothing() -> None:
    facts = jobs([[2.0], [2.0]], [2, 2], [1000, 1000])
    held = Holdings(*np.array([[0, 1, 0, 2], [1, 0, 0, 2]]).T)
    found = decide(facts, np.array([[2], [2], [2]]), held=held).holdings
    assert (found.job.tolist(), found.server.tolist()) == ([0, 1], [1, 0])


@pytest.mark.parametrize("preempt", [True, False])
def test_who_held_a_lost_server_is_placed_anew(preempt: bool) -> None:
    facts = jobs([[2.0]], [2], [1000])
    held = Holdings(*np.array([[0, 0, 0, 2]]).T)
    found = decide(facts, np.array([[0], [2]]), held=held, terms=Terms(preempt=preempt)).holdings
    assert found.server.tolist() == [1]
    assert exact(facts, np.array([[0], [2]]), held=held).holdings.server.tolist() == [1]


def test_a_gang_held_back_by_a_slow_gpu_takes_no_more_fast_ones_than_it_must() -> None:
    facts = jobs([[4.0, 2.0]], [3], [1000])
    found = decide(facts, np.array([[2, 0], [0, 2]])).holdings
    assert (found.kind.tolist(), found.gpus.tolist()) == ([0, 1], [1, 2])


def test_gangs_come_together_where_communication_costs() -> None:
    facts = jobs([[1.0]], [4], [1000])
    capacity = np.array([[2], [4], [2]])
    assert decide(facts, capacity).holdings.server.tolist() == [1]


def test_prices_rise_from_least_to_most() -> None:
    facts = jobs([[4.0, 2.0], [3.0, 1.0]], [1, 2], [4000, 9000])
    capacity = np.array([[4, 0], [0, 2]])
    found = prices(facts, capacity, effective_throughput(facts), 360.0)
    assert (found.least > 0).all()
    assert found.most.tolist() == pytest.approx([4.0, 4.0])  # 4/s for one worker, or 6/s for two
    at = [found.of(np.array([[taken, 0], [0, 0]]), capacity)[0, 0] for taken in range(5)]
    assert at == sorted(at)
    assert (at[0], at[-1]) == pytest.approx((found.least[0], found.most[0]))
    assert np.isinf(found.of(np.zeros_like(capacity), capacity)[0, 1])


def test_the_least_price_is_of_a_job_that_ends_last_since_its_own_arrival_not_the_oldests() -> None:
    facts = replace(jobs([[0.01], [1.0]], [1, 1], [2, 100]), age_s=np.array([0.0, 5000.0]))
    found = prices(facts, np.array([[1]]), effective_throughput(facts), 100.0)
    # One after the other they take 200 + 100 s. By then the young one is 300 s old, and its own run is two rounds.
    assert found.least.tolist() == pytest.approx([2 / 300 / 2 / 4])


def test_a_utility_of_ones_own_decides_who_runs() -> None:
    facts = jobs([[1.0], [1.0]], [1, 1], [100, 100])

    def second_first(ends_s: Floats) -> Floats:
        return np.array([[1.0], [9.0]]) / ends_s

    assert decide(facts, np.array([[1]]), utility=second_first).holdings.job.tolist() == [1]


def test_a_job_past_its_deadline_is_worth_nothing_and_waits() -> None:
    facts = jobs([[1.0], [1.0]], [1, 1], [100, 1000])

    def before_500_s(ends_s: Floats) -> Floats:
        return np.where(ends_s <= 500, 1.0, 0.0)

    assert decide(facts, np.array([[2]]), utility=before_500_s).holdings.job.tolist() == [0]
    assert exact(facts, np.array([[2]]), utility=before_500_s).holdings.job.tolist() == [0]


def test_nobody_gets_what_is_not_there() -> None:
    facts = jobs([[1.0, 0.0]], [3], [10])
    assert len(decide(facts, np.array([[2, 9]])).holdings.job) == 0
    assert len(exact(facts, np.array([[2, 9]])).holdings.job) == 0
    assert recursive(facts, np.array([[2, 9]])).worth.sum() == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": [0]}, "workers has 0; expected at least 1"),
        ({"rates": [[-1.0]]}, "rates has -1.0"),
        ({"iterations": [0.0]}, "iterations has 0.0"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        jobs(**{"rates": [[1.0]], "workers": [1], "iterations": [1.0], **change})  # type: ignore[arg-type]


def test_holdings_never_exceed_servers() -> None:
    found = seat(np.array([[3, 0], [1, 1], [0, 0], [2, 0]]), np.array([[4, 0], [2, 1]]))
    assert (found.taken(2, 2) <= [[4, 0], [2, 1]]).all()
    assert np.bincount(found.job, found.gpus, 4).tolist() == [3, 2, 0, 2]
    with pytest.raises(BrokenError, match="are seated"):
        seat(np.array([[9]]), np.array([[4]]))


@st.composite
def shaped(draw: st.DrawFn) -> tuple[Jobs, Ints]:
    """Gangs that want so many servers, servers of one type each."""
    facts, _ = draw(cases())
    dice = np.random.default_rng(draw(st.integers(0, 10**6)))
    nodes, types = dice.integers(1, 4, len(facts.workers)), facts.rates.shape[1]
    capacity = np.zeros((draw(st.integers(1, 6)), types), np.int64)
    capacity[np.arange(len(capacity)), dice.integers(0, types, len(capacity))] = dice.integers(
        1, 5, len(capacity)
    )
    return replace(facts, workers=nodes * dice.integers(1, 4, len(nodes)), nodes=nodes), capacity


@given(shaped(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_gang_that_wants_servers_has_so_many_with_as_many_gpus_on_each(
    case: tuple[Jobs, Ints], greedy: bool
) -> None:
    facts, capacity = case
    assert facts.nodes is not None
    holdings = (
        decide(facts, capacity, terms=Terms(fill=True)).holdings
        if greedy
        else exact(facts, capacity).holdings
    )
    whole_gangs(facts, capacity, holdings)
    for job in np.unique(holdings.job).tolist():
        mine = holdings.job == job
        assert len(set(holdings.server[mine].tolist())) == facts.nodes[job] == mine.sum()
        assert set(holdings.gpus[mine].tolist()) == {facts.workers[job] // facts.nodes[job]}
    if not greedy:
        return
    left = (capacity - holdings.taken(*capacity.shape)).max(axis=1)
    for job in set(range(len(facts.workers))) - set(holdings.job.tolist()):
        able = facts.rates[job, capacity.argmax(axis=1)] > 0
        each = facts.workers[job] // facts.nodes[job]
        assert (able & (left >= each)).sum() < facts.nodes[job], "it could have run"


@given(shaped())
@settings(max_examples=40, deadline=None)
def test_who_is_fixed_is_where_it_was_or_nowhere(case: tuple[Jobs, Ints]) -> None:
    facts, capacity = case
    held = decide(facts, capacity, terms=Terms(fill=True)).holdings
    fixed = np.ones(len(facts.workers), np.bool_)
    stays = decide(facts, capacity, held=held, terms=Terms(fill=True), fixed=fixed).holdings
    assert columns(stays) == columns(held)
    programmed = set(zip(*columns(exact(facts, capacity, held=held, fixed=fixed).holdings), strict=True))
    assert programmed <= set(zip(*columns(held), strict=True))


def test_a_cluster_without_a_free_gpu_is_no_trouble() -> None:
    """The bound of nothing is 0 but for rounding, and worths are many times that."""
    facts = replace(jobs([[1 / 3]], [3], [3.0], age_s=999_999.0), nodes=np.array([3]))
    assert exact(facts, np.zeros((3, 1), np.int64), terms=Terms(restart_s=10.0)).holdings.job.size == 0
