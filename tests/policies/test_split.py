"""Split stride: gangs over several servers and the servers' own jobs share by tickets."""

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.mechanism.gang_turns import GangTurns
from hs_core.mechanism.split import (
    Books,
    Few,
    Gang,
    Server,
    Small,
    dump_turns,
    keep_turns,
    that_fit,
    with_idle,
)
from hs_core.names import HostName, JobId
from hs_core.wanted import Turn

X, Y, Z = (HostName(name) for name in "xyz")


def gang(
    job: int, *servers: HostName, per_node: int = 4, tickets: Fraction | int = 100, **facts: bool
) -> Gang:
    return Gang(
        job=JobId(job),
        arrival_s=float(job),
        servers=servers,
        per_node=per_node,
        tickets=Fraction(tickets),
        **facts,
    )


def server(
    name: HostName, gangs: tuple[int, ...] = (1, 1, 1, 1), tickets: Fraction | int = 100, stuck: int = 0
) -> Server:
    """`tickets`: of all its small jobs, by GPUs; the narrowest hold `stuck` GPUs."""
    each = Fraction(tickets) / sum(gangs) if gangs else Fraction(0)
    count = Counter(gangs)
    return Server(name, 4, tuple([
        Small(width, count[width], each * width * count[width], stuck if width == min(gangs) else 0)
        for width in sorted(count)
    ]))  # fmt: skip


class Round(NamedTuple):
    turns: GangTurns
    got: Books


def play(gangs: list[Gang], servers: list[Server], books: Books) -> Round:
    """One quantum, of a table of its own."""
    few = Few(gangs, servers, books)
    return Round(few.play(), few.books())


def rounds(gangs: list[Gang], servers: list[Server], quanta: int) -> list[Round]:
    books: Books = {}
    made = []
    for _ in range(quanta):
        made.append(play(gangs, servers, books))
        books = dict(made[-1].got)
    return made


def runs(made: list[Round]) -> Counter[JobId]:
    return Counter(job for one in made for job in {job for turn in one.turns.values() for job in turn.gangs})


def test_a_gang_over_two_servers_gets_exactly_every_third_quantum() -> None:
    made = rounds([gang(1, X, Y, tickets=100)], [server(X), server(Y)], 90)
    ran = [bool(one.turns) for one in made]
    assert ran == [False, True, False] * 30
    assert made[1].turns == {name: Turn(gangs=(JobId(1),), local=True) for name in (X, Y)}


def test_servers_without_jobs_of_their_own_leave_all_to_gangs() -> None:
    made = rounds([gang(1, X, Y), gang(2, Y, Z)], [server(X, ()), server(Y, ()), server(Z, ())], 40)
    assert runs(made) == {1: 20, 2: 20}
    assert all(one.turns for one in made)


def test_gangs_that_fit_beside_each_other_run_together() -> None:
    made = rounds([gang(1, X, Y, per_node=2), gang(2, X, Y, per_node=2)], [server(X, ()), server(Y, ())], 5)
    assert made[0].turns[X].gangs == (1, 2)
    assert runs(made) == {1: 5, 2: 5}


def test_small_jobs_are_charged_for_what_gangs_leave_to_them() -> None:
    # The gang takes 2 of 4 GPUs; small jobs get the other 2 then, and all 4 in their own quanta. Equal tickets per GPU of use:
    # 4 of 8 GPUs each, so the gang runs always, but for the first.
    made = rounds([gang(1, X, Y, per_node=2, tickets=4)], [server(X, tickets=2), server(Y, tickets=2)], 60)
    assert runs(made)[JobId(1)] >= 59


def test_a_users_gangs_that_come_together_do_not_take_all_servers_for_as_many_quanta() -> None:
    sweep = [gang(job, X, Y, tickets=Fraction(100, 20)) for job in range(1, 21)]
    made = rounds(sweep, [server(X, tickets=200), server(Y, tickets=200)], 200)
    assert runs(made) == dict.fromkeys(range(1, 21), 2)
    ran = [bool(one.turns) for one in made]
    assert all(sum(ran[at : at + 10]) == 2 for at in range(190))


def test_one_that_comes_later_begins_where_its_users_other_gangs_leave_most_room() -> None:
    servers = [server(X), server(Y)]
    books = dict(play([gang(job, X, Y, tickets=50) for job in (1, 2)], servers, {}).got)
    three = play([gang(job, X, Y, tickets=50) for job in (1, 2, 3)], servers, books)
    phases = sorted(Fraction(str(three.got[f"j:{job}"])) / 8 % 1 for job in (1, 2, 3))
    assert phases[1] - phases[0] in (Fraction(1, 4), Fraction(1, 2))


def test_a_gang_that_cannot_be_suspended_runs_in_every_quantum() -> None:
    made = rounds([gang(1, X, Y, forced=True), gang(2, X, Y)], [server(X), server(Y)], 10)
    assert runs(made) == {1: 10}


def test_small_jobs_that_cannot_be_suspended_keep_their_gpus() -> None:
    made = rounds([gang(1, X, Y, per_node=4)], [server(X, stuck=1), server(Y)], 5)
    assert runs(made) == {}
    made = rounds([gang(1, X, Y, per_node=3)], [server(X, (1, 1, 1, 1), stuck=1), server(Y)], 9)
    assert runs(made)[JobId(1)] > 0


def test_a_gang_whose_server_is_away_waits_and_keeps_its_place() -> None:
    made = rounds([gang(1, X, Y)], [server(X), server(Y)], 4)
    kept = play([gang(1, X, Y, able=False)], [server(X), server(Y)], made[-1].got)
    assert kept.turns == {}
    assert kept.got == {"j:1": made[-1].got["j:1"]}


def test_mid_quantum_turns_stay_but_for_jobs_that_are_gone() -> None:
    (one,) = rounds([gang(1, X, Y), gang(2, Z)], [server(X, ()), server(Y, ()), server(Z, ())], 1)
    assert keep_turns(dump_turns(one.turns), {JobId(1): (X, Y), JobId(2): (Z,)}) == one.turns
    assert keep_turns(dump_turns(one.turns), {JobId(2): (Z,)}) == {Z: one.turns[Z]}
    assert keep_turns(dump_turns(one.turns), {JobId(1): (X, Z), JobId(2): (Z,)}) == {Z: one.turns[Z]}


def test_books_do_not_drift() -> None:
    gangs, servers = (
        [gang(1, X, Y, tickets=Fraction(8, 3))],
        [server(X, tickets=Fraction(8, 3)), server(Y, tickets=Fraction(8, 3))],
    )
    made = rounds(gangs, servers, 3_000)
    assert runs(made) == {1: 1_000}
    assert set(made[-1].got.values()) == {"0/1"}


def test_books_stay_short_however_odd_tickets_are() -> None:
    books: dict[str, str] = {}
    for quantum in range(200):
        odd = Fraction(10**9 + quantum * 7, 10**9 + 3 + quantum * 11)
        books = dict(play([gang(1, X, Y, tickets=odd)], [server(X), server(Y, tickets=odd * 3)], books).got)
    assert max(len(text) for text in books.values()) < 80


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sets(st.sampled_from([X, Y, Z]), min_size=2), st.sampled_from([1, 2, 4]), st.integers(1, 9)), min_size=1, max_size=4),
       st.integers(1, 9))  # fmt: skip
def test_no_gpu_is_promised_twice_and_nobody_starves(
    drawn: list[tuple[set[HostName], int, int]], local: int
) -> None:
    gangs = [
        gang(at, *sorted(servers), per_node=per_node, tickets=tickets)
        for at, (servers, per_node, tickets) in enumerate(drawn)
    ]
    made = rounds(gangs, [server(name, tickets=local) for name in (X, Y, Z)], 120)
    facts = {one.job: one for one in gangs}
    for one in made:
        for name, turn in one.turns.items():
            assert sum(facts[job].per_node for job in turn.gangs) <= 4
            assert all(job in one.turns[other].gangs for job in turn.gangs for other in facts[job].servers)
            assert name in (X, Y, Z)
    ran = runs(made)
    assert all(ran[one.job] > 0 for one in gangs)


@pytest.mark.parametrize("tickets", [1, 2, 5])
def test_gpu_time_follows_tickets(tickets: int) -> None:
    made = rounds([gang(1, X, Y, tickets=tickets)], [server(X, tickets=1), server(Y, tickets=1)], 700)
    # 8 GPUs by tickets : 1 : 1, of which each server's jobs can have 4 only where the gang does not run.
    assert runs(made)[JobId(1)] / 700 == pytest.approx(tickets / (tickets + 2), abs=0.01)


def test_a_gang_leaves_its_turn_where_a_server_lost_its_gpus():
    turns = {X: Turn(gangs=(JobId(1), JobId(2)), local=True), Y: Turn(gangs=(JobId(1), JobId(2)), local=True)}
    takes = {JobId(1): 1, JobId(2): 1}
    assert that_fit(turns, takes, {X: 2, Y: 2}) == turns
    one = Turn(gangs=(JobId(1),), local=True)
    assert that_fit(turns, takes, {X: 1, Y: 2}) == {X: one, Y: one}
    assert that_fit(turns, takes, {Y: 2}) == {}


def test_gpus_that_nobody_else_can_use_any_more_go_to_gangs_that_wait_who_came_first_first():
    two, three, four = (gang(2, X, Y, per_node=2), gang(3, Y, Z, per_node=2), gang(4, X, Z, per_node=1))
    idle = [server(name, ()) for name in (X, Y, Z)]
    both = Turn(gangs=(JobId(2), JobId(3)), local=True)
    first = {
        X: Turn(gangs=(JobId(2), JobId(4)), local=True),
        Y: both,
        Z: Turn(gangs=(JobId(3), JobId(4)), local=True),
    }
    assert with_idle({}, [four, three, two], idle) == first
    assert with_idle(first, [four, three, two], idle) == first
    one = gang(1, X, Y)
    assert with_idle(first, [one, two, three, four], idle) == first
    assert with_idle({}, [one, two, three], idle) == {
        name: Turn(gangs=(JobId(1),), local=True) for name in (X, Y)
    }
    assert with_idle({}, [two._replace(able=False)], idle) == {}
    assert with_idle({}, [two], [server(X, (1, 1, 1)), server(Y, ())]) == {}


def test_a_small_job_that_has_no_room_beside_gangs_has_turns_though_narrow_ones_have_theirs_beside_them() -> (
    None
):
    gangs = [gang(1, X, Y, per_node=2, tickets=Fraction(8, 3)), gang(2, X, Y, per_node=1, tickets=2)]
    small = Small(1, 1, Fraction(1)), Small(4, 1, Fraction(2, 3))
    made = rounds(gangs, [Server(X, 4, small), server(Y, (1, 1), 2)], 120)
    alone = sum(X not in one.turns for one in made)
    # 1/6 of the time is due to it; all together are due a seventh more than there is.
    assert 120 / 6 / 1.25 <= alone <= 120 / 6


def test_what_gangs_leave_is_counted_only_to_small_jobs_that_it_is_wide_enough_for() -> None:
    gangs = [gang(1, X, Y, per_node=3, tickets=100)]
    small = Small(1, 1, Fraction(1)), Small(2, 1, Fraction(1))
    before = {"j:1": "-99/1", "h:x/1": "0/1", "h:x/2": "0/1"}
    after = play(gangs, [Server(X, 4, small), server(Y, ())], before)
    got = {key: Fraction(str(value)) - Fraction(before[key]) for key, value in after.got.items()}
    assert runs([after]) == {1: 1}
    handed = 6 + 1
    assert got["h:x/1"] == 1 - Fraction(handed, 102)
    assert got["h:x/2"] == 0 - Fraction(handed, 102)
