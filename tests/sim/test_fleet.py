"""What policies see of jobs in depth quanta."""

from types import SimpleNamespace

import numpy as np

from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.model import Experiment
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.together import lie_together


def a_fleet(*, progress: bool) -> Fleet:
    load = generate(Recipe(jobs=3, users=1, sizes={1: 1.0}))
    fleet = Fleet(Experiment(cluster=parse_cluster("v100:4"), workload=load), progress=progress)
    for job in range(3):
        fleet.comes(job)
        fleet.settle(job, (0,), 0.0)
    return fleet


def test_arrays_that_lie_together_are_what_they_were_each_by_itself() -> None:
    whose = SimpleNamespace(a=np.array([1, -2, 1 << 60]), b=np.array([0.5, np.nan, -np.inf]))
    before = {name: array.copy() for name, array in vars(whose).items()}
    lie_together(whose, ("b", "a"))
    for name, array in before.items():
        now = getattr(whose, name)
        assert now.dtype == array.dtype
        np.testing.assert_array_equal(now, array)
    assert whose.a.base is not None
    whose.a[[0, 2]] = 7
    np.testing.assert_array_equal(whose.a, [7, -2, 7])
    np.testing.assert_array_equal(whose.b, before["b"])
    step = whose.a.ctypes.data - whose.b.ctypes.data
    assert (step, whose.a.strides, whose.b.strides) == (8, (16,), (16,))


def test_who_only_runs_or_not_is_seen_as_before() -> None:
    fleet, movable = a_fleet(progress=False), np.ones(3, dtype=np.bool_)
    waits = fleet.facts(0.0, movable=movable)
    assert fleet.turn() == frozenset()
    fleet.running[[0, 1]] = True
    fleet.switched([0, 1])
    runs = fleet.facts(60.0, movable=movable)
    assert fleet.turn() == {1, 2}
    assert all(one is other for one, other in zip(runs, waits, strict=True))
    fleet.running[[0, 1]] = False
    fleet.started[1] = True
    fleet.switched([0, 1])
    fleet.changed(1)
    again = fleet.facts(120.0, movable=movable)
    assert again[0] is waits[0]
    assert again[1].started, "what else is new of it is seen"


def test_who_goes_by_progress_sees_it_at_every_switch() -> None:
    fleet, movable = a_fleet(progress=True), np.ones(3, dtype=np.bool_)
    fleet.facts(0.0, movable=movable)
    for now_s, running in ((60.0, True), (120.0, False), (180.0, True)):
        fleet.running[0] = running
        fleet.steps_left[0] -= 1.0
        fleet.switched(0)
        (job, *_) = fleet.facts(now_s, movable=movable)
        assert (job.id in fleet.turn()) is running
        assert job.steps_done == fleet.steps[0] - fleet.steps_left[0]


def test_what_a_job_had_on_one_model_is_kept_while_it_lives_on_another() -> None:
    load = generate(Recipe(jobs=2, users=1, sizes={1: 1.0}))
    fleet = Fleet(Experiment(cluster=parse_cluster("v100:4,k80:4"), workload=load))
    both = np.arange(2)
    fleet.settle(0, (0,), 0.0)
    fleet.had[0] += 5.0
    fleet.settle(0, (1,), 60.0)
    assert fleet.gpu_s(both).tolist() == [[5.0, 0.0], [0.0, 0.0]]
    fleet.had[0] += 2.0
    fleet.settle_all(both[:1], [(0,)], 120.0)
    fleet.had[0] += 1.0
    assert fleet.gpu_s(both).tolist() == [[6.0, 2.0], [0.0, 0.0]]


def test_who_is_too_far_from_its_end_is_near_again_once_it_lives_elsewhere() -> None:
    fleet = a_fleet(progress=False)
    fleet.steps_left[:] = fleet.rate * [10.0, 100.0, 1000.0]
    fleet.foresee(100.0)
    assert fleet.near.tolist() == [True, True, False]
    fleet.settle(2, (0,), 60.0)
    assert fleet.near.tolist() == [True, True, True]
