"""Gavel's allocations: optimal against plain programs written out per job and pair, within capacity, and near the published runs."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hs_core.dice import roll
from hs_core.errors import BrokenError
from hs_core.mechanism.gavel import kinds
from hs_core.mechanism.gavel.fair import Entity, Inside, hierarchical, max_min, water_fill
from hs_core.mechanism.gavel.finish import Lives, finish_time_fair, rho
from hs_core.mechanism.gavel.greedy import gandiva, in_order, isolated
from hs_core.mechanism.gavel.kinds import classes
from hs_core.mechanism.gavel.question import (
    Allocation,
    Question,
    Sharing,
    isolated_share,
    isolated_speed,
    proportional_speed,
)
from hs_core.mechanism.gavel.sums import least_makespan, max_sum
from hs_core.solve import InfeasibleError, Method, lp
from tests.mechanism import gavelsim
from tests.mechanism.worlds_lp import question, used_gpus

SEEDS = st.integers(0, 2**32 - 1)
CLOSE = 1e-6


def throughput(question: Question, found: Allocation) -> np.ndarray:
    """J: steps/s that each job gets, averaged over time."""
    total: np.ndarray = (found.alone * question.speed).sum(axis=1)
    if len(found.pairs):
        assert question.sharing is not None
        kind = question.sharing.kind[found.pairs]
        for own, other in ((0, 1), (1, 0)):
            speed = question.sharing.speed[kind[:, own], kind[:, other]]
            np.add.at(total, found.pairs[:, own], (speed * found.paired).sum(axis=1))
    return total


def fairness(asked: Question, found: Allocation) -> np.ndarray:
    """Of each job that can run somewhere."""
    base = proportional_speed(asked)
    runs = base > 0
    return (asked.gang * throughput(asked, found) / (asked.weight * np.where(runs, base, 1.0)))[runs]


def keeps_within(asked: Question, found: Allocation) -> None:
    assert (found.alone >= 0).all()
    assert (found.paired >= 0).all()
    assert (found.time() <= 1 + CLOSE).all()
    assert (used_gpus(found, asked) <= asked.gpus + CLOSE * (1 + asked.gpus)).all()
    assert not found.alone[~asked.can].any()
    if len(found.pairs):
        assert (found.pairs[:, 0] < found.pairs[:, 1]).all()
        assert (asked.gang[found.pairs[:, 0]] == asked.gang[found.pairs[:, 1]]).all()
        assert len(np.unique(found.pairs, axis=0)) == len(found.pairs)


def plain(asked: Question, unit: np.ndarray) -> float:
    """The largest t with `t * unit` steps/s for everybody, by a dense program with a column for each job or pair and type."""
    jobs, types = asked.speed.shape
    units: list[tuple[int, ...]] = [(job,) for job in range(jobs)]
    if asked.sharing is not None:
        units += [pair for pair in combinations(range(jobs), 2) if asked.gang[pair[0]] == asked.gang[pair[1]]]
    columns = [
        (members, on) for members in units for on in range(types) if asked.can[list(members), on].all()
    ]
    time, gpus = np.zeros((jobs, len(columns) + 1)), np.zeros((types, len(columns) + 1))
    need = np.zeros((jobs, len(columns) + 1))
    for at, (members, on) in enumerate(columns):
        time[list(members), at] = 1
        gpus[on, at] = asked.gang[members[0]]
        for job in members:
            speed = asked.speed[job, on]
            if len(members) == 2:
                assert asked.sharing is not None
                other = members[1] if job == members[0] else members[0]
                speed = asked.sharing.speed[asked.sharing.kind[job], asked.sharing.kind[other], on]
            need[job, at] = -speed
    need[:, -1] = unit
    asks = unit > 0
    if not asks.any():
        return 0.0
    costs = np.zeros(len(columns) + 1)
    costs[-1] = -1
    rows = np.vstack([time, gpus, need[asks]])
    bound = np.concatenate([np.ones(jobs), asked.gpus, np.zeros(int(asks.sum()))])
    return -lp(costs, a_ub=rows, b_ub=bound, method=Method.SIMPLEX).value


@given(SEEDS, st.booleans(), st.sampled_from([None, Method.CENTRE]))
@settings(max_examples=40)
def test_the_least_is_as_large_as_a_program_over_single_jobs_and_pairs_makes_it(
    seed: int, sharing: bool, method: Method | None
) -> None:
    asked = question(seed, sharing=sharing)
    found = max_min(asked, method=method)
    keeps_within(asked, found)
    best = plain(asked, asked.weight * proportional_speed(asked) / asked.gang)
    assert found.value == pytest.approx(best, rel=CLOSE, abs=CLOSE)
    assert fairness(asked, found).min(initial=np.inf if not best else 1e9) >= best * (1 - 1e-5) - CLOSE


@given(SEEDS, st.booleans())
@settings(max_examples=40)
def test_classes_change_nothing(seed: int, sharing: bool) -> None:
    asked = question(seed, sharing=sharing)
    assert max_min(asked).value == pytest.approx(max_min(asked, by_class=False).value, abs=CLOSE)
    assert max_sum(asked).value == pytest.approx(max_sum(asked, by_class=False).value, abs=CLOSE)
    levels = [np.sort(fairness(asked, water_fill(asked, by_class=by))) for by in (True, False)]
    assert levels[0] == pytest.approx(levels[1], abs=1e-5)


@given(SEEDS)
@example(1020)  # one of the jobs can run nowhere
@settings(max_examples=30)
def test_the_centre_does_not_depend_on_the_order_of_the_jobs(seed: int) -> None:
    asked = question(seed)
    order = np.random.default_rng(seed).permutation(len(asked.gang))
    turned = asked.part(order)
    for solve in (max_min, max_sum):
        here, there = solve(asked, method=Method.CENTRE), solve(turned, method=Method.CENTRE)
        assert there.alone == pytest.approx(here.alone[order], abs=1e-4)


def test_classes_of_few_jobs_are_told_as_those_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        asked = question(seed)
        few = classes(asked, proportional_speed(asked))
        with monkeypatch.context() as patch:
            patch.setattr(kinds, "FEW", 0)
            many = classes(asked, proportional_speed(asked))
        for name in ("of", "first", "count"):
            assert getattr(few, name).tolist() == getattr(many, name).tolist()


def test_a_thousand_jobs_by_class_are_the_whole_program() -> None:
    dice = np.random.default_rng(7)
    speed = dice.uniform(1, 10, (30, 3))
    of = dice.integers(0, 30, 1_200)
    asked = Question(speed=speed[of], gang=dice.choice([1, 2, 4], 30)[of], gpus=np.array([100, 200, 300]))
    assert max_min(asked).value == pytest.approx(max_min(asked, by_class=False).value, rel=CLOSE)


@given(SEEDS)
@settings(max_examples=40)
def test_filled_to_the_brim_nobody_gets_more_but_from_one_who_has_less(seed: int) -> None:
    asked = question(seed)
    found = water_fill(asked)
    keeps_within(asked, found)
    assert found.value == pytest.approx(max_min(asked).value, abs=CLOSE)
    runs = proportional_speed(asked) > 0
    have = np.zeros(len(asked.gang))
    have[runs] = fairness(asked, found)
    unit = asked.weight * proportional_speed(asked) / asked.gang
    # Each could have no more if all that have at most as much keep it.
    for job in np.flatnonzero(runs):
        kept = np.where(have <= have[job] + 1e-5, have * unit, 0.0)
        kept[job] = 0.0
        assert most_of(asked, job, kept * (1 - 1e-7)) <= have[job] * unit[job] * (1 + 1e-4) + 1e-4


def most_of(asked: Question, job: int, kept: np.ndarray) -> float:
    """The most steps/s of one job while others keep theirs."""
    jobs, types = asked.speed.shape
    time = np.kron(np.eye(jobs), np.ones((1, types)))
    gpus = np.kron(asked.gang[None, :], np.eye(types))
    speed = np.where(asked.can, asked.speed, 0.0)
    rate = np.zeros((jobs, jobs * types))
    for at in range(jobs):
        rate[at, at * types : (at + 1) * types] = speed[at]
    rows = np.vstack([time, gpus, -rate])
    bound = np.concatenate([np.ones(jobs), asked.gpus, -kept])
    return -lp(-rate[job], a_ub=rows, b_ub=bound, method=Method.SIMPLEX).value


def test_entities_get_their_weights_however_many_jobs_they_have() -> None:
    # Six equal jobs for three GPUs: entity 0 (weight 2) has one job, which can use no more than a GPU; the others share the rest 1:1.
    asked = Question(speed=np.ones((6, 1)), gang=np.ones(6, int), gpus=np.array([3]))
    of = np.array([0, 1, 1, 1, 2, 2])
    found = hierarchical(asked, of, [Entity(weight=2), Entity(weight=1), Entity(weight=1)])
    assert found.alone[:, 0] == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2])
    keeps_within(asked, found)


def test_a_fifo_entity_serves_its_first_job_first() -> None:
    asked = Question(speed=np.ones((5, 1)), gang=np.ones(5, int), gpus=np.array([3]))
    of = np.array([0, 0, 0, 1, 1])
    entities = [Entity(weight=1, inside=Inside.FIFO), Entity(weight=1)]
    found = hierarchical(asked, of, entities)
    assert found.alone[:, 0] == pytest.approx([1, 0.5, 0, 0.75, 0.75])


def test_users_of_very_unlike_tickets_are_filled_to_the_brim() -> None:
    for seed in range(60):
        dice = np.random.default_rng(seed)
        users = int(dice.integers(1, 30))
        jobs = users + int(dice.integers(0, 30))
        tickets = dice.choice([0.001, 0.01, 1, 100, 1e4, 1e6], users)
        asked = Question(
            speed=dice.choice([0.5, 1.0, 3.0], (jobs, 2)),
            gang=dice.choice([1, 2, 4], jobs),
            gpus=dice.choice([4, 8, 16], 2),
        )
        of = np.concatenate([np.arange(users), dice.integers(0, users, jobs - users)])
        found = hierarchical(asked, of, [Entity(weight=float(one)) for one in tickets / tickets.sum()])
        keeps_within(asked, found)
        busy = used_gpus(found, asked)
        assert busy.sum() == pytest.approx(min(asked.gpus.sum(), asked.gang.sum()), rel=1e-5), seed


def test_an_allocation_is_found_where_presolving_its_program_says_that_there_is_none() -> None:
    dice = np.random.default_rng(2838)
    jobs, types = int(dice.integers(1, 60)), int(dice.integers(1, 4))
    users = int(dice.integers(1, jobs + 1))
    speed = dice.choice([0.0, 0.5, 1.0, 3.0], (jobs, types))
    gang, gpus = dice.choice([1, 2, 4, 8], jobs), dice.choice([1, 2, 4, 8, 16, 100], types)
    tickets = dice.choice([0.001, 0.01, 1, 100, 1e4, 1e6], users)
    of = np.concatenate([np.arange(users), dice.integers(0, users, jobs - users)])
    weight = dice.choice([0.001, 1, 1e6], jobs)
    asked = Question(speed=speed, gang=gang, gpus=gpus, weight=weight)
    entities = [Entity(weight=float(one)) for one in tickets / tickets.sum()]
    keeps_within(asked, hierarchical(asked, of, entities))


def test_hierarchical_refuses_what_it_cannot_read() -> None:
    asked = Question(speed=np.ones((1, 1)), gang=np.ones(1, int), gpus=np.array([1]))
    with pytest.raises(BrokenError, match="entity names 2; expected 0 to 0"):
        hierarchical(asked, np.array([2]), [Entity(weight=1)])
    with pytest.raises(BrokenError, match="entity 0 has weight 0"):
        hierarchical(asked, np.array([0]), [Entity(weight=0)])


def lives_of(asked: Question, seed: int) -> Lives:
    dice = np.random.default_rng(seed)
    jobs = len(asked.gang)
    age, left = dice.uniform(0, 5e3, jobs), dice.uniform(10, 1e5, jobs) * (dice.random(jobs) < 0.9)
    alone = isolated_speed(asked)
    return Lives(
        age_s=age,
        steps_left=left,
        alone_s=age * dice.uniform(0.3, 1.3, jobs) + left / np.where(alone > 0, alone, 1.0) + 1.0,
    )


@given(SEEDS, st.booleans(), st.sampled_from([None, Method.CENTRE]))
@settings(max_examples=40)
def test_finish_time_fairness_is_optimal_in_at_most_six_programs(
    seed: int, sharing: bool, method: Method | None
) -> None:
    asked = question(seed, sharing=sharing)
    lives = lives_of(asked, seed)
    found = finish_time_fair(asked, lives, method=method)
    keeps_within(asked, found)
    assert sharing or found.lps <= 6
    runs = asked.can.any(axis=1) & (lives.steps_left > 0)
    if not runs.any():
        return
    assert rho(lives, throughput(asked, found))[runs].max() == pytest.approx(found.value, rel=2e-5)
    assert not feasible(asked, lives, found.value * (1 - 1e-4))


def feasible(asked: Question, lives: Lives, most: float) -> bool:
    """Whether nobody needs to end later than so many times what it takes alone."""
    runs = asked.can.any(axis=1) & (lives.steps_left > 0)
    slack = most * lives.alone_s - lives.age_s
    if not (slack[runs] > 0).all():
        return False
    return plain(asked, np.where(runs, lives.steps_left / np.where(slack > 0, slack, 1.0), 0.0)) >= 1


def wide_lives_of(asked: Question, seed: int) -> Lives:
    """From seconds to months."""
    dice = np.random.default_rng(seed)
    jobs, alone = len(asked.gang), isolated_speed(asked)
    left = 10 ** dice.uniform(0, 7, jobs)
    had_s = 10 ** dice.uniform(-1, 5, jobs) * (dice.random(jobs) < 0.7)
    alone_s = had_s + left / np.where(alone > 0, alone, 1.0)
    return Lives(age_s=alone_s * 10 ** dice.uniform(-4, 0.2, jobs), steps_left=left, alone_s=alone_s)


@given(SEEDS)
@example(572)
@example(619)
@example(1335)
@settings(max_examples=40)
def test_finish_time_fairness_is_as_exact_as_it_says_where_lengths_differ_by_orders(seed: int) -> None:
    asked = question(seed, sharing=False)
    lives = wide_lives_of(asked, seed)
    found = finish_time_fair(asked, lives)
    if found.lps and np.isfinite(found.value):
        assert not feasible(asked, lives, found.value * (1 - 3e-6))


@given(SEEDS, st.booleans())
@example(1140783, True)
@settings(max_examples=30)
def test_the_makespan_is_the_least_that_is_feasible(seed: int, sharing: bool) -> None:
    asked = question(seed, sharing=sharing)
    left = np.random.default_rng(seed).uniform(1, 1e5, len(asked.gang))
    found = least_makespan(asked, left)
    keeps_within(asked, found)
    runs = asked.can.any(axis=1)
    if runs.any():
        # In units in which the program's numbers are near 1: with hours in seconds it stops a little short of the best.
        hours = plain(asked, np.where(runs, left / 3600, 0.0))
        assert 3600 / found.value == pytest.approx(hours, rel=1e-5)
        assert (left[runs] / throughput(asked, found)[runs]).max() == pytest.approx(found.value, rel=1e-5)


@pytest.mark.parametrize("method", [None, Method.CENTRE])
@pytest.mark.parametrize("times", [1e-3, 1e3, 1e6, 1e9, 1e13])
def test_the_makespan_of_jobs_that_are_so_many_times_as_long_is_as_many_times_as_long(
    times: float, method: Method | None
) -> None:
    asked = question(5)
    left = np.random.default_rng(5).uniform(1, 5, len(asked.gang))
    found = least_makespan(asked, left * times, method=method)
    assert found.value == pytest.approx(least_makespan(asked, left).value * times, rel=1e-6)
    assert (left * times / throughput(asked, found)).max() == pytest.approx(found.value, rel=1e-6)


@pytest.mark.parametrize("light", [1e-9, 1e-15, 1e-18])
def test_who_weighs_next_to_nothing_costs_the_others_nothing(light: float) -> None:
    asked = Question(speed=np.array([[2.0, 1.0]] * 4), gang=np.ones(4, int), gpus=np.array([1, 1]))
    found = max_min(replace(asked, weight=np.array([light, light, 1.0, 1.0])))
    assert throughput(asked, found)[2:] == pytest.approx([1.5, 1.5], rel=1e-5)


def test_where_all_weigh_next_to_nothing_they_share_as_if_all_weighed_one() -> None:
    """As in one of pop's parts, where the users of many tickets are in the others."""
    asked = Question(
        speed=np.array([[2.0, 1.0], [3.0, 1.0]]), gang=np.ones(2, np.int64), gpus=np.array([1, 1])
    )
    light = max_min(replace(asked, weight=np.full(2, 1e-15)))
    assert light.alone == pytest.approx(max_min(asked).alone, abs=1e-6)
    assert light.value == pytest.approx(max_min(asked).value * 1e15)


@pytest.mark.parametrize("method", [None, Method.CENTRE])
def test_a_job_without_end_beside_one_that_is_nearly_done_is_no_harder_to_answer(
    method: Method | None,
) -> None:
    asked = Question(speed=np.array([[10.0, 5.0]] * 3), gang=np.ones(3, int), gpus=np.array([1, 1]))
    left = np.array([1.0, 1e3, 1e15])
    assert least_makespan(asked, left, method=method).value == pytest.approx(1e14, rel=1e-5)
    lives = Lives(age_s=np.array([60.0] * 3), steps_left=left, alone_s=60.0 + left / isolated_speed(asked))
    fair = finish_time_fair(asked, lives, method=method)
    assert rho(lives, throughput(asked, fair)).max() == pytest.approx(fair.value, rel=1e-4)
    assert fair.value <= rho(lives, isolated_speed(asked)).max()


def test_the_largest_sum_prefers_quick_steps_and_cheap_types() -> None:
    asked = Question(speed=np.array([[10.0, 4], [3, 2]]), gang=np.ones(2, int), gpus=np.array([1, 1]))
    assert max_sum(asked).alone == pytest.approx(np.array([[1, 0], [0, 1.0]]))
    assert max_sum(asked).value == pytest.approx(12)
    # At a sixth of the price the slow type is the better buy for the first.
    cheap = max_sum(asked, price=np.array([6.0, 1.0]))
    assert cheap.alone == pytest.approx(np.array([[0, 1], [1, 0.0]]))
    met = max_sum(asked, least=np.array([0.0, 2.5]))
    assert throughput(asked, met)[1] == pytest.approx(2.5)
    with pytest.raises(InfeasibleError):
        max_sum(asked, least=np.array([0.0, 4.0]))


def test_two_of_a_kind_share_with_each_other_and_never_with_themselves() -> None:
    beside = np.array([[[0.8]]])
    for jobs, expected in ((1, 1.0), (2, 0.8), (3, 1.6 / 3)):
        asked = Question(
            speed=np.ones((jobs, 1)),
            gang=np.ones(jobs, int),
            gpus=np.array([1]),
            sharing=Sharing(kind=np.zeros(jobs, int), speed=beside),
        )
        found = max_min(asked)
        keeps_within(asked, found)
        assert throughput(asked, found) == pytest.approx(np.full(jobs, expected))


def test_sharing_that_turns_would_beat_is_not_used() -> None:
    asked = Question(
        speed=np.ones((2, 1)),
        gang=np.ones(2, int),
        gpus=np.array([1]),
        sharing=Sharing(kind=np.zeros(2, int), speed=np.array([[[0.45]]])),
    )
    assert not len(max_min(asked).pairs)


def test_who_can_run_nowhere_gets_nothing_and_harms_nobody() -> None:
    asked = Question(speed=np.array([[1.0], [0.0], [1.0]]), gang=np.array([1, 1, 4]), gpus=np.array([2]))
    for found in (max_min(asked), water_fill(asked), max_sum(asked), least_makespan(asked, np.ones(3))):
        assert found.alone[:, 0] == pytest.approx([1, 0, 0])
    nobody = replace(asked, speed=np.zeros((3, 1)))
    assert max_min(nobody).alone.sum() == 0
    assert max_min(Question(speed=np.zeros((0, 2)), gang=np.zeros(0, int), gpus=np.array([1, 1]))).lps == 0


def test_the_isolated_share_is_a_part_of_the_cluster_of_its_own() -> None:
    asked = Question(speed=np.ones((4, 2)), gang=np.array([1, 2, 1, 4]), gpus=np.array([2, 6]))
    share = isolated_share(asked)
    assert share[1] == pytest.approx([0.25, 0.75])
    assert share[0] == pytest.approx([0.25, 0.75])  # 0.5 and 1.5, scaled down to all of its time
    assert (asked.gang @ share <= asked.gpus + CLOSE).all()


def test_a_question_that_makes_no_sense_is_named() -> None:
    good = question(1)
    with pytest.raises(BrokenError, match="weight has"):
        replace(good, weight=np.zeros(len(good.gang)))
    with pytest.raises(BrokenError, match="speed has values below 0"):
        replace(good, speed=-good.speed - 1)
    with pytest.raises(BrokenError, match="speed has shape"):
        replace(good, gpus=np.ones(9, int), room=np.ones(9, int))


def test_in_order_each_takes_the_fastest_free_type_until_one_fits_nowhere() -> None:
    asked = Question(
        speed=np.array([[3.0, 2], [3, 2], [0, 5], [3, 2], [1, 1]]),
        gang=np.array([1, 1, 1, 2, 1]),
        gpus=np.array([2, 1]),
    )
    found = in_order(asked, range(5))
    assert found.alone.tolist() == [[1, 0], [1, 0], [0, 1], [0, 0], [0, 0]]
    # The third could run only on the second type, which is taken: it lets others by. The fourth fits nowhere, and holds up the last.
    assert in_order(asked, [4, 2, 0, 3, 1]).alone.tolist() == [[1, 0], [0, 0], [0, 1], [0, 0], [1, 0]]
    assert in_order(asked, [1, 3, 2, 4, 0]).alone.sum() == 1
    assert in_order(asked, [1, 3, 2, 4, 0], blocking=False).alone.tolist() == [
        [0, 0],
        [1, 0],
        [0, 1],
        [0, 0],
        [1, 0],
    ]
    with pytest.raises(BrokenError, match="each of 5 jobs once"):
        in_order(asked, [0, 0, 1, 2, 3])


def test_late_jobs_join_the_one_that_they_disturb_least() -> None:
    beside = np.full((2, 2, 1), 0.8)
    beside[0, 1] = beside[1, 0] = 0.7
    asked = Question(
        speed=np.ones((4, 1)),
        gang=np.ones(4, int),
        gpus=np.array([2]),
        sharing=Sharing(kind=np.array([0, 1, 0, 1]), speed=beside),
    )
    found = in_order(asked, range(4))
    assert found.pairs.tolist() == [[0, 2], [1, 3]]
    assert throughput(asked, found) == pytest.approx(np.full(4, 0.8))
    keeps_within(asked, found)


def test_a_random_pair_is_tried_and_parted_at_the_next_allocation_if_it_is_not_worth_it() -> None:
    """The first two disturb each other so much that turns would be quicker, the others hardly."""
    beside = np.full((2, 2, 1), 0.9)
    beside[0, 0] = 0.4
    asked = Question(
        speed=np.ones((4, 1)),
        gang=np.ones(4, int),
        gpus=np.array([2]),
        sharing=Sharing(kind=np.array([0, 0, 1, 1]), speed=beside),
    )
    drawn = [gandiva(asked, roll(seed)).pairs.tolist() for seed in range(20)]
    assert [[0, 1], [2, 3]] in drawn
    then = [gandiva(asked, roll(seed), [(0, 1)]).pairs.tolist() for seed in range(20)]
    assert any([0, 1] not in pairs for pairs in then)
    assert all([0, 2] in gandiva(asked, roll(seed), [(2, 0)]).pairs.tolist() for seed in range(20))


@given(SEEDS)
@settings(max_examples=40)
def test_greedy_allocations_keep_within_the_cluster(seed: int) -> None:
    asked = question(seed, sharing=True)
    jobs = len(asked.gang)
    pairs = gandiva(asked, roll(seed)).pairs
    for found in (
        isolated(asked),
        in_order(asked, range(jobs)),
        in_order(asked, range(jobs), blocking=False),
        gandiva(asked, roll(seed), [(one, other) for one, other in pairs.tolist()]),
    ):
        keeps_within(asked, found)


# -- against the published runs of Gavel's simulator ---------------------------------------------------------------------------------

CENTRE = Method.CENTRE
STILL = {"multi_lam300": (27734, 86581), "single_lam300": (13373, 55999), "multi_static": (40941, 82622)}
RUNS: dict[str, tuple[gavelsim.Solve, bool, dict[str, tuple[float, float]], float]] = {
    "max-min": (
        lambda asked, _, _ids: max_min(asked, method=CENTRE),
        False,
        {"multi_lam300": (19914, 70346)},
        0.02,
    ),
    "fifo": (lambda asked, _, _ids: in_order(asked, range(len(asked.gang))), False, STILL, 1e-4),
    "max-min of corners": (
        lambda asked, _, _ids: max_min(asked),
        False,
        {"single_lam300": (11694, 50393), "multi_static": (31162, 65289)},
        0.02,
    ),
    "max-min packed": (
        lambda asked, _, _ids: max_min(asked),
        True,
        {"multi_lam300": (17163, 65229), "single_lam300": (10644, 50120)},
        0.07,
    ),
    "finish-time fairness": (
        lambda asked, lives, _ids: finish_time_fair(asked, lives, method=CENTRE),
        False,
        {"multi_lam300": (20407, 70321), "single_lam300": (12547, 50574)},
        0.02,
    ),
    "max sum": (
        lambda asked, _, _ids: max_sum(asked, method=CENTRE),
        False,
        {"multi_lam300": (21805, 77467)},
        0.07,
    ),
    "makespan": (
        lambda asked, lives, _ids: least_makespan(asked, lives.steps_left, method=CENTRE),
        False,
        {"multi_lam300": (44953, 64295)},
        0.02,
    ),
}


@pytest.mark.skipif(not gavelsim.DATA.is_dir(), reason=f"no data at {gavelsim.DATA}")
@pytest.mark.parametrize("name", RUNS)
def test_gavels_own_simulations_come_out_alike(name: str) -> None:
    solve, sharing, traces, tolerance = RUNS[name]
    tables = gavelsim.Tables.read(gavelsim.DATA / "gavel" / "throughputs.json")
    for trace, (jct_s, makespan_s) in traces.items():
        jobs = gavelsim.read_trace(gavelsim.DATA / "traces" / f"gen120_{trace}_seed0.trace", tables)
        done = gavelsim.simulate(jobs, tables, (12, 12, 12), solve, sharing=sharing, skip_zero=name == "fifo")
        assert done.mean_jct_s == pytest.approx(jct_s, rel=tolerance), trace
        assert done.makespan_s == pytest.approx(makespan_s, rel=tolerance), trace
        assert max(done.lps) <= 6 or sharing


@pytest.mark.skipif(not gavelsim.DATA.is_dir(), reason=f"no data at {gavelsim.DATA}")
def test_random_packing_comes_out_alike_in_the_mean_of_several_draws() -> None:
    """Gavel's own run is one throw of its dice."""
    tables = gavelsim.Tables.read(gavelsim.DATA / "gavel" / "throughputs.json")
    found = []
    for seed in range(4):
        together: set[tuple[int, int]] = set()

        def solve(
            asked: Question,
            _: Lives,
            ids: list[int],
            seed: int = seed,
            together: set[tuple[int, int]] = together,
        ) -> Allocation:
            at = {job: place for place, job in enumerate(ids)}
            now = sorted((at[one], at[other]) for one, other in together if one in at and other in at)
            packed = gandiva(asked, roll(seed, len(ids), ids[-1]), now)
            together.clear()
            together.update((ids[one], ids[other]) for one, other in packed.pairs.tolist())
            return packed

        jobs = gavelsim.read_trace(gavelsim.DATA / "traces" / "gen120_multi_lam300_seed0.trace", tables)
        found.append(gavelsim.simulate(jobs, tables, (12, 12, 12), solve, sharing=True))
    assert np.mean([one.mean_jct_s for one in found]) == pytest.approx(20939, rel=0.04)
    assert np.mean([one.makespan_s for one in found]) == pytest.approx(72712, rel=0.04)
    assert np.mean([one.utilization for one in found]) == pytest.approx(0.863, abs=0.02)


@pytest.mark.skipif(not gavelsim.DATA.is_dir(), reason=f"no data at {gavelsim.DATA}")
def test_the_blind_policy_comes_out_alike_whatever_order_the_types_are_shuffled_to() -> None:
    tables = gavelsim.Tables.read(gavelsim.DATA / "gavel" / "throughputs.json")
    found = []
    for seed in range(2):
        jobs = gavelsim.read_trace(gavelsim.DATA / "traces" / "gen120_multi_lam300_seed0.trace", tables)
        found.append(
            gavelsim.simulate(
                jobs,
                tables,
                (12, 12, 12),
                lambda asked, _, _ids: max_min(asked.blind(everywhere=True), method=CENTRE),
                shuffle=seed,
            )
        )
    assert np.mean([done.mean_jct_s for done in found]) == pytest.approx(21288, rel=0.02)
    assert np.mean([done.makespan_s for done in found]) == pytest.approx(80172, rel=0.02)
