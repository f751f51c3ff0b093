"""Gandiva_fair: who waits goes where GPUs idle, also where a server's load is no less without it (3.3)."""

from dataclasses import replace
from typing import Any

import pytest

from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts

from .asked import LONG_AGO, at, decide, moves, run, sweep, where  # noqa: TID252 — tests are no package on the path
from .worlds import Run, homes_of, host, job  # noqa: TID252 — tests are no package on the path

AB = ("a", "b")


def beside_a_gang_over_both(first: str, second: str) -> list[JobFacts]:
    """A gang has all of both servers in its turn; in its others seven jobs of A and one that is due all the time wait on one of them, as two GPUs idle on the other."""
    gang = job(1, "G", 8, nodes=2)
    return [*at("a+b", gang), *at(first, *sweep(2, 2, "A")), *at(second, *sweep(4, 7, "A"), job(11, "B"))]


def run_of(jobs: list[JobFacts], **tickets: int) -> tuple[dict[str, int], list[int], dict[str, int]]:
    """Where they live after 30 quanta, who had moved, and GPUs a user had in a hundred more. Nobody moves any more."""
    world = run([host(name) for name in AB], jobs, tickets=tickets)
    homes, moved = dict(where(world.go(30))), [int(job_id) for _, job_id in world.moved]
    world.gpus.clear()
    world.go(100)
    assert len(world.moved) == len(moved)
    return homes, moved, {str(user): gpus for user, gpus in world.by_user().items()}


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_idle_gpus_are_filled_from_beside_a_job_that_is_due_all_the_time(first: str, second: str) -> None:
    homes, moved, gpus = run_of(beside_a_gang_over_both(first, second), G=35, A=35, B=10)
    assert homes == {"a+b": 1, first: 4, second: 6}
    assert len(moved) == 2
    turns = gpus["G"] / 8
    assert gpus["A"] + gpus["B"] == 8 * (100 - turns), "nothing idles beside the gang's turns"


def test_the_move_says_what_it_is_for() -> None:
    jobs = beside_a_gang_over_both("a", "b")
    verdict = decide([host(name) for name in AB], jobs, tickets={"G": 35, "A": 35, "B": 10})
    assert set(moves(verdict).values()) == {MoveReason.PACKING}
    assert {text for _, text in verdict.plan.moves.values()} == {
        "GPUs idle beside gangs on a that it can have"
    }


@pytest.mark.parametrize(
    "facts", [{"migrate": Migrate.NEVER}, {"settled_s": LONG_AGO}, {"barred": frozenset({HostName("a")})}]
)
def test_who_may_not_go_stays_beside_them(facts: dict[str, Any]) -> None:
    jobs = [replace(one, **facts) if one.nodes == 1 else one for one in beside_a_gang_over_both("a", "b")]
    assert moves(decide([host(name) for name in AB], jobs, tickets={"G": 35, "A": 35, "B": 10})) == {}


def test_nobody_comes_to_a_server_that_accepts_none() -> None:
    jobs = [
        replace(one, migrate=Migrate.NEVER) if one.hosts == ("a",) else one
        for one in beside_a_gang_over_both("a", "b")
    ]
    hosts = [host("a", accepts=False), host("b")]
    assert moves(decide(hosts, jobs, tickets={"G": 35, "A": 35, "B": 10})) == {}


ABC = [host(name) for name in "abc"]
STAYS: dict[str, Any] = {"migrate": Migrate.NEVER}


def test_nobody_goes_where_gangs_over_several_servers_leave_hardly_anything() -> None:
    """Four GPUs of a idle in one of 11 quanta, two gangs have the others. With a little less of them two come (the paper's 3.3 has no word on what is worth a move)."""
    gangs = [*at("a+b", job(1, "G", 8, nodes=2, **STAYS)), *at("a+c", job(2, "H", 8, nodes=2, **STAYS))]
    jobs = [*gangs, *at("b", *sweep(3, 5, "A"), job(10, "B")), *at("c", job(20, "C", 4, **STAYS))]
    assert moves(decide(ABC, jobs, tickets={"G": 30, "H": 30, "A": 8, "B": 9, "C": 23})) == {}
    assert len(moves(decide(ABC, jobs, tickets={"G": 28, "H": 28, "A": 6, "B": 9, "C": 30}))) == 2


def test_nobody_goes_where_a_gang_would_have_to_wait_for_it() -> None:
    """It is due seven quanta of ten on a and c, and the three jobs that wait on b four each."""
    gang, stay = at("a+c", job(1, "H", 8, nodes=2, **STAYS)), at("c", *sweep(20, 4, "C", **STAYS))
    jobs = [*gang, *at("b", job(2, "G", 4, **STAYS), *sweep(5, 3, "A"), job(10, "B", **STAYS)), *stay]
    assert moves(decide(ABC, jobs, tickets={"H": 40, "G": 40, "A": 9, "B": 10, "C": 1})) == {}


def test_nobody_goes_where_less_idles_than_it_needs() -> None:
    """Two servers share a gang. A GPU idles beside three jobs on a, and those that wait on b take two each."""
    gang, stay = at("a+b", job(1, "G", 8, nodes=2, **STAYS)), at("a", *sweep(2, 3, "C", **STAYS))
    jobs = [*gang, *stay, *at("b", *sweep(5, 2, "A", 2), job(10, "B", **STAYS))]
    tickets = {"G": 50, "A": 15, "B": 20, "C": 15}
    assert moves(decide(ABC[:2], jobs, tickets=tickets)) == {}
    ones = [replace(one, gang=1) if one.user == "A" else one for one in jobs] + at("b", *sweep(7, 2, "A"))
    assert set(moves(decide(ABC[:2], ones, tickets=tickets)).values()) == {MoveReason.PACKING}


def test_no_more_go_than_the_budget_allows() -> None:
    """From two servers, each with a job that is due all the time, to a third with which they share a gang."""
    gang = at("a+b+c", job(1, "G", 12, nodes=3, **STAYS))
    crowds = [*at("b", *sweep(2, 6, "A"), job(20, "B")), *at("c", *sweep(10, 6, "A"), job(21, "B"))]
    jobs, tickets = [*gang, *crowds], {"G": 40, "A": 30, "B": 20}
    assert len(moves(decide(ABC, jobs, tickets=tickets))) > 1
    assert len(moves(decide(ABC, jobs, tickets=tickets, migrations_left=1))) == 1


def test_an_open_server_is_found_among_many_that_are_drained() -> None:
    jobs = beside_a_gang_over_both("a", "b")
    many = [host(f"0{number}", accepts=False) for number in range(9)]
    verdict = decide([*many, *ABC[:2]], jobs, tickets={"G": 35, "A": 35, "B": 10})
    assert {homes_of(verdict)[job_id] for job_id in moves(verdict)} == {"a"}


def test_small_jobs_do_not_crowd_beside_one_that_is_due_all_the_time() -> None:
    """As loads are, server by server, none of them adds anything to it there, and the other one has only its part of the gang: it would wait with that, idle."""
    jobs = [
        *at("a+b", job(1, "G", 8, nodes=2)),
        *at("a", *sweep(2, 3, "A")),
        *at("b", *sweep(5, 5, "A"), job(10, "B")),
    ]
    homes, _, gpus = run_of(jobs, G=35, A=35, B=10)
    assert homes == {"a+b": 1, "a": 4, "b": 5}
    assert sum(gpus.values()) == 800


# --- GPUs that nobody asks for ------------------------------------------------------------------------------------------


def rest(jobs: list[JobFacts], hosts: list[HostFacts], **tickets: int) -> Run:
    """After 30 quanta, from which on nobody moves any more."""
    world = run(hosts, jobs, tickets=tickets)
    world.go(30)
    moved = len(world.moved)
    world.gpus.clear()
    world.idle.clear()
    world.go(60)
    assert len(world.moved) == moved
    return world


def test_who_waits_beside_a_gang_over_both_its_servers_goes_to_an_empty_one() -> None:
    """Of its two servers each is as full as the other, so neither is any better off without one of its small jobs."""
    gang = at("a+b", job(1, "G", 8, nodes=2))
    small = [*at("a", *sweep(2, 2, "A")), *at("b", *sweep(4, 2, "A"))]
    world = rest([*gang, *small], ABC, G=200, A=100)
    assert world.by_user() == {"G": 8 * 60, "A": 4 * 60}
    assert sorted(job_id for _, job_id in world.moved) == [2, 3, 4, 5]


def test_a_gang_over_several_servers_goes_where_it_need_not_wait() -> None:
    """G's two have their turns together, so a and b are as full without one of them; c and d have room for one, beside jobs that run all the time."""
    jobs = [
        *at("a+b", job(1, "H", 8, nodes=2, **STAYS), job(2, "G", 4, nodes=2), job(3, "G", 4, nodes=2)),
        *at("c", job(4, "C", 2, **STAYS)), *at("d", job(5, "C", 2, **STAYS)),
    ]  # fmt: skip
    assert sum(rest(jobs, [*ABC, host("d")]).idle.values()) == 0


def test_whole_servers_are_left_to_gangs_while_others_have_room() -> None:
    gang, stay = at("a+b", job(1, "G", 8, nodes=2, **STAYS)), at("c", *sweep(4, 2, "C", **STAYS))
    jobs = [*gang, *at("a", job(2, "A")), *at("b", job(3, "A")), *stay]
    verdict = decide([*ABC, host("d"), host("0")], jobs)
    homes, text = homes_of(verdict), "GPUs idle on c that it can have"
    packed = [job_id for job_id, reason in moves(verdict).items() if reason is MoveReason.PACKING]
    assert [(homes[job_id], verdict.plan.moves[JobId(job_id)][1]) for job_id in packed] == [("c", text)]


def test_nobody_moves_who_runs_nearly_all_the_time() -> None:
    """The gang has one quantum of sixteen; with a little more the others go."""
    hosts = [host(name, 8) for name in "abc"]
    small = [*at("a", *sweep(2, 8, "A")), *at("b", *sweep(10, 8, "A"))]
    for beside, go in ((7, 0), (6, 2)):
        jobs = [
            *at("a+b", job(1, "G", 16, nodes=2, **STAYS)),
            *small,
            *at("c", *sweep(20, beside, "C", **STAYS)),
        ]
        assert len(moves(decide(hosts, jobs, tickets={"G": 1, "A": 160, "C": 80}))) == go
