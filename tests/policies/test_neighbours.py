"""Gandiva_fair: servers that share gangs wait for the fullest of them, so homes are changed for fewer to wait (3.3)."""

from dataclasses import replace
from typing import Any

import pytest

from hs_core.model import Migrate, MoveReason
from hs_core.policy import HostFacts, JobFacts

from .asked import LONG_AGO, at, decide, moves, run  # noqa: TID252 — tests are no package on the path
from .worlds import GIB, homes_of, host, job  # noqa: TID252 — tests are no package on the path


def hosts(names: str) -> list[HostFacts]:
    return [host(name) for name in names]


def whole(number: int, home: str, **facts: Any) -> list[JobFacts]:
    """A gang of all GPUs of these servers, which all are one user's."""
    nodes = len(home.split("+"))
    return at(home, job(number, "A", 4 * nodes, nodes=nodes, **facts))


def beside_a_wide_gang(**facts: Any) -> list[JobFacts]:
    """While job 1 runs three servers of job 2 idle; on `f` it could run while job 4 does."""
    return [*whole(1, "a", **facts), *whole(2, "a+b+c+d"), *whole(3, "e+f"), *whole(4, "e")]


def test_a_job_leaves_a_server_for_which_others_wait_for_one_that_idles_as_long_anyway() -> None:
    world = run(hosts("abcdef"), beside_a_wide_gang())
    verdict = world.go(1)
    assert homes_of(verdict) == {1: "f", 2: "a+b+c+d", 3: "e+f", 4: "e"}
    before = sum(world.gpus.values())
    world.go(40)
    assert sum(world.gpus.values()) - before == 40 * 24
    assert len(world.moved) == 1


def test_the_move_says_for_which_server_others_wait() -> None:
    verdict = decide(hosts("abcdef"), beside_a_wide_gang())
    assert verdict.plan.moves == {1: (MoveReason.PACKING, "GPUs idle while gangs wait for a")}


@pytest.mark.parametrize("facts", [{"migrate": Migrate.NEVER}, {"settled_s": LONG_AGO}])
def test_who_may_not_go_stays_where_others_wait_for_it(facts: dict[str, Any]) -> None:
    assert 1 not in moves(decide(hosts("abcdef"), beside_a_wide_gang(**facts)))


def test_nobody_goes_without_a_budget_for_moves() -> None:
    assert moves(decide(hosts("abcdef"), beside_a_wide_gang(), migrations_left=0)) == {}


def test_nobody_comes_to_a_drained_server_so_that_others_wait_less() -> None:
    there = [replace(one, accepts=one.name != "f") for one in hosts("abcdef")]
    assert moves(decide(there, beside_a_wide_gang())).get(1) is None


def test_a_gang_that_lies_over_parts_of_two_homes_takes_one_of_them() -> None:
    """Each of its servers kept another one waiting."""
    world = run(hosts("abcd"), [*whole(1, "a+b"), *whole(2, "c+d"), *whole(3, "b+c")])
    verdict = world.go(1)
    assert homes_of(verdict) in ({1: "a+b", 2: "c+d", 3: "b+a"}, {1: "a+b", 2: "c+d", 3: "d+c"})
    before = sum(world.gpus.values())
    world.go(30)
    assert sum(world.gpus.values()) - before == 30 * 16
    assert len(world.moved) == 1


ONE_IS_SMALL = [
    replace(one, gpu_memory_bytes=(8 if one.name == "e" else 16) * GIB) for one in hosts("abcdefgh")
]


def in_the_way(**facts: Any) -> list[JobFacts]:
    """Jobs 1 and 2 keep three servers waiting. Job 1 would have `d` and one more to itself but for job 3, and `e` is too small for it."""
    large = {"gpu_memory_bytes": 16 * GIB}
    return [*whole(1, "a+b", **large), *whole(2, "a+b+f", **large), *whole(3, "c+g+h", **facts)]


def test_who_is_in_the_way_goes_where_it_keeps_fewer_waiting_and_a_gang_comes_instead() -> None:
    world = run(ONE_IS_SMALL, in_the_way())
    assert homes_of(world.go(1)) == {1: "c+d", 2: "a+b+f", 3: "e+g+h"}
    before = sum(world.gpus.values())
    world.go(40)
    assert sum(world.gpus.values()) - before == 40 * 32
    assert len(world.moved) == 2


@pytest.mark.parametrize("facts", [{"migrate": Migrate.NEVER}, {"settled_s": LONG_AGO}])
def test_where_who_is_in_the_way_may_not_go_nobody_does(facts: dict[str, Any]) -> None:
    assert moves(decide(ONE_IS_SMALL, in_the_way(**facts))) == {}


def test_where_the_budget_is_less_than_it_takes_nobody_goes() -> None:
    assert moves(decide(ONE_IS_SMALL, in_the_way(), migrations_left=1)) == {}


def test_where_small_jobs_fill_the_other_servers_meanwhile_gangs_stay() -> None:
    small = [one for at_ in "abcd" for one in at(at_, *(job(10 * ord(at_) + n, "A") for n in range(8)))]
    jobs = [*whole(1, "a+b"), *whole(2, "c+d"), *whole(3, "b+c"), *small]
    assert 3 not in moves(decide(hosts("abcd"), jobs))
