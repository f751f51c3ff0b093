"""What is said of jobs, or follows for them, made when somebody asks: of most nobody does."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

from hs_core.names import JobId

V = TypeVar("V")


class Later(Mapping[JobId, V]):
    """What `make` returns. It looks at a decision that is made, and so finds the same whenever it is asked."""

    def __init__(self, make: Callable[[], Mapping[JobId, V]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[JobId, V]:
        return self._make()

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, job_id: JobId) -> V:
        return self._made[job_id]
