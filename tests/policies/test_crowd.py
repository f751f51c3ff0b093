"""Split stride over arrays says what the exact one says."""

import json
from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.mechanism.crowd import FEW, Crowd, table
from hs_core.mechanism.split import Books, Few, Gang, Key, Server, Small
from hs_core.names import HostName, JobId, UserName

Drawn = tuple[list[Gang], list[Server]]
RANGE = 10**6  # between the most tickets and the least, as far as floats tell lags apart


def some_tickets(dice: Random) -> Fraction:
    return Fraction(dice.randint(1, RANGE), 10**6)


def draw(dice: Random, hosts: int, jobs: int) -> Drawn:
    names = [HostName(f"h{n:04}") for n in range(hosts)]
    gangs = [
        Gang(
            job=JobId(n),
            arrival_s=float(dice.randint(0, 5)),
            servers=tuple(dice.sample(names, dice.choice([2, 2, 2, min(3, hosts)]))),
            per_node=dice.choice([1, 2, 4, 4]),
            tickets=some_tickets(dice),
            user=UserName(dice.choice("ab")),
            forced=False,
            able=dice.random() > 0.1,
        )
        for n in range(1, jobs + 1)
    ]
    servers = [
        Server(
            name,
            4,
            tuple(
                Small(width, dice.randint(1, 3), some_tickets(dice), dice.choice([0, 0, 0, width]))
                for width in sorted(dice.sample([1, 2, 4], dice.choice([0, 1, 1, 2, 3])))
            ),
        )
        for name in names
    ]
    return gangs, servers


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(2, 9), st.integers(1, 12))
def test_the_same_gangs_run_in_the_same_quanta(dice: Random, hosts: int, jobs: int) -> None:
    gangs, servers = draw(dice, hosts, jobs)
    few, crowd = Few(gangs, servers, {}), Crowd(gangs, servers, {})
    for _ in range(25):
        assert crowd.play() == few.play()
        assert crowd.books().keys() == few.books().keys()
        for name, got in few.books().items():
            assert abs(float(Fraction(got)) - float(crowd.books()[name])) < 1e-6


def test_who_is_equal_does_not_go_by_how_few_tickets_all_have() -> None:
    x, y, z = map(HostName, "xyz")
    gangs = [
        Gang(job=JobId(1), arrival_s=0.0, servers=(x, y), per_node=1, tickets=Fraction(1, 10**6)),
        Gang(job=JobId(2), arrival_s=0.0, servers=(x, y, z), per_node=4, tickets=Fraction(2, 10**6)),
    ]
    servers = [Server(name=name, gpus=4) for name in (x, y, z)]
    few, crowd = Few(gangs, servers, {}), Crowd(gangs, servers, {})
    ran = [(few.play().gangs[0][0], crowd.play().gangs[0][0]) for _ in range(40)]
    assert [job for job, _ in ran] == [job for _, job in ran] == [1, 2, 1, 1] * 10


def test_virtual_time_that_is_put_back_is_put_back_exactly() -> None:
    """Thirds of a GPU, where tickets are whole millionths."""
    x, y = map(HostName, "xy")
    parts = {1: Fraction(1, 10**6), 2: Fraction(3, 10**6)}
    gangs = [
        Gang(job=JobId(job), arrival_s=0.0, servers=(x, y), per_node=4, tickets=tickets)
        for job, tickets in parts.items()
    ]
    books = {"j:1": "1/1", "j:2": "2/1"}  # both are ahead: those behind have left
    few = Few(gangs, [Server(name=name, gpus=4) for name in (x, y)], books)
    few.play()  # the second, which had least
    after = {int(key[2:]): Fraction(str(got)) for key, got in few.books().items()}
    assert after == {1: Fraction(1, 3) - 2, 2: 8 - 6}


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(2, 9), st.integers(1, 12))
def test_a_table_that_is_kept_goes_on_as_one_made_of_its_books(dice: Random, hosts: int, jobs: int) -> None:
    gangs, servers = draw(dice, hosts, jobs)
    one = Few(gangs, servers, {})
    for _ in range(25):
        other = Few(gangs, servers, json.loads(json.dumps(one.books())))
        assert other.play() == one.play()
        assert other.books() == one.books()


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(2, 9), st.integers(1, 12))
def test_a_table_that_is_told_other_tickets_goes_on_as_one_made_with_them(
    dice: Random, hosts: int, jobs: int
) -> None:
    gangs, servers = draw(dice, hosts, jobs)
    few, crowd = Few(gangs, servers, {}), Crowd(gangs, servers, {})
    for _ in range(10):
        few.play()
        crowd.play()
        who = {gang.job for gang in gangs if dice.random() < 0.3}
        own = [(server.name, small.width) for server in servers for small in server.small]
        where = [key for key in own if dice.random() < 0.3]
        told: dict[Key, Fraction] = {
            key: some_tickets(dice) for key in (*sorted(who), *where, (HostName("h9999"), 1))
        }
        gangs = [gang._replace(tickets=told.get(gang.job, gang.tickets)) for gang in gangs]
        servers = [
            server._replace(
                small=tuple(
                    small._replace(tickets=told.get((server.name, small.width), small.tickets))
                    for small in server.small
                )
            )
            for server in servers
        ]
        made, made_crowd = Few(gangs, servers, few.books()), Crowd(gangs, servers, crowd.books())
        few.weigh(told)
        crowd.weigh(told)
        assert few.play() == made.play()
        assert few.books() == made.books()
        assert crowd.play() == made_crowd.play()
        assert crowd.books() == made_crowd.books()


def test_books_survive_json_and_a_change_of_table() -> None:
    gangs, servers = draw(Random(1), 9, 9)
    one, other = Crowd(gangs, servers, {}), Crowd(gangs, servers, {})
    for _ in range(10):
        assert one.play() == other.play()
        other = Crowd(gangs, servers, json.loads(json.dumps(other.books())))
    few = Few(gangs, servers, one.books())
    for _ in range(10):
        assert few.play() == one.play()


def test_thousands_take_turns_by_their_tickets() -> None:
    dice = Random(2)
    names = [HostName(f"h{n:04}") for n in range(400)]
    gangs = [
        Gang(
            job=JobId(n), arrival_s=0.0, servers=tuple(dice.sample(names, 2)), per_node=4, tickets=Fraction(1)
        )
        for n in range(1, 401)
    ]
    servers = [Server(name=name, gpus=4, small=(Small(1, 8, Fraction(2)),)) for name in names]
    crowd = table(gangs, servers, {})
    assert isinstance(crowd, Crowd)
    assert len(gangs) + len(servers) > FEW
    ran = dict.fromkeys((gang.job for gang in gangs), 0)
    for _ in range(60):
        for job in {job for turn in crowd.play().values() for job in turn.gangs}:
            ran[job] += 1
    assert min(ran.values()) > 0, "nobody starves"


@pytest.mark.parametrize("kind", [Few, Crowd])
def test_a_gang_that_comes_does_not_wait_for_what_small_jobs_got_that_no_gang_could_use(
    kind: type[Few | Crowd],
) -> None:
    x, y = HostName("x"), HostName("y")
    gangs = [
        Gang(job=JobId(job), arrival_s=float(job), servers=(x, y), per_node=3, tickets=Fraction(1))
        for job in (1, 2, 3)
    ]
    servers = [Server(name=name, gpus=4, small=(Small(1, 1, Fraction(1, 10)),)) for name in (x, y)]
    before = kind(gangs[:2], servers, {})
    for _ in range(1_000):
        before.play()
    after = kind(gangs, servers, before.books())
    ran = Counter(job for _ in range(30) for job, _ in after.play().gangs)
    assert all(ran[JobId(job)] in (9, 10, 11) for job in (1, 2, 3))


def blocked(kind: type[Few | Crowd], quanta: int) -> tuple[list[Gang], Few | Crowd]:
    """Two gangs share two servers by tickets, 1 to 3, beside a job that nothing suspends: for that one a third gang is too wide."""
    x, y = HostName("x"), HostName("y")
    gangs = [
        Gang(job=JobId(job), arrival_s=float(job), servers=(x, y), per_node=wide, tickets=Fraction(tickets))
        for job, wide, tickets in ((1, 3, 1), (2, 3, 3), (3, 4, 4))
    ]
    table = kind(gangs, [Server(x, 4, (Small(1, 1, Fraction(0), stuck=1),)), Server(y, 4)], {})
    for _ in range(quanta):
        table.play()
    return gangs, table


@pytest.mark.parametrize("kind", [Few, Crowd])
def test_shares_beside_a_gang_that_cannot_run_are_by_tickets_however_long_that_lasts(
    kind: type[Few | Crowd],
) -> None:
    _, table = blocked(kind, 500)
    ran = Counter(job for _ in range(80) for job, _ in table.play().gangs)
    assert ran.keys() == {1, 2}
    assert abs(ran[JobId(1)] - 20) <= 1


@pytest.mark.parametrize("kind", [Few, Crowd])
def test_a_gang_that_could_not_run_for_long_does_not_have_its_servers_to_itself_after_that(
    kind: type[Few | Crowd],
) -> None:
    gangs, table = blocked(kind, 500)
    free = [Server(name=name, gpus=4) for name in gangs[0].servers]
    after = kind(gangs, free, table.books())
    ran = [{job for job, _ in after.play().gangs} for _ in range(70)]
    for at in range(5, 56):
        count = Counter(job for jobs in ran[at : at + 14] for job in jobs)
        assert abs(count[JobId(3)] - 6) <= 2, "4 of 8 tickets, and wider than the others"


@pytest.mark.parametrize("kind", [Few, Crowd])
def test_a_gang_has_its_turns_beside_many_of_next_to_no_tickets_whose_tickets_rise_and_fall(
    kind: type[Few | Crowd],
) -> None:
    """Each time that tickets fall some are thousands of quanta behind, and everybody else is as far ahead."""
    x, y = HostName("x"), HostName("y")
    heavy = Gang(job=JobId(1), arrival_s=1.0, servers=(x, y), per_node=4, tickets=Fraction(4))
    servers = [Server(name=name, gpus=4, small=(Small(1, 1, Fraction(4)),)) for name in (x, y)]
    books: Books = {}
    turns = 0
    for at in range(60):
        tickets = Fraction(1, 10_000 if at % 2 else 10)
        light = [
            heavy._replace(job=JobId(job), arrival_s=float(job), tickets=tickets) for job in range(2, 32)
        ]
        table = kind([heavy, *light], servers, books)
        turns += sum(heavy.job in dict(table.play().gangs) for _ in range(5))
        books = table.books()
    assert turns >= 30, "4 of 12 tickets beside jobs that take a GPU each: one turn in nine, in 300 quanta"
