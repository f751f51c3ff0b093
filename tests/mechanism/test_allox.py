"""AlloX's matching is the assignment's optimum, proved by prices, and its runs are Gavel's."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.mechanism.allox import allox
from hs_core.mechanism.gavel.finish import Lives
from hs_core.mechanism.gavel.question import Allocation, Question
from hs_core.solve import Sinks, assign, transport
from tests.mechanism import gavelsim


def idle(devices: Iterable[int]) -> list[np.ndarray]:
    return [np.zeros(many) for many in devices]


def by_assignment(left_s: np.ndarray, free_in_s: Sequence[np.ndarray]) -> float:
    """A column for every position of every device."""
    jobs = len(left_s)
    columns = [
        left_s[:, on] * k + wait_s
        for on, waits_s in enumerate(free_in_s)
        for wait_s in waits_s
        for k in range(1, jobs + 1)
    ]
    costs = np.minimum(np.stack(columns, axis=1), 1e12)
    rows, chosen = assign(costs)
    return float(costs[rows, chosen].sum())


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_no_assignment_is_cheaper_and_the_bound_proves_it(seed: int) -> None:
    dice = np.random.default_rng(seed)
    jobs, types = int(dice.integers(1, 10)), int(dice.integers(1, 4))
    devices = dice.integers(0, 3, types)
    left = np.where(
        dice.random((jobs, types)) < 0.2, np.inf, dice.integers(0, dice.choice([4, 1_000]), (jobs, types))
    )
    waits = [dice.integers(0, dice.choice([1, 3, 1_000]), many).astype(float) for many in devices]
    found = allox(left, waits)
    runs = (np.isfinite(left) & (devices > 0)).any(axis=1)
    assert (found.on[~runs] == -1).all()
    if not runs.any():
        return
    best = by_assignment(np.where(devices > 0, left, np.inf)[runs], waits)
    assert found.total_s == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert found.bound_s == pytest.approx(best, rel=1e-6, abs=1e-6)
    # Each place of a device is somebody's, and one begins on each device that is used.
    places = list(zip(found.on[runs], found.device[runs], found.place[runs], strict=True))
    assert len(set(places)) == len(places)
    assert (found.device[runs] < devices[found.on[runs]]).all()
    begins = [(on, device) for on, device, _ in {(o, d, 0) for o, d, _ in places}]
    assert int(found.first.sum()) == len(begins)
    for job in np.flatnonzero(found.first):
        same = (found.on == found.on[job]) & (found.device == found.device[job])
        assert found.place[job] == found.place[same].max()


def test_the_shortest_begins_and_each_goes_where_it_is_fast() -> None:
    left = np.array([[10.0, 100], [30, 40], [20, 25]])
    found = allox(left, idle([1, 1]))
    assert found.on.tolist() == [0, 0, 1]
    assert found.first.tolist() == [True, False, True]
    assert found.total_s == 10 + 40 + 25


@pytest.mark.parametrize("endless", [1e12, 1e15])
def test_a_job_without_end_leaves_the_others_in_the_order_of_their_lengths(endless: float) -> None:
    left = np.array([[3.0], [1], [endless], [2], [5], [4]])
    assert allox(left, idle([1])).place.tolist() == [4, 6, 1, 5, 2, 3]
    held = allox(left, [np.array([endless, 0])])
    assert held.device.tolist() == [0] * 6
    assert held.place.tolist() == [4, 6, 1, 5, 2, 3]


def test_a_job_without_end_goes_where_it_is_fast_all_the_same() -> None:
    assert allox(np.array([[2e15, 1e15]]), idle([1, 1])).on.tolist() == [1]


def test_four_thousand_jobs_are_proved() -> None:
    dice = np.random.default_rng(3)
    left = 10 ** dice.uniform(2, 5, 4_000)[:, None] * dice.uniform(1, 6, (4_000, 3))
    found = allox(left, idle([334, 333, 333]))
    assert found.total_s == pytest.approx(found.bound_s, rel=1e-9)


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(BrokenError, match="left_s has values below 0"):
        allox(np.array([[-1.0]]), idle([1]))
    with pytest.raises(BrokenError, match="of each of 1 types"):
        allox(np.array([[1.0]]), idle([1, 2]))
    with pytest.raises(BrokenError, match="seconds of at least 0 for each device"):
        allox(np.array([[1.0]]), [np.array([0.0, -1.0])])


class Held:
    """Gavel's AlloX: who has a device keeps it to the end."""

    def __init__(self) -> None:
        self.on: dict[int, int] = {}

    def __call__(self, asked: Question, lives: Lives, ids: list[int]) -> Allocation:
        self.on = {job: on for job, on in self.on.items() if job in ids}
        free = asked.gpus - np.bincount(list(self.on.values()), minlength=len(asked.gpus))
        new = [at for at, job in enumerate(ids) if job not in self.on]
        speed = asked.speed[new]
        left = np.divide(
            lives.steps_left[new][:, None], speed, out=np.full(speed.shape, np.inf), where=speed > 0
        )
        found = allox(left, idle(free))
        self.on |= {ids[new[at]]: int(found.on[at]) for at in np.flatnonzero(found.first)}
        alone = np.zeros(asked.speed.shape)
        for at, job in enumerate(ids):
            if job in self.on:
                alone[at, self.on[job]] = 1.0
        return Allocation(alone=alone)


@pytest.mark.skipif(not gavelsim.DATA.is_dir(), reason=f"no data at {gavelsim.DATA}")
def test_gavels_own_simulation_comes_out_alike() -> None:
    tables = gavelsim.Tables.read(gavelsim.DATA / "gavel" / "throughputs.json")
    jobs = gavelsim.read_trace(gavelsim.DATA / "traces" / "gen120_single_lam300_seed0.trace", tables)
    done = gavelsim.simulate(jobs, tables, (12, 12, 12), Held())
    assert done.mean_jct_s == pytest.approx(11490, rel=0.02)
    assert done.makespan_s == pytest.approx(51326, rel=0.02)


def test_devices_that_come_free_at_different_times_have_their_places_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def counted(costs: np.ndarray, sinks: Sinks) -> np.ndarray | None:
        asked.append(costs.shape[1])
        return transport(costs, sinks)

    monkeypatch.setattr("hs_core.mechanism.allox.transport", counted)
    dice = np.random.default_rng(1)
    left = 10 ** dice.uniform(2, 5, 400)[:, None] * np.array([1.0, 2, 4])
    found = allox(left, [dice.uniform(0, 1e4, many) for many in (12, 12, 56)])
    assert found.total_s == pytest.approx(found.bound_s, rel=1e-9)
    assert len(asked) <= 2
    assert max(asked) < 80  # with a place of its own for each device there were ten times as many


def test_of_two_that_could_change_places_the_first_has_the_device_that_is_free_sooner() -> None:
    found = allox(np.array([[10.0], [20], [30]]), [np.array([5.0, 0, 1])])
    assert found.place.tolist() == [1, 1, 1]
    assert found.device.tolist() == [0, 1, 2]
    assert found.total_s == 66
