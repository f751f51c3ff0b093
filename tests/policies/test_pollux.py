"""Pollux: elastic jobs grow into idle GPUs and make room again, as far as what was measured says that it pays."""

from dataclasses import replace

import numpy as np
import pytest

from hs_core.forms import Elastic, Shape
from hs_core.mechanism.goodput import Speed, iteration_s
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName
from hs_core.plan import check
from hs_core.policies import find
from hs_core.policy import JobFacts, Snapshot

from .worlds import Run, having, host, job, snapshot  # noqa: TID252 — tests are no package on the path

POLLUX = find("pollux")
ELASTIC = Elastic(
    gpus_min=1, gpus_max=8, batch=32, batch_max=1_024, batch_per_gpu_max=64, noise_scale=2_000.0
)
H = HostName("h")


def elastic(at: int, gang: int = 1, **facts: object) -> JobFacts:
    return job(at, gang=gang, elastic=ELASTIC, job_class="net", **{"movable": True, **facts})


def world(*jobs: JobFacts, gpus: int = 8, **facts: object) -> Snapshot:
    return snapshot([host("h", gpus)], list(jobs), now_s=1e6, migrations_left=10, **facts)


def measured(speed: Speed) -> dict[tuple[str, str], dict[Shape, float]]:
    """What jobs of that speed would report on 1, 2 and 4 GPUs."""
    shapes = [Shape(gpus=gpus, per_gpu=each) for gpus in (1, 2, 4) for each in (16, 64)]
    seconds = [
        iteration_s(speed, shape.gpus, 1, np.array(float(shape.per_gpu)), np.array(0.0)) for shape in shapes
    ]
    return {("net", "V100"): {shape: 1 / float(s) for shape, s in zip(shapes, seconds, strict=True)}}


def shape_of(run: Run, at: int) -> tuple[int, int]:
    """(GPUs, examples of a mini-batch)."""
    found = next(each for each in run.asked.jobs if each.id == at)
    return found.gang, found.shape.batch if found.shape else 32


def test_a_job_alone_doubles_its_gpus_round_by_round_and_its_batch_grows_with_them() -> None:
    run = Run(
        POLLUX, world(elastic(1), speeds=measured(Speed(grad_s=0.05, grad_per_example_s=0.001, local_s=0.03)))
    )
    seen = []
    for _ in range(5):
        run.step()
        seen.append(shape_of(run, 1))
    gpus = [count for count, _ in seen]
    assert gpus == [2, 4, 8, 8, 8], "at most twice as many as it ever had"
    assert seen[-1][1] > 32
    assert ELASTIC.allows(run.asked.jobs[0].shape)


def test_one_that_comes_gets_gpus_of_the_one_that_has_all_which_is_restarted_for_it() -> None:
    run = Run(POLLUX, world(elastic(1)))
    run.go(4)
    come = replace(elastic(2), arrival_s=run.asked.now_s)
    run.change(jobs=(*run.asked.jobs, come))
    verdict = run.step()
    assert verdict.plan.moves[1][0] is MoveReason.SHAPE
    assert verdict.plan.shapes[1].gpus < 8
    assert 2 in verdict.plan.turns[H].gangs
    run.go(6)
    assert sum(each.gang for each in run.asked.jobs) == 8
    assert min(each.gang for each in run.asked.jobs) >= 2
    left = tuple(each for each in run.asked.jobs if each.id == 2)
    run.change(jobs=left)
    run.go(4)
    assert shape_of(run, 2)[0] == 8


def test_a_job_whose_own_batch_takes_many_parts_on_a_gpu_runs_so() -> None:
    wide = replace(ELASTIC, gpus_max=2, batch=1_000, batch_max=1_000, batch_per_gpu_max=7)
    jobs = [replace(elastic(at), elastic=wide) for at in (1, 2, 3)]
    run = Run(POLLUX, world(*jobs, gpus=4))
    for _ in range(4):
        verdict = run.step()
        check(run.asked, verdict.plan, POLLUX.needs)
    shapes = [each.shape for each in run.asked.jobs]
    assert sum(shape.gpus for shape in shapes) == 4
    assert all(wide.allows(shape) for shape in shapes)
    assert max(shape.parts for shape in shapes) == 143, "1,000 examples on a GPU, 7 at once"


def test_what_does_not_get_faster_with_more_gpus_is_not_given_them() -> None:
    slow = Speed(grad_s=0.05, grad_per_example_s=0.0001, local_s=3.0, local_per_gpu_s=1.0)
    run = Run(POLLUX, world(elastic(1), speeds=measured(slow)))
    run.go(5)
    assert shape_of(run, 1)[0] == 1


def test_who_is_not_elastic_has_its_gang_or_nothing_and_is_never_restarted_for_others() -> None:
    rigid = [job(at, gang=2, job_class="fixed") for at in (2, 3)]
    run = Run(POLLUX, world(elastic(1), *rigid))
    for _ in range(6):
        verdict = run.step()
        assert not {2, 3}.intersection(verdict.plan.moves)
        assert {2, 3}.issubset(verdict.plan.turns[H].gangs)
    assert shape_of(run, 1)[0] == 4


@pytest.mark.parametrize("quantum", range(8))
def test_who_comes_up_and_cannot_be_restarted_yet_keeps_its_gpus_from_the_search(quantum: int) -> None:
    one, two = HostName("h1"), HostName("h2")
    comes = elastic(1, hosts=(two,), movable=False)
    narrow = elastic(2, hosts=(one,), started=True, running=True)
    wide = elastic(3, gang=2, nodes=2, hosts=(two, one), started=True, running=True, spans=True)
    asked = snapshot(
        [host("h1", 2), host("h2", 2)], [comes, narrow, wide], now_s=1e6, migrations_left=10, quantum=quantum
    )
    plan = POLLUX.decide(asked, {}).plan
    check(asked, plan, POLLUX.needs)
    assert plan.homes[1] == (two,)
    assert 1 in plan.turns[two].gangs


def test_a_change_of_shape_takes_from_the_budget_and_what_cannot_be_restarted_keeps_its_gpus() -> None:
    stands = elastic(1, hosts=(H,), started=True, running=True, movable=True)
    for facts in ({"migrations_left": 0}, {}):
        asked = replace(world(stands), **{"migrations_left": 3, **facts})
        verdict = POLLUX.decide(asked, {})
        assert bool(verdict.plan.shapes) is not bool(facts)
    for stuck in (replace(stands, movable=False), replace(stands, migrate=Migrate.NEVER)):
        verdict = POLLUX.decide(world(stuck, elastic(2)), {})
        assert 1 not in verdict.plan.shapes
        assert verdict.plan.turns[H].gangs == (1, 2)


def test_where_the_budget_is_short_who_gives_gpus_back_comes_first() -> None:
    large = elastic(
        1, 8, hosts=(H,), started=True, running=True, movable=True, shape=Shape(gpus=8, per_gpu=32)
    )
    comes = [elastic(at, arrival_s=1e6) for at in (2, 3, 4)]
    verdict = POLLUX.decide(replace(world(large, *comes), migrations_left=1), {})
    assert set(verdict.plan.moves) == {1}
    assert set(verdict.plan.turns[H].gangs) == {1, 2, 3, 4}


def test_each_model_is_searched_by_itself_and_who_has_started_stays_on_its_own() -> None:
    hosts = [host("k", 4, "K80"), host("v", 4)]
    old = elastic(1, hosts=(HostName("k"),), started=True, running=True, movable=True)
    asked = snapshot(hosts, [old, elastic(2)], now_s=1e6, migrations_left=10)
    verdict = POLLUX.decide(asked, {})
    assert verdict.plan.homes == {1: ("k",), 2: ("v",)}


def test_waiting_jobs_are_told_who_has_the_gpus() -> None:
    running = [elastic(at, hosts=(H,), started=True, running=True, movable=False) for at in (1, 2, 3, 4)]
    verdict = POLLUX.decide(world(*running, elastic(5), gpus=4), {})
    assert verdict.why == {
        5: "jobs that make more goodput with these GPUs, restarts counted, have them in this round"
    }


def test_who_cannot_be_restarted_elsewhere_has_its_gpus_back_before_others_grow() -> None:
    """Its server has just come back, or another policy had suspended it."""
    stuck = job(2, gang=1, hosts=(H,), started=True, movable=False, rooted=True)
    runs = elastic(1, hosts=(H,), started=True, running=True)
    verdict = POLLUX.decide(world(runs, stuck, gpus=2), {})
    assert not verdict.plan.shapes
    assert verdict.plan.turns[H].gangs == (1, 2)


def anywhere(at: int, gang: int = 1, **facts: object) -> JobFacts:
    return elastic(at, gang, **{"spans": True, **facts})


def two_servers(*jobs: JobFacts, **facts: object) -> Snapshot:
    return snapshot([host("h", 4), host("i", 4)], list(jobs), now_s=1e6, migrations_left=10, **facts)


def test_one_that_may_be_on_several_servers_grows_beyond_one_and_one_that_may_not_does_not() -> None:
    quick = measured(Speed(grad_s=0.05, grad_per_example_s=0.001, local_s=0.01))
    run = Run(POLLUX, two_servers(anywhere(1), speeds=quick))
    found = []
    for _ in range(4):
        run.step()
        job_ = run.asked.jobs[0]
        found.append((job_.gang, job_.nodes, len(job_.hosts)))
    assert found == [(2, 1, 1), (4, 1, 1), (8, 2, 2), (8, 2, 2)]
    assert run.asked.jobs[0].shape == replace(run.asked.jobs[0].shape, gpus=8, nodes=2)
    run = Run(POLLUX, two_servers(elastic(1), speeds=quick))
    run.go(5)
    assert (run.asked.jobs[0].gang, run.asked.jobs[0].hosts) == (4, run.asked.jobs[0].hosts[:1])


def test_what_was_measured_over_several_servers_keeps_it_on_one() -> None:
    slow = Speed(grad_s=0.05, grad_per_example_s=0.001, local_s=0.01, far_s=90.0)
    shapes = [Shape(gpus=8, per_gpu=each, nodes=2) for each in (16, 64)]
    seconds = [iteration_s(slow, 8, 2, np.array(float(shape.per_gpu)), np.array(0.0)) for shape in shapes]
    known = measured(slow)
    far = {shape: 1 / float(s) for shape, s in zip(shapes, seconds, strict=True)}
    known = {pair: {**rates, **far} for pair, rates in known.items()}
    wide = anywhere(
        1, 8, nodes=2, hosts=(H, HostName("i")), started=True, running=True, shape=shapes[1], migrations=1
    )
    verdict = POLLUX.decide(two_servers(wide, speeds=known), {})
    assert len(verdict.plan.homes[1]) == 1
    assert verdict.plan.shapes[1].nodes == 1
    assert verdict.plan.moves[1][0] is MoveReason.SHAPE


def test_where_no_server_has_room_for_its_fewest_gpus_it_is_laid_over_several() -> None:
    stuck = [
        job(at, gang=2, hosts=(HostName(name),), started=True, running=True, sliceable=False, movable=False)
        for at, name in ((1, "h"), (2, "i"))
    ]
    four = replace(ELASTIC, gpus_min=4, gpus_max=4)
    asked = two_servers(*stuck, anywhere(3, 4))
    asked = having(asked, jobs=(*asked.jobs[:2], replace(asked.jobs[2], elastic=four)))
    verdict = POLLUX.decide(asked, {})
    assert set(verdict.plan.homes[3]) == {"h", "i"}
    assert (verdict.plan.shapes[3].gpus, verdict.plan.shapes[3].nodes) == (4, 2)
    check(asked, verdict.plan, POLLUX.needs)
    asked = having(asked, jobs=(*asked.jobs[:2], replace(asked.jobs[2], spans=False)))
    assert 3 not in {id_ for turn in POLLUX.decide(asked, {}).plan.turns.values() for id_ in turn.gangs}
