"""Which of servers that are loaded alike a gang takes."""

from hypothesis import given
from hypothesis import strategies as st

from hs_core.mechanism.nested import choose


def homes(*of: tuple[int, ...]) -> dict[frozenset[int], int]:
    return {frozenset(each): 4 * len(each) for each in of}


def crossed(chosen: list[int], gangs: dict[frozenset[int], int]) -> int:
    mine = frozenset(chosen)
    return sum(gpus for gang, gpus in gangs.items() if mine & gang and not mine <= gang and not gang <= mine)


def test_a_gang_takes_the_home_of_another_one_or_servers_apart_from_it_and_not_half_of_it() -> None:
    assert choose([0, 2, 1, 3], 2, homes((0, 1))) == [0, 1]
    assert choose([4, 0, 2, 1, 3], 2, homes((0, 1), (2, 3))) == [0, 1], "of two homes the better one"
    assert choose([4, 2, 3, 1], 2, homes((0, 1), (2, 3), (4, 5))) == [2, 3]


def test_a_gang_takes_part_of_the_home_of_a_larger_one() -> None:
    assert choose([4, 0, 1, 5, 2, 3], 2, homes((0, 1, 2, 3), (4, 6))) == [0, 1]


def test_a_larger_gang_takes_whole_homes_of_smaller_ones() -> None:
    assert choose([0, 2, 4, 5, 1, 3, 6, 7], 4, homes((0, 1), (2, 3), (4, 5))) == [0, 2, 1, 3]
    assert choose([0, 2, 4, 5, 1], 4, homes((0, 1), (2, 3), (4, 5))) == [0, 4, 5, 1]
    assert choose([0, 2, 6, 1, 3], 3, homes((0, 1), (2, 3))) == [0, 6, 1], "and a server that is nobody's"


def test_where_nothing_crosses_the_best_servers_are_taken() -> None:
    assert choose([3, 1, 2, 0], 2, {}) == [3, 1]
    assert choose([3, 1, 2, 0], 2, homes((0, 2))) == [3, 1]


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[int], int, dict[frozenset[int], int]]:
    order = draw(st.permutations(range(draw(st.integers(3, 12)))))
    nodes = draw(st.integers(2, len(order) - 1))
    servers = st.integers(0, 13)  # some of them are not as good as these
    gangs = draw(st.lists(st.frozensets(servers, min_size=2, max_size=6), max_size=6))
    return order, nodes, {gang: draw(st.integers(2, 16)) for gang in gangs}


@given(questions())
def test_so_many_servers_are_chosen_of_those_and_they_cross_no_more_than_the_best_ones(
    question: tuple[list[int], int, dict[frozenset[int], int]],
) -> None:
    order, nodes, gangs = question
    chosen = choose(order, nodes, gangs)
    assert len(set(chosen)) == nodes
    assert [at for at in order if at in chosen] == chosen
    assert crossed(chosen, gangs) <= crossed(order[:nodes], gangs)
