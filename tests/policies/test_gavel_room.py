"""Gavel's rounds on servers: what a pool's GPUs suffice for by numbers, its servers may not hold."""

from dataclasses import replace

import pytest

from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import JobFacts, Snapshot
from tests.policies.worlds import Run, having, host, job, snapshot

FAIR = [
    "gavel-max-min",
    "gavel-max-min-blind",
    "gavel-max-min-packed",
    "gavel-ftf",
    "gavel-water-filling",
    "gavel-hierarchical",
    "gavel-makespan",
]
every_fair_policy = pytest.mark.parametrize("name", FAIR)
RATES = {("c", "V100"): 1.0}
GANG = JobId(99)


def sized(at: int, gang: int = 1, **facts: object) -> JobFacts:
    return replace(job(at, f"u{at}", gang, movable=True, **facts), steps=1e6, job_class="c")


def stuck(at: int, home: str) -> JobFacts:
    """It cannot be suspended, and will not end."""
    facts = {"hosts": (HostName(home),), "started": True, "running": True, "sliceable": False}
    return replace(sized(at, **facts), movable=False, steps=1e9)


def crowded(*more: JobFacts) -> Snapshot:
    """Six GPUs for nine equal jobs, three on each of two servers."""
    jobs = [stuck(1, "h1"), stuck(2, "h2"), *(sized(at) for at in range(10, 19)), *more]
    return snapshot(
        [host("h1"), host("h2")], jobs, rates=RATES, quantum_s=360.0, now_s=100.0, migrations_left=99
    )


def rounds(name: str, asked: Snapshot, count: int) -> Run:
    run = Run(policy=find(name), asked=asked)
    run.go(count)
    return run


@every_fair_policy
def test_equal_jobs_have_equal_time_while_a_gang_waits_that_no_server_can_hold(name: str) -> None:
    run = rounds(name, crowded(sized(GANG, 4)), 24)
    had = [run.gpus[JobId(at)] for at in range(10, 19)]
    assert max(had) - min(had) <= 1, had
    assert run.gpus[GANG] == 0
    assert not any(run.idle.values())


def test_parts_of_a_cluster_have_the_time_that_they_have_without_a_gang_that_no_server_can_hold() -> None:
    beside, alone = (rounds("pop", crowded(*more), 24) for more in ([sized(GANG, 4)], []))
    assert beside.gpus == alone.gpus


@every_fair_policy
@pytest.mark.parametrize("waited", [1, 4, 9])
def test_a_gang_starts_and_has_its_part_once_a_server_has_room(name: str, waited: int) -> None:
    run = rounds(name, crowded(sized(GANG, 4)), waited)
    run.asked = having(run.asked, [one for one in run.asked.jobs if one.id != 2])
    run.go(4)
    assert run.gpus[GANG] >= 4
    run.go(56)
    had = [run.gpus[JobId(at)] for at in range(10, 19)]
    assert run.gpus[GANG] >= 0.8 * min(had), "as much GPU-time as others, however wide it is"
    assert max(had) - min(had) <= 2, had


@every_fair_policy
def test_a_gang_has_the_room_before_those_who_would_not_give_it_back(name: str) -> None:
    """Else those who wait and cannot be suspended once they run would fill it up before the next allocation."""
    run = rounds(name, crowded(sized(GANG, 4)), 4)
    there = [one for one in run.asked.jobs if one.id != 2]
    waiting = {one.id for one in there} - run.asked.running
    assert len(waiting) == 4
    run.asked = having(run.asked, [replace(one, sliceable=one.id not in waiting) for one in there])
    run.step()
    assert run.gpus[GANG] == 4


def test_a_gang_has_time_where_servers_hold_it_and_not_where_it_would_be_faster() -> None:
    asked = crowded(sized(GANG, 4))
    asked = replace(asked, hosts=(*asked.hosts, host("old", 4, "K80")), rates={**RATES, ("c", "K80"): 0.25})
    run = rounds("gavel-max-min", asked, 24)
    assert run.gpus[GANG] > 0


def test_who_is_left_out_is_told_so_and_leaves_its_users_tickets_to_the_others() -> None:
    gang = replace(sized(GANG, 4), user=sized(10).user)
    run = Run(policy=find("gavel-max-min"), asked=crowded(gang))
    assert "cannot be suspended" in run.step().why[GANG]
    run.go(23)
    had = [run.gpus[JobId(at)] for at in range(10, 19)]
    assert max(had) - min(had) <= 1, had


def together(*gangs: int) -> Snapshot:
    """On three servers of four GPUs: by numbers all fit."""
    jobs = [sized(at, gang) for at, gang in enumerate(gangs, 1)]
    hosts = [host(f"h{at}") for at in range(3)]
    return snapshot(hosts, jobs, rates=RATES, quantum_s=360.0, now_s=100.0, migrations_left=999)


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("gangs", [(3, 3, 3, 3), (3, 3, 3, 2)])
def test_gangs_that_fit_by_numbers_only_take_turns(gangs: tuple[int, ...], compat: bool) -> None:
    run = Run(policy=find("gavel-max-min", compat=compat), asked=together(*gangs))
    run.go(40)
    had = [run.gpus[one.id] / one.gang for one in run.asked.jobs]
    assert min(had) >= 27, had


def test_gpus_for_which_a_gang_does_not_fit_go_along_the_line_and_count_as_received() -> None:
    run = rounds("gavel-max-min", together(*[3] * 6, *[1] * 12), 60)
    for gang in (1, 3):
        had = [run.gpus[one.id] / gang for one in run.asked.jobs if one.gang == gang]
        assert max(had) - min(had) <= 1, had
    assert not any(run.idle.values())


def test_who_may_not_move_does_not_keep_gpus_from_those_behind_it_in_line() -> None:
    """Five live on a server of four GPUs, three on the other: with no moves left the one GPU there goes to none of the five."""
    jobs = [sized(at, started=True, hosts=(HostName("h1" if at <= 5 else "h2"),)) for at in range(1, 9)]
    jobs += [sized(at) for at in (9, 10)]
    asked = snapshot([host("h1"), host("h2")], jobs, rates=RATES, quantum_s=360.0, now_s=100.0)
    run = rounds("gavel-max-min", asked, 30)
    assert not any(run.idle.values())
    assert not run.moved
    here, there = ([run.gpus[JobId(at)] for at in group] for group in (range(1, 6), range(6, 9)))
    assert max(here) - min(here) <= 2, here
    assert min(there) >= 18, there
