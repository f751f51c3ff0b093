"""Who could not do lately what it was asked: a full disk, say. For a while nobody asks again, and each time for longer.

In memory only: a controller that takes office asks each once more.
"""

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

MOST_QUANTA = 10

Who = TypeVar("Who", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Stay:
    times: int  # in a row
    until_s: float
    why: str
    over: bool = False


class Stays(Generic[Who]):
    """Mutable."""

    def __init__(self) -> None:
        self._stays: dict[Who, _Stay] = {}

    def __contains__(self, who: object) -> bool:
        stay = self._stays.get(who)  # type: ignore[arg-type]  # of anything
        return stay is not None and not stay.over

    def __iter__(self) -> Iterator[Who]:
        return (who for who, stay in self._stays.items() if not stay.over)

    def stays(self, who: Who, now_s: float, quantum_s: float, why: str = "") -> None:
        times = self._stays[who].times + 1 if who in self._stays else 1
        until_s = now_s + quantum_s * min(2.0 ** min(times - 1, 10), MOST_QUANTA)
        self._stays[who] = _Stay(times, until_s, why)

    def why(self, who: Who) -> str:
        return self._stays[who].why

    def until_s(self, who: Who) -> float:
        return self._stays[who].until_s

    def tried(self, who: object) -> bool:
        """It was asked once, and has not done it since."""
        return who in self._stays

    def all_tried(self) -> list[Who]:
        return list(self._stays)

    def forget(self, who: Who) -> None:
        """It has done it, or is gone."""
        self._stays.pop(who, None)

    def over(self, now_s: float) -> list[Who]:
        """Those that may be asked again from now on; each is told once."""
        if not self._stays:
            return []
        due = [who for who, stay in self._stays.items() if not stay.over and now_s >= stay.until_s]
        for who in due:
            self._stays[who] = replace(self._stays[who], over=True)
        return due

    def deadlines(self) -> Collection[float]:
        return [stay.until_s for stay in self._stays.values() if not stay.over] if self._stays else ()
