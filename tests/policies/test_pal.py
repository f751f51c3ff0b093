"""PAL: who has least runs, and who feels it most has the GPUs that are as fast as others."""

from dataclasses import replace

import pytest

from hs_core.errors import BrokenError
from hs_core.forms import Spread
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies.las import LAS
from hs_core.policies.pal import PAL
from hs_core.policy import JobFacts, Snapshot, Verdict

from .worlds import homes_of, host, job, snapshot  # noqa: TID252 — tests are no package on the path

A, B = HostName("a"), HostName("b")
SLOW_FIRST = {("felt", A): (2.0, 1.0), ("felt", B): (1.0, 1.0), ("mild", A): (1.1, 1.0)}


def decide(asked: Snapshot) -> Verdict:
    verdict = PAL.decide(asked, {})
    check(asked, verdict.plan, PAL.needs)
    return verdict


def seats(verdict: Verdict) -> dict[int, list[str]]:
    """`a0`: GPU 0 of a."""
    found: dict[int, list[str]] = {}
    for name, turn in sorted(verdict.plan.turns.items()):
        for seat in turn.seats:
            found.setdefault(int(seat.job), []).extend(f"{name}{gpu}" for gpu in seat.gpus)
    return found


def uneven(*jobs: JobFacts, **facts: object) -> Snapshot:
    """Servers a and b with two GPUs each; GPU 0 of a is slow."""
    facts = {"slowdowns": SLOW_FIRST, "migrations_left": 9} | facts
    return snapshot([host("a", 2), host("b", 2)], list(jobs), **facts)


def test_who_feels_it_most_has_the_gpus_that_are_as_fast_as_others() -> None:
    asked = uneven(
        *(job(at, job_class="mild") for at in (1, 2)), *(job(at, job_class="felt") for at in (3, 4))
    )
    found = seats(decide(asked))
    assert found[3] == ["a1"], "the server with the fewest free GPUs of those that are as fast"
    assert found[4] == ["b0"]
    assert sorted(found[1] + found[2]) == ["a0", "b1"]


def test_a_gang_goes_where_its_slowest_gpu_is_fastest() -> None:
    assert seats(decide(uneven(job(1, gang=2, job_class="felt")))) == {1: ["b0", "b1"]}


def test_a_gang_over_several_servers_has_the_best_of_each() -> None:
    asked = uneven(job(1, gang=2, nodes=2, job_class="felt"))
    verdict = decide(asked)
    assert homes_of(verdict) == {1: "a+b"}
    assert seats(verdict) == {1: ["a1", "b0"]}


MAY = {"gang": 2, "job_class": "felt", "movable": True, "spreads": (1, 2)}
FELT, APART = ("felt", "V100"), ("felt on 2 servers", "V100")


@pytest.mark.parametrize(("slow", "servers"), [(1.4, 1), (1.6, 2)])
def test_a_job_that_may_is_laid_over_servers_where_their_fast_gpus_gain_more_than_the_network_costs(
    slow: float, servers: int
) -> None:
    times = {("felt", A): (slow, 1.0), ("felt", B): (1.0, slow)}
    verdict = decide(uneven(job(1, **MAY), slowdowns=times))  # type: ignore[arg-type]  # the tests' own facts
    assert len(verdict.plan.homes[JobId(1)]) == servers
    if servers == 2:
        assert seats(verdict) == {1: ["a1", "b0"]}
        assert verdict.plan.shapes == {1: Spread(nodes=2)}
        assert verdict.how[JobId(1)] == "over 2 servers: so it is slowed least"
    fixed = decide(uneven(job(1, **MAY | {"spreads": ()}), slowdowns=times))  # type: ignore[arg-type]
    assert len(fixed.plan.homes[JobId(1)]) == 1


@pytest.mark.parametrize(("loose", "servers"), [(0.7, 1), (0.9, 2)])
def test_what_the_network_costs_a_class_is_taken_as_measured(loose: float, servers: int) -> None:
    times = {
        (name, host): slow for name, _ in (FELT, APART) for host, slow in ((A, (1.3, 1.0)), (B, (1.0, 1.3)))
    }
    asked = uneven(job(1, **MAY), slowdowns=times, rates={FELT: 1.0, APART: loose})  # type: ignore[arg-type]
    assert len(decide(asked).plan.homes[JobId(1)]) == servers


def test_a_job_that_may_be_anywhere_is_spread_where_no_server_has_room() -> None:
    here = {"started": True, "movable": True, "running": True, "job_class": "felt"}
    small = [job(at, host=name, gpus=((0,),), **here) for at, name in ((8, A), (9, B))]
    asked = uneven(*small, job(10, **MAY), migrations_left=0)  # type: ignore[arg-type]
    assert homes_of(decide(asked))[10] == "a+b"


def test_jobs_that_feel_it_alike_do_not_change_places() -> None:
    here = {"started": True, "movable": True, "running": True, "job_class": "felt"}
    rich = job(1, host=A, gpus=((1,),), attained_gpu_s=900.0, **here)
    poor = job(2, host=A, gpus=((0,),), attained_gpu_s=1.0, **here)
    others = [job(at, host=B, gpus=((at - 3,),), **here) for at in (3, 4)]
    verdict = decide(uneven(rich, poor, *others))
    assert seats(verdict) == {1: ["a1"], 2: ["a0"], 3: ["b0"], 4: ["b1"]}
    assert not verdict.plan.moves


def test_a_running_job_goes_to_a_faster_gpu_that_is_free() -> None:
    here = {"started": True, "movable": True, "running": True, "job_class": "felt"}
    slow = job(1, host=A, gpus=((0,),), **here)
    assert seats(decide(uneven(slow))) == {1: ["a1"]}
    stuck = replace(slow, movable=False)
    assert seats(decide(uneven(stuck))) == {1: ["a1"]}, "it cannot go to another server"
    assert seats(decide(uneven(replace(stuck, rooted=True)))) == {1: ["a0"]}, "it cannot write a checkpoint"
    full = [slow, job(2, host=A, gpus=((1,),), **here)]
    elsewhere = decide(uneven(*full))
    assert homes_of(elsewhere) == {1: "b", 2: "a"}
    assert homes_of(decide(uneven(*full, migrations_left=0))) == {1: "a", 2: "a"}
    assert homes_of(decide(uneven(replace(slow, migrate=Migrate.NEVER), full[1]))) == {1: "a", 2: "a"}


def test_gangs_that_would_not_fit_behind_single_jobs_are_placed_first() -> None:
    ones = [job(at, job_class="felt") for at in (1, 2)]
    asked = uneven(*ones, job(3, gang=2), slowdowns={("felt", A): (2.0, 1.0), ("felt", B): (2.0, 1.0)})
    found = seats(decide(asked))
    assert set(found) == {1, 2, 3}, "one each on a1 and b1 would leave no server for the gang"
    assert len({gpu[0] for gpu in found[3]}) == 1


def test_where_all_gpus_are_alike_it_is_las_and_names_none() -> None:
    asked = uneven(*(job(at, gang=1 + at % 2) for at in range(1, 6)), slowdowns={})
    assert seats(decide(asked)) == {}
    assert decide(asked).plan == LAS.decide(asked, {}).plan


@pytest.mark.parametrize("bad", [(0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (float("inf"), 1.0), (1.0,)])
def test_scores_that_are_no_slowdowns_or_too_few_stop_it(bad: tuple[float, ...]) -> None:
    with pytest.raises(BrokenError, match="expected 2 finite numbers above 0"):
        decide(uneven(job(1, job_class="felt"), slowdowns={("felt", A): bad}))


LIVES = {"started": True, "movable": True, "job_class": "felt"}
DRAINED = host("a", 2, accepts=False)


@pytest.mark.parametrize(("home", "then"), [(("a",), {"c"}), (("a", "b"), {"b", "c"})])
def test_a_drained_server_is_left_for_slower_gpus_by_gangs_with_a_part_elsewhere_too(
    home: tuple[str, ...], then: set[str]
) -> None:
    here = job(1, hosts=home, gang=len(home), nodes=len(home), **LIVES)  # type: ignore[arg-type]  # the tests' own facts
    full = (
        [job(2, hosts=("b",), gang=2, nodes=1, migrate=Migrate.NEVER, started=True)] if len(home) == 1 else []
    )
    slow = {("felt", HostName("c")): (2.0, 2.0)}
    asked = snapshot([DRAINED, host("b", 2), host("c", 2)], [here, *full], slowdowns=slow, migrations_left=9)
    assert set(decide(asked).plan.homes[JobId(1)]) == then


@pytest.mark.parametrize("home", [("a",), ("a", "b")])
def test_who_has_nowhere_to_go_stays_on_a_drained_server(home: tuple[str, ...]) -> None:
    here = job(1, hosts=home, gang=len(home), nodes=len(home), **LIVES)  # type: ignore[arg-type]  # the tests' own facts
    asked = snapshot([DRAINED, host("b", 2)][: len(home)], [here], slowdowns=SLOW_FIRST, migrations_left=9)
    assert decide(asked).plan.homes == {JobId(1): home}


def test_gpus_that_are_out_of_use_are_not_named() -> None:
    sick = replace(host("a", 1), indices=(1,))
    asked = snapshot([sick], [job(1, job_class="felt")], slowdowns={("felt", A): (2.0,)}, migrations_left=9)
    assert seats(decide(asked)) == {}, "one GPU is like itself"
    two = replace(host("a", 2), indices=(1, 3))
    asked = snapshot([two], [job(1, job_class="felt")], slowdowns={("felt", A): (2.0, 1.0)})
    assert seats(decide(asked)) == {1: ["a3"]}
    assert decide(asked).plan.homes[JobId(1)] == (A,)


def test_within_a_quantum_what_jobs_have_had_since_takes_nobodys_gpus() -> None:
    """Asked at every report, it put jobs aside that were coming up, for others that they had just overtaken."""
    here = {"host": "a", "started": True, "movable": True}
    jobs = [job(at, attained_gpu_s=50.0 * at, running=at < 3, **here) for at in (1, 2, 3)]
    asked = snapshot([host("a", 2)], jobs)
    first = PAL.decide(asked, {})
    later = replace(
        asked, jobs=tuple(replace(one, attained_gpu_s=900.0 / one.id) for one in jobs), running=frozenset()
    )
    assert first.plan.turns[A].gangs == PAL.decide(later, first.memory).plan.turns[A].gangs == (1, 2)
    assert PAL.decide(replace(later, quantum=1), first.memory).plan.turns[A].gangs == (2, 3)
