"""Turns of a pool's servers, chosen together by users: who is chosen, and what everybody has over time."""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.mechanism.user_turns import BANK, SURE, Member, UserTurns
from hs_core.names import HostName, JobId, UserName

POOL = "V100"


def member(
    job: int,
    user: str,
    server: int,
    gpus: int = 1,
    *,
    tickets: float = 1.0,
    forced: bool = False,
    bound: str = "",
) -> Member:
    """`bound`: its GPUs, a digit each."""
    return Member(
        job=JobId(job),
        at=(UserName(user), POOL),
        server=HostName(f"s{server}"),
        gpus=gpus,
        tickets=tickets,
        arrival_s=float(job),
        forced=forced,
        bound=frozenset(map(int, bound)),
    )


def due(**users: float) -> dict[tuple[UserName, str], float]:
    return {(UserName(user), POOL): gpus for user, gpus in users.items()}


class Pool:
    """Servers of so many GPUs each, quantum after quantum; checks that nothing impossible is chosen."""

    def __init__(self, servers: int, gpus: int, *members: Member) -> None:
        self.of = {one.job: one for one in members}
        self.gpus = {HostName(f"s{at}"): gpus for at in range(servers)}
        self.table = UserTurns(members, self.gpus, {})

    def step(self, dues: Mapping[tuple[UserName, str], float]) -> set[int]:
        chosen = self.table.play(dues)
        for server, gpus in self.gpus.items():
            here = [self.of[job] for job, home in chosen if home == (server,)]
            assert sum(one.gpus for one in here) <= gpus
            taken = [gpu for one in here for gpu in one.bound]
            assert len(set(taken)) == len(taken)
        return {int(job) for job, _ in chosen}

    def go(self, quanta: int, **users: float) -> list[set[int]]:
        return [self.step(due(**users)) for _ in range(quanta)]

    def of_user(self, chosen: set[int], user: str) -> int:
        return sum(one.gpus for one in self.of.values() if one.user == user and one.job in chosen)


def test_a_user_with_a_job_on_each_server_has_its_part_in_every_quantum() -> None:
    """Each server alone would give both their first turns on all servers at once."""
    pool = Pool(4, 1, *[member(2 * at + of, "AB"[of], at) for at in range(4) for of in (0, 1)])
    had = [pool.of_user(chosen, "A") for chosen in pool.go(50, A=2.0, B=2.0)]
    assert set(had) == {2}


def test_no_user_is_off_what_is_due_by_more_than_a_gang_in_any_window() -> None:
    pool = Pool(
        3, 4, *[member(10 * at + n, "A", at) for at in range(3) for n in range(4)],
        *[member(100 + 10 * at + n, "B", at, 4) for at in range(3) for n in range(2)],
        *[member(200 + 10 * at + n, "C", at, 2) for at in range(3) for n in range(2)],
    )  # fmt: skip
    dues = {"A": 3.0, "B": 6.0, "C": 3.0}
    chosen = pool.go(120, **dues)
    for user, gpus in dues.items():
        had = [pool.of_user(one, user) for one in chosen]
        for first in range(100):
            assert abs(sum(had[first : first + 20]) - 20 * gpus) <= 4


def test_of_a_users_jobs_each_has_its_turn_on_its_server() -> None:
    pool = Pool(
        2, 2, *[member(n, "A", n % 2) for n in range(8)], *[member(10 + n, "B", n % 2) for n in range(8)]
    )
    turns = Counter(job for chosen in pool.go(80, A=2.0, B=2.0) for job in chosen)
    assert set(turns.values()) == {20}


def test_two_jobs_whose_processes_are_bound_to_one_gpu_have_no_turn_together() -> None:
    pool = Pool(
        1, 2, member(1, "A", 0, bound="0"), member(2, "B", 0, bound="0"), member(3, "A", 0, bound="1")
    )
    for chosen in pool.go(40, A=1.0, B=1.0):
        assert chosen in ({1, 3}, {2, 3})


def test_who_cannot_be_suspended_has_every_turn_and_its_user_is_charged() -> None:
    pool = Pool(2, 1, member(1, "A", 0, forced=True), member(2, "B", 0), member(3, "A", 1), member(4, "B", 1))
    chosen = pool.go(40, A=1.0, B=1.0)
    assert all(1 in one for one in chosen)
    third, fourth = (sum(job in one for one in chosen) for job in (3, 4))
    assert third == pytest.approx(
        40 * SURE / 2, abs=2
    )  # no more than what is sure: A has had all that it is due
    assert fourth == 40 - third


def test_a_job_beside_one_whose_user_has_its_due_nowhere_else_has_half_of_its_servers_part() -> None:
    """A has all that is due to it on the other server."""
    pool = Pool(2, 1, member(1, "A", 0), member(2, "A", 1), member(3, "B", 1))
    turns = Counter(job for chosen in pool.go(200, A=1.0, B=1.0) for job in chosen)
    assert turns[2] == pytest.approx(200 * SURE / 2, abs=2)
    assert turns[3] == 200 - turns[2]


def test_who_could_have_no_more_has_no_claim_on_it_later() -> None:
    """B's only job has all of a GPU, and B is due two; once it has another job it is two turns ahead at most."""
    jobs = [member(n, "A", n % 2) for n in range(4)]
    pool = Pool(2, 2, *jobs, member(10, "B", 0))
    pool.go(100, A=2.0, B=2.0)
    later = UserTurns([*jobs, member(10, "B", 0), member(11, "B", 1)], pool.gpus, pool.table.books())
    had = 0
    for _ in range(20):
        chosen = {job for job, _ in later.play(due(A=2.0, B=2.0))}
        had += (10 in chosen) + (11 in chosen)
    assert had <= 20 * 2.0 + BANK


def test_turns_go_on_from_books_that_were_kept_as_they_would_have() -> None:
    jobs = [member(n, "ABC"[n % 3], n % 2, 1 + n % 2) for n in range(9)]
    dues = due(A=1.5, B=1.5, C=1.0)
    one = UserTurns(jobs, {HostName("s0"): 2, HostName("s1"): 2}, {})
    for _ in range(37):
        one.play(dues)
    other = UserTurns(jobs, {HostName("s0"): 2, HostName("s1"): 2}, one.books())
    assert [one.play(dues) for _ in range(20)] == [other.play(dues) for _ in range(20)]


def test_heavier_jobs_of_a_user_have_more_of_its_turns() -> None:
    pool = Pool(2, 1, member(1, "A", 0, tickets=3.0), member(2, "A", 0), member(3, "B", 0), member(4, "B", 1))
    turns = Counter(job for chosen in pool.go(200, A=1.0, B=1.0) for job in chosen)
    assert turns[1] > 1.8 * turns[2]
    pool.table.weigh({JobId(1): Fraction(1), JobId(2): Fraction(3)})
    turns = Counter(job for chosen in pool.go(200, A=1.0, B=1.0) for job in chosen)
    assert turns[2] > 1.8 * turns[1]


@given(
    st.lists(
        st.tuples(st.sampled_from("ABC"), st.integers(0, 2), st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=14,
    ),
    st.tuples(st.floats(0, 8), st.floats(0, 8), st.floats(0, 8)),
)
def test_no_gpu_idles_beside_a_job_that_would_fit_and_nobody_waits_for_ever(
    drawn: list[tuple[str, int, int, bool]], dues: tuple[float, float, float]
) -> None:
    members = [
        member(at, user, server, gpus, bound="0123"[:gpus] if bound else "")
        for at, (user, server, gpus, bound) in enumerate(drawn)
    ]
    pool = Pool(3, 4, *members)
    last = dict.fromkeys(range(len(members)), 0)
    waited: Counter[int] = Counter()
    for quantum, chosen in enumerate(pool.go(150, A=dues[0], B=dues[1], C=dues[2]), 1):
        for one in members:
            here = [other for other in members if other.server == one.server and other.job in chosen]
            if one.job in chosen:
                last[int(one.job)] = quantum
                continue
            waited[int(one.job)] = max(waited[int(one.job)], quantum - last[int(one.job)])
            fits = sum(other.gpus for other in here) + one.gpus <= 4
            assert not (fits and all(one.bound.isdisjoint(other.bound) for other in here))
    for one in members:
        there = sum(other.gpus for other in members if other.server == one.server)
        assert waited[int(one.job)] <= 4 * there / SURE


def test_turns_change_no_more_than_they_have_to() -> None:
    """Where all fit everybody runs on."""
    pool = Pool(2, 2, *[member(n, "AB"[n % 2], n // 2) for n in range(4)])
    assert all(before == after for before, after in pairwise(pool.go(20, A=2.0, B=2.0)))
