"""What the requests that are being answered take in memory: a bound for all of them, and for each who asks, so that nobody's make the controller run out of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hs_core.errors import Kind, RefusedError

PART = 4  # of the room one of those who ask has at most this part


class Bodies:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._of = Counter[str]()

    @contextmanager
    def held(self, whose: str, size: int) -> Iterator[None]:
        """Raises RefusedError where there is no room for one more; for one alone there always is."""
        if self._of[whose] and self._of[whose] + size > self._most_bytes // PART:
            raise RefusedError(
                f"{whose} has requests of {self._of[whose]} bytes under way, and this one has {size}: at most"
                f" {self._most_bytes // PART} were expected; wait for some to be answered",
                Kind.UNAVAILABLE,
            )
        if self._bytes and self._bytes + size > self._most_bytes:
            raise RefusedError(
                "the controller has too many large requests under way; try again in a second",
                Kind.UNAVAILABLE,
            )
        self._bytes += size
        self._of[whose] += size
        try:
            yield
        finally:
            self._bytes -= size
            self._of[whose] -= size
            if not self._of[whose]:
                del self._of[whose]
