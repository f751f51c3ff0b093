"""Tesserae's packing: who waits joins who was placed, the pairs that get most done together, and stays with it."""

from dataclasses import replace

import pytest

from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies import find
from hs_core.policy import JobFacts, Snapshot, Verdict

from .worlds import GIB, Run, host, job, snapshot  # noqa: TID252 — tests are no package on the path

H = HostName("h")
LAS = find("tesserae-las")


def some(at: int, gang: int = 1, *, memory: int = 4, attained: float = 0.0, **facts: object) -> JobFacts:
    more = {"steps": 1_000.0, "job_class": "c", "movable": True, "memory_bytes": memory * GIB} | facts
    return job(at, gang=gang, gpu_memory_bytes=memory * GIB, attained_gpu_s=attained, **more)


def world(*jobs: JobFacts, gpus: int = 1, ratios: dict[tuple[str, str], float] | None = None) -> Snapshot:
    classes = {job.job_class for job in jobs}
    return snapshot(
        [host("h", gpus)],
        list(jobs),
        rates={(name, "V100"): 1.0 for name in classes},
        interference={(a, b, "V100"): slow for (a, b), slow in (ratios or {}).items()},
        migrations_left=9,
    )


def pairs(verdict: Verdict) -> dict[int, int]:
    return {guest.job: guest.beside[0] for turn in verdict.plan.turns.values() for guest in turn.guests}


def test_who_has_had_least_is_placed_and_who_waits_joins_it() -> None:
    verdict = LAS.decide(world(some(1, attained=500.0), some(2)), {})
    assert pairs(verdict) == {1: 2}
    assert verdict.plan.turns[H].gangs == (1, 2)


def test_only_equal_gangs_share() -> None:
    assert pairs(LAS.decide(world(some(1, 2), some(2), gpus=2), {})) == {}


def test_only_two_jobs_are_on_a_gpu() -> None:
    assert len(pairs(LAS.decide(world(*(some(at) for at in range(1, 6)), gpus=2), {}))) == 2


def test_who_found_other_gpus_than_it_was_promised_is_joined_by_one_job_only() -> None:
    """The two V100s that are promised to job 5 are on two servers, the three K80s of job 6 too: so job 5 gets K80s, and either of two jobs could join it."""
    hosts = [host("v", 2), host("w", 2), host("k", 4, "K80"), host("l", 4, "K80")]
    widths = {"v": 1, "w": 1, "k": 2, "l": 3}
    stuck = [
        job(at, gang=gang, host=HostName(name), started=True, running=True, sliceable=False)
        for at, (name, gang) in enumerate(widths.items(), start=1)
    ]
    waiting = [some(5, 2), some(6, 3), some(7, 2), some(8, 2)]
    asked = snapshot(hosts, [*stuck, *waiting], rates={("c", "V100"): 2.0, ("c", "K80"): 1.0})
    verdict = LAS.decide(asked, {})
    check(asked, verdict.plan, LAS.needs)
    assert verdict.plan.homes[JobId(5)] == ("k",)
    assert pairs(verdict) == {7: 5}


@pytest.mark.parametrize(("ratio", "shares"), [(1.1, True), (1.99, True), (2.01, False)])
def test_two_share_where_together_they_get_more_done_than_one(ratio: float, *, shares: bool) -> None:
    verdict = LAS.decide(world(some(1), some(2), ratios={("c", "c"): ratio}), {})
    assert bool(pairs(verdict)) is shares


def test_the_matching_is_the_one_that_gets_most_done() -> None:
    ratios = {
        ("a", "c"): 1.1, ("c", "a"): 1.1, ("a", "d"): 1.2, ("d", "a"): 1.2,
        ("b", "c"): 1.2, ("c", "b"): 1.2, ("b", "d"): 1.9, ("d", "b"): 1.9,
    }  # fmt: skip
    jobs = [some(at, job_class=name, attained=500.0 * (at > 2)) for at, name in enumerate("abcd", start=1)]
    # c with a is the best pair; but then b would be left with d.
    assert pairs(LAS.decide(world(*jobs, gpus=2, ratios=ratios), {})) == {3: 2, 4: 1}


def test_memory_of_both_must_fit() -> None:
    assert pairs(LAS.decide(world(some(1, memory=10), some(2, memory=7)), {})) == {}
    assert pairs(LAS.decide(world(some(1, memory=0), some(2)), {})) == {}


def test_classes_that_were_seen_together_fit_whatever_was_said_of_their_memory() -> None:
    verdict = LAS.decide(world(some(1, memory=0), some(2, memory=0), ratios={("c", "c"): 1.2}), {})
    assert len(pairs(verdict)) == 1


def test_a_pair_stays_together_from_round_to_round() -> None:
    run = Run(LAS, world(*(some(at) for at in range(1, 5)), gpus=2))
    first = run.step()
    together = {frozenset(pair) for pair in pairs(first).items()}
    for _ in range(6):
        verdict = run.step()
        assert {frozenset(pair) for pair in pairs(verdict).items()} == together
    assert run.moved == []


def test_who_cannot_be_moved_from_its_gpus_joins_nobody() -> None:
    stuck = some(1, hosts=(H,), started=True, movable=False, attained=500.0)
    verdict = LAS.decide(world(stuck, some(2)), {})
    assert pairs(verdict) == {}
    assert JobId(1) in verdict.why


BETTER_WITH_B = {("a", "b"): 1.1, ("b", "a"): 1.1, ("a", "c"): 1.3, ("c", "a"): 1.3}
BETTER_WITH_B |= {pair: 3.0 for other in "bc" for pair in (("d", other), (other, "d"))}
K = HostName("k")


def test_who_asks_for_more_servers_takes_nobodys_partner() -> None:
    wide = some(2, 2, nodes=2, job_class="b", attained=500.0)
    jobs = [some(1, 2, job_class="a"), wide, some(3, 2, attained=600.0)]
    assert pairs(LAS.decide(world(*jobs, gpus=2, ratios=BETTER_WITH_B), {})) == {3: 1}


@pytest.mark.parametrize(("stuck", "budget"), [({"migrate": Migrate.NEVER}, 9), ({}, 0)])
def test_who_may_not_leave_its_server_takes_nobodys_partner_elsewhere(
    stuck: dict[str, object], budget: int
) -> None:
    bound = some(6, host=K, started=True, running=True, sliceable=False, job_class="d")
    stays = some(2, job_class="b", attained=500.0, host=K, started=True, **stuck)
    asked = world(some(1, job_class="a"), stays, bound, some(3, attained=600.0), ratios=BETTER_WITH_B)
    asked = replace(asked, hosts=(*asked.hosts, host("k", 1)), migrations_left=budget)
    assert pairs(LAS.decide(asked, {})) == {3: 1}


def test_whom_the_budget_of_moves_leaves_alone_is_joined_by_who_need_not_move() -> None:
    bound = some(6, host=K, started=True, running=True, sliceable=False, job_class="d")
    moving = [some(at, job_class="b", attained=500.0, host=K, started=True) for at in (2, 3)]
    placed = [some(at, job_class="a", attained=0.0) for at in (1, 4)]
    asked = world(*placed, *moving, bound, some(5, attained=600.0), gpus=2, ratios=BETTER_WITH_B)
    asked = replace(asked, hosts=(*asked.hosts, host("k", 1)), migrations_left=1)
    assert sorted(pairs(LAS.decide(asked, {}))) == [2, 5]
