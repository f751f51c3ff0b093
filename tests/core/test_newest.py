"""One answer is remembered."""

from hs_core.newest import Newest


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
