"""Migrating least: the paper's examples, the literal algorithm, and what must never happen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from benchmarks.literal import migration_cost, node_cost
from hs_core.errors import BrokenError
from hs_core.mechanism.tesserae.migrate import Ints, by_name, least_moves, least_moves_of_gpus, settle
from hs_core.mechanism.tesserae.small import small_assignments


def plan(*nodes: list[tuple[int, ...] | int]) -> Ints:
    """Nodes as lists of GPUs, each a job, several or () for none."""
    rows = [[[each] if isinstance(each, int) else list(each) for each in node] for node in nodes]
    return np.array([[[*gpu, -1, -1][:2] for gpu in node] for node in rows])


def random_plan(dice: np.random.Generator, nodes: int, gpus: int, jobs: list[int], packing: float) -> Ints:
    """Gangs of 1, 2, 4 (or two nodes) in free GPUs of one node; then some GPUs get a second gang of the same shape."""
    found = np.full((nodes, gpus, 2), -1)
    order = dice.permutation(jobs).tolist()
    for job in order:
        gang = [1, 1, 2, 2, 4, 2 * gpus][job % 6]
        free = found[:, :, 0] < 0
        if gang > gpus:
            whole = np.flatnonzero(free.all(axis=1))[:2]
            if len(whole) == 2:
                found[whole, :, 0] = job
            continue
        room = np.flatnonzero(free.sum(axis=1) >= gang)
        if len(room):
            node = int(dice.choice(room))
            found[node, np.flatnonzero(free[node])[:gang], 0] = job
        else:
            host = [
                other
                for other in np.unique(found[found >= 0])
                if (found[:, :, 0] == other).sum() == gang
                and (found[found[:, :, 0] == other][:, 1] < 0).all()
            ]
            if host and dice.random() < packing:
                found[..., 1][found[..., 0] == dice.choice(host)] = job
    return found


@given(st.integers(0, 10**6), st.integers(1, 7), st.sampled_from([1, 2, 4]), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=120, deadline=None)
def test_the_optimum_is_that_of_the_literal_algorithm(
    seed: int, nodes: int, gpus: int, packing: float
) -> None:
    dice = np.random.default_rng(seed)
    jobs = list(range(nodes * gpus * 2))
    old = random_plan(dice, nodes, gpus, jobs[: int(len(jobs) * 0.8)], packing)
    new = random_plan(dice, nodes, gpus, jobs[int(len(jobs) * 0.2) :], packing)
    found = least_moves(old, new)
    assert found.cost == pytest.approx(migration_cost(old, new), abs=1e-9)
    assert sorted(found.node.tolist()) == list(range(nodes))
    assert (np.sort(found.gpu, axis=1) == np.arange(gpus)).all()
    there = found.plan(new)
    # The cost is that of the plan as it will stand, and so are the jobs that move.
    assert by_name(old, there).cost == pytest.approx(found.cost, abs=1e-9)
    assert by_name(old, there).moved.tolist() == found.moved.tolist()
    assert len(settle(old, new).moved) <= len(by_name(old, new).moved)


@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_plans_that_differ_only_by_names_cost_nothing(seed: int, nodes: int, gpus: int) -> None:
    dice = np.random.default_rng(seed)
    old = random_plan(dice, nodes, gpus, list(range(nodes * gpus * 2)), 1.0)
    new = old[dice.permutation(nodes)]
    for node in range(nodes):
        new[node] = new[node][dice.permutation(gpus)]
    new = new[..., ::-1] if dice.random() < 0.5 else new
    found = least_moves(old, new)
    assert (found.cost, found.moved.tolist()) == (0.0, [])
    assert (np.sort(found.plan(new), axis=2) == np.sort(old, axis=2)).all()


@given(st.integers(0, 10**6), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_consolidated_jobs_stay_consolidated(seed: int, nodes: int) -> None:
    dice = np.random.default_rng(seed)
    jobs = list(range(nodes * 8))
    old, new = (random_plan(dice, nodes, 4, jobs, 1.0) for _ in range(2))
    there = settle(old, new).plan(new)
    for job in np.unique(new[new >= 0]):
        assert (new == job).any(axis=(1, 2)).sum() == (there == job).any(axis=(1, 2)).sum()


def test_figure_6s_pair_of_nodes_costs_one_and_a_half() -> None:
    """Jobs 1 and 4 leave the node, 6 enters; 2 and 3 stay under other names. All are elsewhere in the other plan."""
    old, new = plan([1, (2, 3), 4, ()]), plan([(2, 3), 6, (), ()])
    assert node_cost(old[0], new[0], dict.fromkeys(range(7), 1)) == 1.5
    elsewhere_old, elsewhere_new = plan([6, 7, (), ()]), plan([1, 4, 7, ()])
    found = least_moves(np.concatenate([old, elsewhere_old]), np.concatenate([new, elsewhere_new]))
    assert found.node.tolist() == [0, 1]
    assert found.cost == 3.0  # out of one node and into the other
    assert found.moved.tolist() == [1, 4, 6]


def test_jobs_that_come_or_leave_cost_nothing() -> None:
    assert least_moves(plan([1, 2], [3, 3]), plan([4, 5], [3, 3])).cost == 0
    assert least_moves(plan([1, 2]), plan([(), ()])).cost == 0


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_nodes_with_a_gpu_out_of_service_keep_all_names(seed: int, nodes: int) -> None:
    dice = np.random.default_rng(seed)
    old, new = (random_plan(dice, nodes, 4, list(range(nodes * 6)), 0.5) for _ in range(2))
    keep = dice.random(nodes) < 0.4
    found = least_moves(old, new, keep)
    assert (found.node[keep] == np.flatnonzero(keep)).all()
    assert (found.gpu[keep] == np.arange(4)).all()
    assert sorted(found.node.tolist()) == list(range(nodes))
    assert least_moves(old, new).cost <= found.cost + 1e-9 <= by_name(old, new).cost + 2e-9


def test_who_changes_partner_is_counted_once() -> None:
    old, new = plan([(1, 2), 3], [4, 5]), plan([1, (2, 3)], [4, 5])
    found = least_moves(old, new)
    assert (found.cost, found.moved.tolist()) == (1.0, [2])


def test_single_gpus_are_renamed_over_all_nodes() -> None:
    old, new = plan([1, 2], [3, 4]), plan([1, 3], [2, 4])
    assert least_moves(old, new).cost == 2.0
    assert least_moves_of_gpus(old, new).cost == 0.0
    with pytest.raises(BrokenError, match="two jobs on one GPU"):
        least_moves_of_gpus(plan([(1, 2)]), plan([1]))


def test_plans_must_have_the_same_shape() -> None:
    with pytest.raises(BrokenError, match=r"shapes \(1, 2, 2\) and \(1, 1, 2\)"):
        least_moves(plan([1, 2]), plan([1]))


@given(st.integers(0, 10**6), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_many_small_assignments_are_each_the_best(seed: int, size: int) -> None:
    gains = np.random.default_rng(seed).integers(0, 4, (5, size, size)).astype(float)
    found = small_assignments(gains)
    for gain, columns in zip(gains, found, strict=True):
        rows, best = linear_sum_assignment(gain, maximize=True)
        assert sorted(columns.tolist()) == list(range(size))
        assert gain[np.arange(size), columns].sum() == gain[rows, best].sum()
