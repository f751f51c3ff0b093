"""FFT's placement within a type."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.mechanism.fft.place import Gangs, place


def gangs(gpus: list[int], hosts: int, **changes: object) -> Gangs:
    count = len(gpus)
    facts: dict[str, object] = {
        "gpus": np.array(gpus),
        "held": np.zeros((count, hosts), np.int64),
        "pipeline": np.zeros(count, bool),
        "move_s": np.arange(count, dtype=float),
        "near": np.zeros((count, hosts), bool),
    }
    return Gangs(**{**facts, **changes})  # type: ignore[arg-type]


@given(seed=st.integers(0, 10**6), hosts=st.integers(1, 6), churn=st.booleans())
@settings(max_examples=60, deadline=None)
def test_gangs_are_whole_and_who_stays_keeps_its_hosts(seed: int, hosts: int, *, churn: bool) -> None:
    dice = np.random.default_rng(seed)
    capacity = dice.integers(1, 9, hosts)
    sizes: list[int] = []
    while sum(sizes) < capacity.sum():
        sizes.append(min(int(dice.choice([1, 2, 4, 8])), int(capacity.sum()) - sum(sizes)))
    first = place(gangs(sizes, hosts), capacity, churn=False)
    kept = dice.random(len(sizes)) < 0.6
    again = place(gangs(sizes, hosts, held=np.where(kept[:, None], first, 0)), capacity, churn=churn)
    for found in (first, again):
        assert found.sum(axis=1).tolist() == sizes
        assert (found.sum(axis=0) <= capacity).all()
    if not churn:
        assert (again[kept] == first[kept]).all()
    else:
        together = (first > 0).sum(axis=1) == 1
        assert (again[kept & together] == first[kept & together]).all()


def test_talkative_gangs_are_packed_before_pipelines() -> None:
    found = place(
        gangs([4, 4, 4], 3, pipeline=np.array([True, False, False])), np.array([4, 5, 3]), churn=False
    )
    assert (found > 0).sum(axis=1).tolist() == [2, 1, 1]


def test_at_churn_the_split_gang_that_is_cheapest_to_move_is_brought_together() -> None:
    held = np.array([[2, 2, 0], [2, 2, 0]])
    facts = gangs([4, 4], 3, held=held, move_s=np.array([9.0, 1.0]))
    assert place(facts, np.array([4, 4, 4]), churn=False).tolist() == held.tolist()
    assert place(facts, np.array([4, 4, 4]), churn=True).tolist() == [[4, 0, 0], [0, 0, 4]]
    assert place(facts, np.array([4, 4, 3]), churn=True).tolist() == held.tolist()


def test_a_host_that_has_the_data_is_taken_first() -> None:
    assert place(
        gangs([2], 3, near=np.array([[False, False, True]])), np.array([4, 4, 4]), churn=False
    ).tolist() == [[0, 0, 2]]


def test_who_held_a_lost_host_is_placed_anew() -> None:
    found = place(gangs([2, 2], 2, held=np.array([[2, 0], [0, 2]])), np.array([0, 4]), churn=False)
    assert found.tolist() == [[0, 2], [0, 2]]


def test_more_than_there_is_cannot_be_placed() -> None:
    with pytest.raises(BrokenError, match="5 GPUs are to be placed; there are 4"):
        place(gangs([5], 1), np.array([4]), churn=False)
