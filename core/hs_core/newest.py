"""One answer remembered: from one decision to the next much of what is asked is the same."""

from collections.abc import Callable
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


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
