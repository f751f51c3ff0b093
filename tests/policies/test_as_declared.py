"""Elastic jobs in a shape that another policy gave them, under policies that give none: they go back to what their users declared where that costs little."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from hs_core.forms import Elastic, Shape
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policies import POLICIES, find
from hs_core.policy import HostFacts, JobFacts, Policy, Snapshot, Verdict
from hs_core.question import Question
from tests.policies.lawful import law
from tests.policies.worlds import host, job, snapshot, snapshots

LIMITS = Elastic(gpus_min=1, gpus_max=8, batch=64, batch_max=512, batch_per_gpu_max=64)
THAT_GIVE_NONE = [policy for policy in POLICIES.values() if not policy.needs.elastic]
under_each = pytest.mark.parametrize("policy", THAT_GIVE_NONE, ids=lambda policy: policy.name)


def elastic(at: int, has: int, declared: int, home: tuple[str, ...] = ("h",), **facts: object) -> JobFacts:
    """It runs on `has` GPUs, and declared others."""
    nodes = len(home)
    shape = Shape(gpus=has, per_gpu=64, nodes=nodes)
    made = job(
        at, f"u{at}", has, nodes=nodes, hosts=tuple(map(HostName, home)), started=True, running=True, movable=True, restartable=True,
        steps=1e5, job_class="c", elastic=LIMITS, spans=nodes > 1, shape=shape, declared=LIMITS.on(declared),
    )  # fmt: skip
    return replace(made, **facts)  # type: ignore[arg-type]


def fixed(at: int, gang: int, **facts: object) -> JobFacts:
    return replace(job(at, f"u{at}", gang), job_class="c", steps=1e5, **facts)  # type: ignore[arg-type]


def asked(*jobs: JobFacts, gpus: int = 4, **facts: object) -> Snapshot:
    told = {"now_s": 1e4, "migrations_left": 5, "rates": {("c", "V100"): 1.0}, **facts}
    return snapshot([host("h", gpus)], list(jobs), **told)


def answer(policy: Policy, about: Snapshot) -> Verdict:
    return Question(policy=policy, snapshot=about, memory={}).verdict()


def restarted(verdict: Verdict, at: int) -> bool:
    declared = verdict.plan.shapes.get(JobId(at))
    if declared is None:
        return False
    assert verdict.plan.moves[JobId(at)][0] is MoveReason.SHAPE
    return True


@under_each
def test_one_that_has_more_gpus_than_it_asked_for_gives_them_back(policy: Policy) -> None:
    verdict = answer(policy, asked(elastic(1, 4, 1), fixed(2, 3)))
    assert restarted(verdict, 1)
    assert verdict.plan.shapes[JobId(1)] == LIMITS.on(1)
    assert verdict.plan.homes[JobId(1)] == (HostName("h"),)


@under_each
def test_one_that_has_fewer_than_it_asked_for_has_them_where_they_are_idle(policy: Policy) -> None:
    assert restarted(answer(policy, asked(elastic(1, 1, 4))), 1)


@under_each
def test_nobody_is_put_aside_for_one_that_has_fewer_than_it_asked_for(policy: Policy) -> None:
    runs = fixed(2, 2, hosts=(HostName("h"),), started=True, running=True, movable=True)
    assert not restarted(answer(policy, asked(elastic(1, 1, 4), runs)), 1)


@under_each
def test_one_that_waits_for_its_turn_goes_back_whatever_it_asked_for(policy: Policy) -> None:
    runs = fixed(2, 4, hosts=(HostName("h"),), started=True, running=True, sliceable=False)
    assert restarted(answer(policy, asked(elastic(1, 1, 4, running=False), runs)), 1)


@under_each
def test_one_that_has_no_process_is_started_as_declared(policy: Policy) -> None:
    verdict = answer(policy, asked(elastic(1, 1, 4, started=False, running=False, restartable=False)))
    assert verdict.plan.shapes[JobId(1)] == LIMITS.on(4)
    assert not verdict.plan.moves


@under_each
def test_one_on_several_servers_that_asked_for_one_goes_on_on_one_of_them(policy: Policy) -> None:
    wide = elastic(1, 4, 2, ("h", "i"))
    about = replace(asked(wide), hosts=(host("h", 4), host("i", 4)))
    verdict = answer(policy, about)
    assert restarted(verdict, 1)
    assert verdict.plan.homes[JobId(1)] == (HostName("h"),)


@pytest.mark.parametrize(
    "odd",
    [
        elastic(1, 4, 1, migrate=Migrate.NEVER),
        elastic(1, 4, 1, movable=False, restartable=False),
        elastic(1, 2, 8),  # more than its server has
        elastic(1, 4, 1, settled_s=9_990.0),  # it has just come up so
        elastic(1, 2, 2),  # with other mini-batches on as many GPUs
    ],
)
@under_each
def test_one_that_cannot_go_back_now_or_gains_little_by_it_keeps_the_shape_that_it_has(
    policy: Policy, odd: JobFacts
) -> None:
    verdict = answer(policy, asked(odd))
    assert not verdict.plan.shapes
    assert not verdict.plan.moves


@pytest.mark.parametrize(
    "home", [host("h", 4, accepts=False), host("h", 4, starts=False), host("h", 4, connected=False)]
)
@pytest.mark.parametrize("declared", [1, 4])
@under_each
def test_nobody_goes_back_on_a_server_that_takes_nobody_new(
    policy: Policy, declared: int, home: HostFacts
) -> None:
    about = replace(asked(elastic(1, 2, declared)), hosts=(home,))
    assert not answer(policy, about).plan.shapes


@under_each
def test_no_more_go_back_than_the_budget_of_moves_allows_and_those_first_that_give_gpus_back(
    policy: Policy,
) -> None:
    about = asked(elastic(1, 1, 2), elastic(2, 4, 1), elastic(3, 4, 1), gpus=16, migrations_left=1)
    verdict = answer(policy, about)
    assert [restarted(verdict, at) for at in (1, 2, 3)] == [False, True, False]


def test_a_policy_that_gives_shapes_decides_by_itself() -> None:
    about = asked(elastic(1, 4, 1))
    pollux = find("pollux")
    assert answer(pollux, about).plan.shapes == pollux.decide(about, {}).plan.shapes


def told_what_was_declared(asked: Snapshot, gangs: Sequence[int]) -> Snapshot:
    """Elastic jobs have declared these GPUs, on one server, in place of what they have, where that is another number and allowed."""

    def told(job: JobFacts, gpus: int) -> JobFacts:
        allowed = job.elastic is not None and job.elastic.gpus_min <= gpus <= job.elastic.gpus_max
        if job.elastic is None or not allowed or (gpus, 1) == (job.gang, job.nodes):
            return job
        return replace(job, declared=job.elastic.on(gpus), settled_s=0.0)

    return replace(asked, jobs=tuple(map(told, asked.jobs, gangs)))


@law(
    snapshots(),
    st.lists(st.sampled_from([1, 2, 3, 4]), min_size=12, max_size=12),
    policies=THAT_GIVE_NONE,
    examples=30,
)
def test_whatever_jobs_go_back_to_no_plan_breaks_a_law(
    policy: Policy, asked: Snapshot, gangs: list[int]
) -> None:
    about = told_what_was_declared(asked, gangs)
    verdict = answer(policy, about)  # the plan has been checked
    odd = {job.id: job.declared for job in about.jobs if job.declared is not None}
    assert {id_ for id_, shape in verdict.plan.shapes.items() if isinstance(shape, Shape)} <= odd.keys()
    assert answer(policy, about) == verdict
