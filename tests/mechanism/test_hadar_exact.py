"""Hadar's exact program, beside the best that there is."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.mechanism import hadar_exact
from hs_core.mechanism.hadar import Holdings, Terms, decide
from hs_core.mechanism.hadar_exact import exact
from hs_core.mechanism.prices import Ints, Jobs, Laid, effective_throughput
from tests.mechanism.hadar_rounds import FREE, cases, columns, jobs, whole_gangs


def best_worth(facts: Jobs, capacity: Ints) -> float:
    """Of all ways to hand out the types' GPUs to gangs."""
    worth = effective_throughput(facts)(facts.ends_s())
    types = capacity.shape[1]

    def ways(job: int) -> list[tuple[tuple[int, ...], float]]:
        found = [((0,) * types, 0.0)]
        for counts in itertools.product(range(int(facts.workers[job]) + 1), repeat=types):
            if sum(counts) == facts.workers[job]:
                used = [kind for kind in range(types) if counts[kind]]
                slowest = min(used, key=lambda kind: facts.rates[job, kind])
                if facts.rates[job, slowest] > 0:
                    found.append((counts, float(worth[job, slowest])))
        return found

    best = {tuple(capacity.sum(axis=0).tolist()): 0.0}
    for job in range(len(facts.workers)):
        after: dict[tuple[int, ...], float] = {}
        for free, total in best.items():
            for counts, value in ways(job):
                left = tuple(have - need for have, need in zip(free, counts, strict=True))
                if min(left) >= 0:
                    after[left] = max(after.get(left, 0.0), total + value)
        best = after
    return max(best.values())


@given(cases())
@settings(max_examples=25, deadline=None)
def test_the_exact_round_is_worth_most(case: tuple[Jobs, Ints]) -> None:
    facts, capacity = case
    found = exact(facts, capacity, terms=FREE)
    whole_gangs(facts, capacity, found.holdings)
    best = best_worth(facts, capacity)
    assert found.worth == pytest.approx(best, rel=2e-3)
    assert found.bound >= best * (1 - 1e-6)
    assert decide(facts, capacity, terms=FREE).worth.sum() <= best * (1 + 1e-9)


def test_a_large_exact_round_is_within_a_thousandth_of_the_bound() -> None:
    dice = np.random.default_rng(5)
    rates = dice.uniform(0.7, 1.3, (800, 3)) * [4, 2, 1] * dice.uniform(1, 20, (800, 1))
    iterations = np.exp(dice.normal(0.5, 1.5, 800)) * 3600 * rates.mean(axis=1)
    facts = jobs(rates, dice.choice([1, 2, 4, 8], 800, p=[0.6, 0.2, 0.15, 0.05]), iterations, age_s=1000.0)
    capacity = np.zeros((100, 3), np.int64)
    capacity[np.arange(100), np.arange(100) % 3] = 4
    found = exact(facts, capacity)
    whole_gangs(facts, capacity, found.holdings)
    assert 0 <= found.gap <= 1e-3
    assert decide(facts, capacity).worth.sum() <= found.bound


def test_the_program_spreads_a_gang_over_types_in_whole_servers() -> None:
    lone = exact(replace(jobs([[4.0, 1.0]], [4], [1e4]), nodes=np.array([2])), np.array([[3, 0], [0, 2]]))
    assert columns(lone.holdings) == [[0, 0], [0, 1], [0, 1], [2, 2]]
    assert lone.each.tolist() == [pytest.approx(0.95 * 1e4 / 2510)], "5 % of it for the second server"


def test_the_program_gives_a_gang_no_more_servers_of_a_type_than_there_are() -> None:
    """Of the fast type there is one server, and what it has left would be enough for all parts."""
    pools = np.array([[4, 0], [4, 0], [0, 8]])
    lone = exact(replace(jobs([[1.0, 4.0]], [3], [1e4]), nodes=np.array([3])), pools)
    assert columns(lone.holdings) == [[0, 0, 0], [0, 1, 2], [0, 0, 1], [1, 1, 1]]
    assert lone.worth == pytest.approx(lone.bound)


def test_the_program_knows_that_a_gang_is_wider_than_the_servers_of_a_type() -> None:
    pools = np.array([[4, 0], [4, 0], [0, 8]])
    both = replace(jobs([[4.0, 1.0], [4.0, 3.9]], [8, 4], [1e4, 1e4]), nodes=np.array([1, 1]))
    assert columns(exact(both, pools).holdings) == [[0, 1], [2, 0], [1, 0], [8, 4]]


def may_be_laid(rates: list[float], *, over: float = 1.0, gang: int = 2) -> Jobs:
    """One job of 10,000 iterations on one server or two, where it is `over` times as fast."""
    made = jobs([rates], [gang], [1e4])
    laid = Laid(np.array([[2]]), over * np.array([[rates]]))
    return replace(made, nodes=np.array([1]), laid=laid)


APART = np.array([[1, 0], [1, 0], [0, 2]])  # two fast GPUs on two servers, two others on one


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(
    ("slow", "over", "servers"),
    [(0.9, 1.0, [0, 1]), (0.98, 1.0, [2]), (0.9, 0.93, [2])],
    ids=["fast GPUs gain more than 5 %", "they gain less", "over two servers it was measured to be slower"],
)
def test_a_gang_that_may_be_spread_is_where_it_gains_more_than_communication_costs(
    slow: float, over: float, servers: list[int], *, greedy: bool
) -> None:
    facts = may_be_laid([1.0, slow], over=over)
    # All types have one price here, so that worth alone decides.
    found = decide(facts, APART, utility=lambda ends_s: 1e6 / ends_s) if greedy else exact(facts, APART)
    assert found.holdings.server.tolist() == servers
    if not greedy:
        alone = 1e4 / (1e4 / (2 * slow) + 10)
        spread = 0.95 * 1e4 / (1e4 / (2 * over) + 10)
        assert found.each.tolist() == [pytest.approx(max(alone, spread))]
        assert found.bound >= found.worth


def seated(seed: int) -> tuple[Jobs, Ints, Holdings]:
    """Up to four gangs of one server or two, half of which hold some, and up to three servers of two types."""
    dice = np.random.default_rng(seed)
    servers, types, count = (int(dice.integers(1, top)) for top in (4, 3, 5))
    capacity = np.zeros((servers, types), np.int64)
    kind = dice.integers(0, types, servers)
    capacity[np.arange(servers), kind] = dice.integers(1, 5, servers)
    nodes, each = dice.choice([1, 1, 2], count), dice.integers(1, 4, count)
    iterations = np.exp(dice.uniform(3, 9, count))
    facts = Jobs(
        rates=dice.choice([0, 0.5, 1, 2, 4], (count, types)),
        workers=nodes * each,
        iterations=iterations,
        left=iterations * dice.uniform(0.1, 1, count),
        age_s=dice.uniform(0, 3000, count),
        nodes=nodes,
    )
    rows: list[tuple[int, ...]] = []
    free = capacity[np.arange(servers), kind]
    for job in np.flatnonzero(dice.random(count) < 0.5).tolist():
        able = np.flatnonzero((free >= each[job]) & (facts.rates[job, kind] > 0))[: nodes[job]].tolist()
        if len(able) == nodes[job]:
            free[able] -= each[job]
            rows.extend((job, server, int(kind[server]), int(each[job])) for server in able)
    return facts, capacity, Holdings(*np.array(rows, np.int64).reshape(-1, 4).T)


def best_seated(facts: Jobs, capacity: Ints, held: Holdings, terms: Terms) -> float:
    """Of all ways to give gangs servers: who stays on its own, of whatever types, neither restarts nor pays for communication."""
    assert facts.nodes is not None
    utility, kind = effective_throughput(facts), capacity.argmax(axis=1)
    moves, stays = (utility(facts.ends_s(restart_s)) for restart_s in (terms.restart_s, 0.0))
    best = {tuple(capacity.max(axis=1).tolist()): 0.0}
    for job, nodes in enumerate(facts.nodes.tolist()):
        each, home = int(facts.workers[job]) // nodes, tuple(held.server[held.job == job].tolist())
        after = dict(best)
        for free, total in best.items():
            for on in itertools.combinations(range(len(free)), nodes):
                values = stays if on == home else moves * terms.kept(nodes)
                value = min(values[job, kind[server]] for server in on)
                left = tuple(have - each * (server in on) for server, have in enumerate(free))
                if value > 0 and min(left) >= 0:
                    after[left] = max(after.get(left, 0.0), total + value)
        best = after
    return max(best.values())


@pytest.mark.parametrize("largest", [hadar_exact.MIXED_JOBS, 0], ids=["whole program", "prices alone"])
def test_with_servers_and_gangs_at_home_on_several_types_the_bound_holds_and_nearly_the_best_is_found(
    monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(hadar_exact, "MIXED_JOBS", largest)
    parts = []
    for seed in range(300):
        facts, capacity, held = seated(seed)
        most = best_seated(facts, capacity, held, Terms())
        found = exact(facts, capacity, held=held)
        whole_gangs(facts, capacity, found.holdings)
        assert found.bound >= most * (1 - 1e-6)
        assert found.worth <= most * (1 + 1e-9), "it says what those holdings are worth"
        parts.append(found.worth / most if most else 1.0)
    assert min(parts) > (0.7 if largest else 0.6)
    assert np.mean(parts) > (0.998 if largest else 0.99)


def test_a_gang_worth_far_more_is_kept_waiting_by_nobody_who_holds_servers() -> None:
    """Beside three GPUs of four in use it does not fit, whichever of the two servers they are on."""
    facts = replace(jobs([[1.0], [1.0]], [3, 4], [1e3, 1e5]), nodes=np.array([1, 2]))
    facts = replace(facts, age_s=np.array([2e5, 0.0]))
    held = Holdings(*np.array([[0, 0, 0, 3]]).T)
    found = exact(facts, np.array([[4], [4]]), held=held)
    assert columns(found.holdings) == [[1, 1], [0, 1], [0, 0], [2, 2]]


@pytest.mark.parametrize("largest", [hadar_exact.MIXED_JOBS, 0], ids=["whole program", "prices alone"])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_gang_on_two_types_is_not_started_anew_for_nothing(
    monkeypatch: pytest.MonkeyPatch, largest: int, *, fixed: bool
) -> None:
    monkeypatch.setattr(hadar_exact, "MIXED_JOBS", largest)
    facts = replace(jobs([[2.0, 1.0]], [2], [1e4]), nodes=np.array([2]))
    held = Holdings(*np.array([[0, 0, 0, 1], [0, 1, 1, 1]]).T)
    found = exact(facts, np.array([[1, 0], [0, 1], [0, 1]]), held=held, fixed=np.array([fixed]))
    assert columns(found.holdings) == columns(held)
    assert found.worth == pytest.approx(2.0)
    assert found.gap < (hadar_exact.GAP if largest else 0.5)


@st.composite
def spreadable(draw: st.DrawFn) -> tuple[Jobs, Ints]:
    facts, capacity = draw(cases(most=3))
    gangs = 2 * facts.workers
    laid = Laid(
        np.column_stack([np.full_like(gangs, 2), np.where(gangs % 4, 0, 4)]),
        np.repeat(facts.rates[:, None, :], 2, axis=1),
    )
    one = np.eye(capacity.shape[1], dtype=np.int64)  # GPUs of one type on each server
    return replace(facts, workers=gangs, nodes=np.ones_like(gangs), laid=laid), capacity.max(axis=1)[
        :, None
    ] * one[np.arange(len(capacity)) % len(one)]


def best_spread(facts: Jobs, capacity: Ints, terms: Terms) -> float:
    """Of all ways to lay gangs over servers."""
    assert facts.laid is not None
    worth = effective_throughput(facts)(facts.ends_s(terms.restart_s))
    kind_of, over = capacity.argmax(axis=1), np.column_stack([facts.nodes, facts.laid.nodes])

    def best(job: int, free: tuple[int, ...]) -> float:
        if job == len(worth):
            return 0.0
        found = best(job + 1, free)
        for nodes in over[job][over[job] > 0].tolist():
            each = int(facts.workers[job]) // nodes
            for servers in itertools.combinations(range(len(free)), nodes):
                value = min(worth[job, kind_of[server]] for server in servers) * terms.kept(nodes)
                if value > 0 and all(free[server] >= each for server in servers):
                    left = tuple(have - each * (server in servers) for server, have in enumerate(free))
                    found = max(found, value + best(job + 1, left))
        return found

    return best(0, tuple(capacity.max(axis=1).tolist()))


@given(spreadable())
@settings(max_examples=80, deadline=None)
def test_gangs_that_may_be_spread_are_whole_in_equal_parts_and_worth_no_more_than_could_be(
    case: tuple[Jobs, Ints],
) -> None:
    facts, capacity = case
    assert facts.laid is not None
    most = best_spread(facts, capacity, Terms())
    found = exact(facts, capacity)
    for holdings in (found.holdings, decide(facts, capacity, terms=Terms(fill=True)).holdings):
        whole_gangs(facts, capacity, holdings)
        for job in np.unique(holdings.job).tolist():
            mine = holdings.job == job
            assert mine.sum() in {1, *facts.laid.nodes[job].tolist()} - {0}
            assert len(set(holdings.server[mine].tolist())) == mine.sum()
            assert set(holdings.gpus[mine].tolist()) == {facts.workers[job] // mine.sum()}
    assert found.worth <= most * (1 + 1e-9)
    assert found.bound >= most * (1 - 1e-6)


def test_the_program_finds_nearly_the_best_way_to_lay_gangs_over_servers() -> None:
    totals = np.zeros(2)
    for seed in range(60):
        dice = np.random.default_rng(seed)
        rates = dice.uniform(0.8, 1.2, (3, 2))
        made = replace(jobs(rates, [2, 2, 4], dice.uniform(1e3, 1e4, 3)), nodes=np.ones(3, np.int64))
        laid = Laid(np.array([[2, 0], [2, 0], [2, 4]]), np.repeat(rates[:, None, :], 2, axis=1))
        facts = replace(made, laid=laid)
        capacity = np.array(
            [[dice.integers(1, 4), 0], [dice.integers(1, 4), 0], [0, dice.integers(1, 4)], [0, 2]]
        )
        totals += exact(facts, capacity).worth, best_spread(facts, capacity, Terms())
    assert totals[0] > 0.97 * totals[1]
