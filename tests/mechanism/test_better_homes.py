"""The search for homes in which users lack least: what it finds, and what jobs come to there."""

from itertools import product

import pytest

from hs_core.mechanism import better_homes
from hs_core.mechanism.better_homes import Table, better, weighed


def table(widths: str, homes: tuple[int, ...], gpus: tuple[int, ...], stays: str = "") -> Table:
    """`A3 B2`: users' jobs, all of one class on GPUs of one model. Everybody is due all that it asks for."""
    jobs = [(word[0], int(word[1:])) for word in widths.split()]
    users = sorted({user for user, _ in jobs})
    due = tuple(float(sum(width for of, width in jobs if of == user)) for user in users)
    return Table(
        gpus=gpus,
        pool=(0,) * len(gpus),
        owner=tuple(users.index(user) for user, _ in jobs),
        width=tuple(width for _, width in jobs),
        value=tuple((float(width),) for _, width in jobs),
        stays=tuple(word in stays.split() for word in widths.split()),
        due=due,
        weight=(1.0,) * len(users),
        homes=homes,
    )


def anywhere(asked: Table) -> tuple[frozenset[int], ...]:
    return (frozenset(range(len(asked.gpus))),) * len(asked.homes)


def lack_in_all(asked: Table) -> float:
    return sum(max(0.0, lack) for lack in weighed(asked).lacks)


@pytest.mark.parametrize(
    ("widths", "homes"),
    [
        ("A4 B3 C2 D1 C2 D3", (0, 0, 1, 2, 2, 3)),
        ("B3 B2 A4 C1 B2", (2, 0, 0, 2, 2)),  # no single step from there is any better
    ],
)
def test_where_all_fit_beside_one_another_such_homes_are_found(widths: str, homes: tuple[int, ...]) -> None:
    asked = table(widths, homes, (4,) * (max(homes) + 1))
    assert lack_in_all(asked) > 0.2
    found = better(asked, anywhere(asked))
    for server in range(len(asked.gpus)):
        assert sum(width for width, at in zip(asked.width, found.homes, strict=True) if at == server) <= 4
    assert max(found.after) <= 0.0


def test_who_does_not_move_is_where_it_was() -> None:
    asked = table("A4 B3 C2 D1 C2 D3", (0, 0, 1, 2, 2, 3), (4, 4, 4, 4))
    may_use = (frozenset[int](), *anywhere(asked)[1:])
    found = better(asked, may_use)
    assert found.homes[0] == 0
    assert max(found.after) <= 0.0


def test_homes_are_as_good_as_any_on_two_servers() -> None:
    for homes in product(range(2), repeat=5):
        asked = table("A3 A2 B2 B1 C4", homes, (4, 4))
        least = min(
            sum(max(0.0, lack) ** 2 for lack in weighed(asked._replace(homes=other)).lacks)
            for other in product(range(2), repeat=5)
        )
        found = sum(max(0.0, lack) ** 2 for lack in better(asked, anywhere(asked)).after)
        assert found <= least + 0.05, homes


def test_what_nothing_can_suspend_has_its_gpus_all_the_time_and_the_others_what_is_left() -> None:
    turns, alone = table("A3 B2", (0, 0), (4,)), table("A3 B2", (0, 0), (4,), stays="A3")
    assert weighed(turns).comes_to[0] < 3.0
    assert [*weighed(alone).comes_to] == [3.0, 0.0]


def test_more_is_not_lost_than_those_who_lack_something_gain() -> None:
    """Of gangs that take all of a server, and narrow jobs on another, none go to the others' servers: each of their turns would leave GPUs idle."""
    asked = table("H8 H8 F8 H8 A1 C2 C2 A1 A2 D4 D1 C1", (0, 0, 0, 0, *(8 * (1,))), (8, 8))
    asked = asked._replace(due=(3.2,) * 5, weight=(0.8, 0.64, 0.64, 0.4, 3.2 / 24))
    found = better(asked, anywhere(asked))
    before, after = (fsum_of(asked, homes) for homes in (asked.homes, found.homes))
    short = [sum(max(0.0, lack) * 3.2 for lack in lacks) for lacks in (found.before, found.after)]
    assert before - after <= short[0] - short[1] + 1e-6


def fsum_of(asked: Table, homes: tuple[int, ...]) -> float:
    return sum(weighed(asked._replace(homes=homes)).comes_to)


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many changes only some are looked at, the same ones each time."""
    asked = table(
        " ".join(f"{'ABC'[at % 3]}{1 + at % 4}" for at in range(48)),
        tuple(at % 12 for at in range(48)),
        (4,) * 12,
    )
    asked = asked._replace(due=(16.0,) * 3, weight=(0.4,) * 3)
    monkeypatch.setattr(better_homes, "SIDESTEPS", 0)
    looked: list[int] = []
    weigh = better_homes._Search.weighed

    def heard(
        search: better_homes._Search, homes: better_homes.Homes, factors: better_homes.Factors
    ) -> better_homes.Weighed:
        looked.append(1)
        return weigh(search, homes, factors)

    monkeypatch.setattr(better_homes._Search, "weighed", heard)
    better.cache_clear()
    first = better(asked, anywhere(asked))
    assert len(looked) <= 1 + better_homes.STEPS * better_homes.CLOSELY
    better.cache_clear()
    assert better(asked, anywhere(asked)) == first
