"""gandiva-fair: tickets go by where jobs live, so that users get there what is due to them."""

from collections.abc import Iterable
from fractions import Fraction

import pytest

from hs_core.mechanism.fitting import LEAST_FACTOR, MOST_FACTOR
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import HostFacts, JobFacts, Verdict

from .worlds import GIB, host, job, snapshot  # noqa: TID252 — tests are no package on the path

STAY = {"migrate": Migrate.NEVER, "movable": False}


def lives(ids: Iterable[int], user: str, where: str, gang: int = 1, **facts: object) -> list[JobFacts]:
    known = {"steps": 1e5, "job_class": "c", "memory_bytes": GIB, "gpu_memory_bytes": GIB, "started": True}
    return [job(at, user, gang, host=HostName(where), **(known | STAY | facts)) for at in ids]


def decided(hosts: Iterable[HostFacts], jobs: Iterable[JobFacts], **facts: object) -> Verdict:
    asked = snapshot(list(hosts), list(jobs), rates={("c", "V100"): 1.0}, migrations_left=0, **facts)
    return find("gandiva-fair").decide(asked, {})


def gets(verdict: Verdict, jobs: Iterable[JobFacts], gpus: int) -> dict[str, float]:
    """GPUs of each user on a server with these jobs, as tickets divide them. To be asked only where nobody's part is more than it asks for."""
    there = list(jobs)
    total = sum(verdict.plan.tickets[one.id] for one in there)
    found: dict[str, float] = {}
    for one in there:
        part = float(gpus * verdict.plan.tickets[one.id] / total)
        assert part <= one.gang
        found[one.user] = found.get(one.user, 0.0) + part
    return found


def test_whose_jobs_are_on_the_fuller_servers_gets_as_much_as_its_tickets_say():
    full = [*lives(range(1, 7), "A", "h"), *lives(range(7, 11), "B", "h")]
    roomy = [*lives(range(11, 13), "A", "i"), *lives(range(13, 17), "B", "i")]
    verdict = decided([host("h"), host("i")], [*full, *roomy])
    on_full, on_roomy = gets(verdict, full, 4), gets(verdict, roomy, 4)
    for user in "AB":
        assert on_full[user] + on_roomy[user] == pytest.approx(4, rel=0.02)


def test_tickets_are_the_papers_where_servers_carry_alike():
    jobs = [
        *lives(range(1, 4), "A", "h"), *lives(range(4, 7), "B", "h", gang=2),
        *lives(range(7, 10), "A", "i"), *lives(range(10, 13), "B", "i", gang=2),
    ]  # fmt: skip
    tickets = decided([host("h"), host("i")], jobs).plan.tickets
    assert {tickets[JobId(at)] for at in (1, 9)} == {Fraction(4, 6)}
    assert {tickets[JobId(at)] for at in (4, 12)} == {2 * Fraction(4, 12)}


def test_tickets_are_the_papers_within_one_server_and_where_all_run_at_once():
    crowded = [*lives(range(1, 7), "A", "h"), *lives(range(7, 9), "B", "h")]
    tickets = decided([host("h")], crowded).plan.tickets
    assert (tickets[JobId(1)], tickets[JobId(7)]) == (Fraction(2, 6), Fraction(1))
    roomy = [*lives(range(1, 4), "A", "h"), *lives(range(4, 6), "B", "i")]
    tickets = decided([host("h"), host("i")], roomy).plan.tickets
    assert set(tickets.values()) == {Fraction(1)}


def test_who_cannot_get_more_where_its_jobs_are_has_no_more_than_twice_the_tickets():
    """A's jobs are alone on one server, and B's on the other: no tickets change what they get."""
    jobs = [*lives(range(1, 9), "A", "h"), *lives(range(9, 15), "B", "i")]
    shares = {"A": Fraction(3), "B": Fraction(1)}
    verdict = decided([host("h"), host("i")], jobs, tickets=shares)
    plain = {"A": verdict.entitled["A", "V100"] / 8, "B": verdict.entitled["B", "V100"] / 6}
    assert verdict.plan.tickets[JobId(1)] <= plain["A"] * Fraction(MOST_FACTOR)
    assert verdict.plan.tickets[JobId(9)] >= plain["B"] * Fraction(LEAST_FACTOR)


def test_gpus_of_whom_nothing_can_suspend_are_left_out_of_what_tickets_divide():
    """Two of B's run on one server whatever its tickets: what is left there goes to the others'."""
    stuck = lives((1, 2), "B", "h", sliceable=False)
    rest = [*lives(range(3, 7), "A", "h"), *lives(range(7, 9), "A", "i"), *lives(range(9, 15), "B", "i")]
    verdict = decided([host("h"), host("i")], [*stuck, *rest], running=frozenset({JobId(1), JobId(2)}))
    on_i = gets(verdict, [one for one in rest if one.hosts == ("i",)], 4)
    assert on_i["A"] == pytest.approx(4 - 2, rel=0.02)
    assert on_i["B"] == pytest.approx(4 - 2, rel=0.02)


def test_a_gang_alone_on_roomier_servers_has_as_many_tickets_as_its_share_says():
    """It has its turns on both of its servers at once: that fewer others live on one of them gives it nothing."""
    gang = lives((1,), "A", "h", gang=8, nodes=2, hosts=(HostName("h"), HostName("i")))
    small = [*lives(range(2, 5), "B", "h"), *lives(range(5, 7), "B", "i")]
    verdict = decided([host("h"), host("i")], [*gang, *small], tickets={"A": 50, "B": 200})
    assert (verdict.entitled["A", "V100"], verdict.entitled["B", "V100"]) == (3, 5)
    assert verdict.plan.tickets[JobId(1)] / verdict.plan.tickets[JobId(2)] == 3
