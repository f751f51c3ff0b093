"""Gandiva_fair, local part: tickets of table 2 and figure 4, placement over servers and pools, and what `why` says."""

from collections import Counter
from fractions import Fraction

import pytest

from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import JobFacts, Snapshot, Verdict

from .worlds import (  # noqa: TID252 — tests are no package on the path
    FIGURE_4,
    GIB,
    TABLE_2,
    Run,
    Strides,
    after,
    having,
    homes_of,
    host,
    job,
    snapshot,
)

GANDIVA_FAIR = find("gandiva-fair")


def decide(asked: Snapshot) -> Verdict:
    return GANDIVA_FAIR.decide(asked, {})


def jobs_of(verdict: Verdict, name: str) -> list[int]:
    return sorted(job for job, home in verdict.plan.homes.items() if name in home)


def test_table_2_from_tickets_to_turns() -> None:
    verdict, strides = decide(TABLE_2), Strides()
    assert verdict.entitled == {(user, "V100"): Fraction(4, 3) for user in "ABC"}
    assert set(verdict.plan.tickets.values()) == {Fraction(2, 3)}
    runs = [strides.run(TABLE_2, verdict.plan)[HostName("h")] for _ in range(60)]
    for start in range(55):
        ran = Counter(job for run in runs[start : start + 6] for job in run)
        assert ran == {0: 4, 1: 4, 2: 2, 3: 2, 4: 1, 5: 1}


def test_figure_4_from_tickets_to_shares_and_what_the_user_who_remains_gets() -> None:
    asked, strides = FIGURE_4, Strides()
    user = {job.id: job.user for job in asked.jobs}
    gang = {job.id: job.gang for job in asked.jobs}
    received: list[Counter[str]] = []
    for _ in range(120):
        verdict = decide(asked)
        ran = strides.run(asked, verdict.plan)
        received.append(Counter())
        for job_id in ran[HostName("h")]:
            received[-1][user[job_id]] += gang[job_id]
        asked = after(asked, verdict, ran)
    for start in range(90):
        total: Counter[str] = sum(received[start : start + 30], Counter())
        assert all(total[name] / 30 == pytest.approx(4 / 3, rel=0.02) for name in "ABC")
    alone = having(asked, jobs=tuple(job for job in asked.jobs if job.user == "B"))
    verdict = decide(alone)
    assert verdict.entitled == {("B", "V100"): 4}
    assert all(len(strides.run(alone, verdict.plan)[HostName("h")]) == 2 for _ in range(20))


def test_equal_jobs_spread_over_equal_servers() -> None:
    asked = snapshot([host("a"), host("b")], [job(at, "AB"[at % 2]) for at in range(8)])
    verdict = decide(asked)
    assert len(jobs_of(verdict, "a")) == len(jobs_of(verdict, "b")) == 4


def test_load_is_tickets_not_jobs() -> None:
    # A's one job brings 4 tickets to its server; B's four jobs bring one each.
    asked = snapshot([host("a"), host("b")], [job(0, "A", 4), *(job(at, "B") for at in range(1, 5))])
    verdict = decide(asked)
    assert (jobs_of(verdict, "a"), jobs_of(verdict, "b")) == ([0], [1, 2, 3, 4])


def test_of_equal_servers_the_one_with_most_gpus_is_least_loaded_then_the_first_by_name() -> None:
    assert homes_of(decide(snapshot([host("a", 2), host("b", 4)], [job(1)]))) == {1: "b"}
    assert homes_of(decide(snapshot([host("b"), host("a")], [job(1)]))) == {1: "a"}


def test_ties_go_to_the_fullest_that_still_fits() -> None:
    # B's two GPUs weigh as much on z as D's one on y: A's first job finds equal loads.
    there = [
        job(1, "B", 2, host=HostName("z"), started=True),
        job(2, "D", 1, host=HostName("y"), started=True),
    ]
    asked = snapshot([host("y"), host("z")], [*there, *(job(at, "A") for at in range(3, 23))], {"A": 600})
    assert homes_of(decide(asked))[JobId(3)] == "z"


def test_load_is_what_it_will_be_with_the_job_in_place() -> None:
    # A is entitled to 4 GPUs; with a third asked for, its two on a weigh 4/3 each and no longer 2.
    there = [
        job(1, "A", 2, host=HostName("a"), started=True),
        job(2, "B", 3, host=HostName("b"), started=True),
    ]
    asked = snapshot([host("a"), host("b")], [*there, job(3, "A"), job(4, "A")])
    assert homes_of(decide(asked))[JobId(3)] == "a"


def test_homes_stay() -> None:
    jobs = [job(at, "A", host=HostName("a"), started=True) for at in range(6)]
    asked = snapshot([host("a"), host("b")], jobs)
    assert jobs_of(decide(asked), "a") == list(range(6))


def test_a_user_fills_its_share_of_the_newest_pool_first() -> None:
    hosts = [host("k", 4, "K80"), host("v", 4, "V100")]
    asked = snapshot(hosts, [job(at, "A") for at in range(8)])
    verdict = decide(asked)
    assert (jobs_of(verdict, "v"), jobs_of(verdict, "k")) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert verdict.entitled == {("A", "V100"): 4, ("A", "K80"): 4}


def test_pins_and_memory_decide_the_pool() -> None:
    hosts = [host("k", 4, "K80"), host("v", 4, "V100")]
    jobs = [job(1, gpu_types=("K80",)), job(2, gpu_memory_bytes=14 * GIB), job(3, gpu_memory_bytes=10 * GIB)]
    verdict = decide(snapshot(hosts, jobs))
    assert homes_of(verdict) == {1: "k", 2: "v", 3: "v"}


def test_the_user_with_least_in_use_is_placed_first_and_its_urgent_job() -> None:
    hosts = [host("a", 2), host("b", 2)]
    old = job(1, "A", 2, host=HostName("a"), started=True)
    asked = snapshot(hosts, [old, job(2, "A", 2), job(3, "B", 2), job(4, "B", 2, priority=5)])
    homes = homes_of(decide(asked))
    # B is first, its urgent job takes the empty server; the order of the rest follows from the load.
    assert homes[JobId(4)] == "b"


def test_users_of_unequal_tickets_get_unequal_shares() -> None:
    asked = snapshot(
        [host("h")], [*(job(at, "A") for at in range(4)), *(job(at, "B") for at in range(4, 8))], {"A": 300}
    )
    assert decide(asked).entitled == {("A", "V100"): 3, ("B", "V100"): 1}


def test_a_job_that_cannot_run_just_now_takes_no_share() -> None:
    jobs = [job(1, "A", 4, host=HostName("h"), started=True), job(2, "B", 1), job(3, "B", 1)]
    verdict = decide(snapshot([host("h", 2)], jobs))  # two of its four GPUs are lost
    assert verdict.entitled == {("B", "V100"): 2}
    assert verdict.plan.tickets[jobs[0].id] > 0
    assert "only 2 GPUs in health" in verdict.why[jobs[0].id]


@pytest.mark.parametrize(
    ("made", "hosts", "said"),
    [
        (job(1), [], "no GPU server has joined"),
        (job(1, gpu_types=("H100",)), [host("h")], "no server has H100 GPUs"),
        (job(1, gang=8), [host("h")], "asks for 8 GPUs on one server; the largest that it may use has 4"),
        (
            job(1, gpu_memory_bytes=40 * GIB),
            [host("h")],
            "asks for 40.0 GiB of memory on each GPU; the largest has 16.0",
        ),
        (
            job(1),
            [host("h", accepts=False)],
            "every server that could take it is away, drained, or cannot start it now",
        ),
        (
            job(1, host=HostName("gone"), started=True),
            [host("h")],
            "its server gone is not part of the cluster now",
        ),
        (job(1, host=HostName("h")), [host("h", connected=False)], "its server h is away"),
        (job(1), [host("h")], "waiting for its turn on h: its share is 100% of the quanta"),
    ],
)
def test_why_names_the_one_reason(made: JobFacts, hosts: list, said: str) -> None:  # type: ignore[type-arg]
    assert said in decide(snapshot(hosts, [made])).why[made.id]


def test_why_says_how_much_of_the_time_is_left_beside_gangs() -> None:
    """B's job is due all the time and A's gangs for 7 of 8 GPUs: each gets as much less as they keep one another waiting."""
    made = [job(1, "B", host="h"), *(job(at, "A", 8, host="h") for at in (2, 3, 4))]
    run = Run(GANDIVA_FAIR, snapshot([host("h", 8)], made, {"A": 700, "B": 100}))
    verdict = run.step()
    assert verdict.why[JobId(1)] == "waiting for its turn on h: its share is 53% of the quanta"
    assert verdict.why[JobId(2)] == "waiting for its turn on h: its share is 16% of the quanta"
    run.go(149)
    assert run.gpus[JobId(1)] == pytest.approx(0.53 * 150, rel=0.05)
    assert run.gpus[JobId(2)] == pytest.approx(0.16 * 150 * 8, rel=0.05)


def test_a_job_whose_server_vanished_is_not_placed_elsewhere() -> None:
    lost = job(1, host=HostName("gone"), started=True)
    assert homes_of(decide(snapshot([host("h")], [lost]))) == {}
