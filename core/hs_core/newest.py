"""Answers remembered: from one decision, or look, to the next much of what is asked is the same."""

from collections.abc import Callable
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")
V = TypeVar("V")


class Newest(Generic[Q, A]):
    """Answers as `answer` does, and again with the very same while questions are equal to the one before.

    Nothing comes of it but time. Neither questions nor answers may be changed afterwards. Decisions of a process are taken one after another.
    """

    def __init__(self, answer: Callable[[Q], A]) -> None:
        self._answer = answer
        self._kept: tuple[Q, A] | None = None

    def __call__(self, question: Q) -> A:
        if self._kept is not None and self._kept[0] == question:
            answer = self._kept[1]
        else:
            answer = self._answer(question)
        # The newest of equals: it is likely to be asked again, and what is the very same is soon compared.
        self._kept = question, answer
        return answer


class Kept(Generic[V, A]):
    """Answers as `answer` does to values that are never changed, and again with the very same where it is asked about the very same ones (`is`).

    Nothing comes of it but time: for values whose hash would cost what the answer does. All is forgotten with every `most`-th answer.
    """

    def __init__(self, answer: Callable[[tuple[V, ...], int, int], A], most: int = 4096) -> None:
        self._answer = answer
        self._most = most
        # With the values: while they live nobody else has their ids.
        self._kept: dict[tuple[int, ...], tuple[tuple[V, ...], A]] = {}

    def __call__(self, values: tuple[V, ...], first: int, second: int = 0) -> A:
        key = (first, second, *map(id, values))
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= self._most:
                self._kept.clear()
            kept = self._kept[key] = values, self._answer(values, first, second)
        return kept[1]
