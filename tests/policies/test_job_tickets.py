"""jobTickets of very many jobs, known by which number each has, are those of each job by itself."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.job_tickets import JobTickets
from hs_core.mechanism.ticket_sums import add_up, sums
from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies import find, gandiva_fair
from hs_core.policy import Plan

from .worlds import Strides, after, host, job, snapshot  # noqa: TID252 — tests are no package on the path

NUMBERS = st.builds(
    Fraction, st.integers(1, 1 << 70), st.sampled_from((1, 7, 1000, 1 << 20, 3**30, 10**15 + 37))
)


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.lists(st.integers(0, 4), max_size=12), st.randoms())
def test_sums_of_many_servers_are_those_of_each(
    numbers: list[Fraction], sizes: list[int], dice: Random
) -> None:
    count = sum(sizes)
    which = [dice.randrange(len(numbers)) for _ in range(count)]
    ids = sorted(dice.sample(range(dice.choice((60, 1000))), count))
    tickets = JobTickets(np.array(ids, dtype=np.int64), np.array(which, dtype=np.int64), numbers)
    left = dice.sample(ids, count)
    servers = [[JobId(left.pop()) for _ in range(size)] for size in sizes]
    found = sums([np.array(jobs, dtype=np.int64) for jobs in servers], tickets)
    assert found == [add_up([tickets[job] for job in jobs], {}) for jobs in servers]


@pytest.mark.parametrize("seed", range(12))
def test_a_decision_about_many_jobs_at_once_is_the_one_about_each(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, decide = Random(seed), find("gandiva-fair").decide
    hosts = [host(f"{model}{at}", model=model) for model in ("V100", "K80") for at in range(4)]
    jobs = [
        job(at, dice.choice("ABCD"), gang, nodes=nodes, movable=True)
        for at in range(1, 40)
        for gang, nodes in [dice.choice([(1, 1), (1, 1), (2, 1), (4, 1), (8, 2)])]
    ]
    asked = snapshot(hosts, jobs, {"A": 100, "B": 30, "C": 7, "D": 210}, now_s=1e6, migrations_left=20)
    memory, strides = {}, Strides()
    for _ in range(10):
        monkeypatch.setattr(gandiva_fair, "FEW_JOBS", 1000)
        one_by_one = decide(asked, memory)
        monkeypatch.setattr(gandiva_fair, "FEW_JOBS", 0)
        at_once = decide(asked, memory)
        assert isinstance(at_once.plan.tickets, JobTickets)
        assert at_once.plan == one_by_one.plan
        assert at_once.memory == one_by_one.memory
        check(asked, at_once.plan)
        memory = at_once.memory
        asked = after(asked, at_once, strides.run(asked, at_once.plan))


def tickets(*numbers: int) -> JobTickets:
    """Of jobs 1, 2, …"""
    every = np.arange(len(numbers))
    return JobTickets(every + 1, every, list(map(Fraction, numbers)))


@pytest.mark.parametrize(
    ("has", "why"),
    [
        (tickets(1), "job 2 has a home and no tickets"),
        (tickets(1, 2, 3), "job 3 has tickets and no home"),
        (tickets(1, 0), "job 2 has 0 tickets"),
    ],
)
def test_a_plan_with_wrong_tickets_is_refused(has: JobTickets, why: str) -> None:
    asked = snapshot([host("h")], [job(at, host="h") for at in (1, 2)])
    homes = {JobId(at): (HostName("h"),) for at in (1, 2)}
    with pytest.raises(BrokenError, match=why):
        check(asked, Plan(homes=homes, turns={}, tickets=has))
