"""Answers remembered: from one decision, or look, to the next much of what is asked is the same.

What could be torn is kept by each thread for itself: of one thread decisions are made one after another, and one that was given up may be at
its own still while the next is made on another.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")
V = TypeVar("V")


class Newest(Generic[Q, A]):
    """Answers as `answer` does, and again with the very same while questions are equal to the one before.

    Nothing comes of it but time. Neither questions nor answers may be changed afterwards.
    """

    def __init__(self, answer: Callable[[Q], A]) -> None:
        self._answer = answer
        self._kept: ContextVar[tuple[Q, A] | None] = ContextVar("newest", default=None)

    def __call__(self, question: Q) -> A:
        kept = self._kept.get()
        answer = kept[1] if kept is not None and kept[0] == question else self._answer(question)
        # The newest of equals: it is likely to be asked again, and what is the very same is soon compared.
        self._kept.set((question, answer))
        return answer


class Own(Generic[V]):
    """What `make` makes, once for each thread: for what is changed from decision to decision."""

    def __init__(self, make: Callable[[], V]) -> None:
        self._make = make
        self._made: ContextVar[V] = ContextVar("own")

    def __call__(self) -> V:
        try:
            return self._made.get()
        except LookupError:
            made = self._make()
            self._made.set(made)
            return made


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
