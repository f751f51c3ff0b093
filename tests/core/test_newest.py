"""Answers are remembered, and nothing comes of it but time."""

from concurrent.futures import ThreadPoolExecutor

from hs_core.newest import Kept, Newest, Own


def test_an_equal_question_gets_the_very_same_answer_and_another_one_takes_its_place() -> None:
    asked: list[tuple[int, ...]] = []

    def answer(question: tuple[int, ...]) -> list[int]:
        asked.append(question)
        return list(question)

    newest = Newest(answer)
    first = newest((1, 2))
    assert newest((1, 2)) is first
    assert newest((3,)) == [3]
    assert newest((1, 2)) == [1, 2], "only the newest is kept"
    assert asked == [(1, 2), (3,), (1, 2)]


def test_each_thread_keeps_its_own() -> None:
    newest, own = Newest[int, list[int]](lambda asked: [asked]), Own[list[int]](list)
    with ThreadPoolExecutor(1) as other:
        here, there = newest(1), other.submit(newest, 1).result()
        assert here is not there
        assert (newest(1) is here, other.submit(newest, 1).result() is there) == (True, True)
        own().append(1)
        assert (own(), other.submit(own).result()) == ([1], [])


def test_the_very_same_values_are_answered_once_and_equal_ones_anew():
    asked: list[tuple[list[int], ...]] = []

    def add(values: tuple[list[int], ...], first: int, second: int) -> int:
        asked.append(values)
        return sum(map(sum, values)) + 10 * first + 100 * second

    kept = Kept(add)
    one, other = [1], [2]
    assert [kept((one, other), 1), kept((one, other), 1), kept((one, [2]), 1)] == [13, 13, 13]
    assert len(asked) == 2
    assert [kept((one, other), 2), kept((one, other), 1, 1), kept((other, one), 1)] == [23, 113, 13]
    assert len(asked) == 5


def test_values_that_nobody_has_any_more_are_not_taken_for_new_ones_in_their_place():
    kept = Kept(lambda values, *_: values[0][0], most=8)
    # Each list may be given the place in memory of one that is gone, were it not kept.
    assert [kept(([n],), 0) for n in range(1000)] == list(range(1000))
