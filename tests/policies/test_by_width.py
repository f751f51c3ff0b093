"""gandiva-fair: newcomers of several widths find homes with those that are as wide."""

from collections import defaultdict
from collections.abc import Iterable

from hs_core.names import HostName
from hs_core.policies import find
from hs_core.policy import JobFacts

from .worlds import GIB, host, job, snapshot  # noqa: TID252 — tests are no package on the path

KNOWN = {"steps": 1e5, "job_class": "c", "memory_bytes": GIB, "gpu_memory_bytes": GIB}


def homes(jobs: Iterable[JobFacts], servers: int = 4, **facts: object) -> dict[HostName, list[JobFacts]]:
    all_jobs = list(jobs)
    asked = snapshot([host(f"h{at}") for at in range(servers)], all_jobs, rates={("c", "V100"): 1.0}, **facts)
    found = find("gandiva-fair").decide(asked, {}).plan.homes
    there: dict[HostName, list[JobFacts]] = defaultdict(list)
    for one in all_jobs:
        (name,) = found[one.id]
        there[name].append(one)
    return there


def some(first: int, count: int, user: str, gang: int, **facts: object) -> list[JobFacts]:
    return [job(at, user, gang, **(KNOWN | facts)) for at in range(first, first + count)]


def test_gangs_that_come_with_narrow_jobs_have_servers_of_their_own():
    jobs = [*some(1, 8, "A", 4), *some(9, 16, "B", 1), *some(25, 16, "C", 1)]
    there = homes(jobs, servers=3)
    assert sorted(sorted({one.gang for one in here}) for here in there.values()) == [[1], [1], [4]]
    assert sorted(len(here) for here in there.values()) == [8, 16, 16]


def test_servers_carry_alike_where_widths_do_not_fill_whole_ones():
    there = homes([*some(1, 12, "A", 4), *some(13, 30, "B", 2), *some(43, 30, "C", 1)])
    weight = {"A": 16 / 3 / 48, "B": 16 / 3 / 60, "C": 16 / 3 / 30}
    loads = [sum(one.gang * weight[one.user] for one in here) for here in there.values()]
    assert len(loads) == 4
    assert max(loads) - min(loads) < 0.5, "about one gang's"
    mixed = [here for here in there.values() if len({one.gang for one in here}) > 1]
    assert len(mixed) <= 2


def test_who_comes_alone_takes_the_server_that_carries_least():
    lives = some(1, 6, "A", 1, host=HostName("h0")) + some(7, 8, "A", 1, host=HostName("h1"))
    assert 15 in {one.id for one in homes([*lives, *some(15, 1, "B", 4)], servers=2)[HostName("h0")]}
