"""Jobs that could not write their checkpoint when they were to move: a full disk, say. They go on where they are, and for a while nobody plans to move them.

While one is asked it has no turn, so it is asked less and less often. In memory only: a controller that takes office asks each once more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hs_core.names import JobId

MOST_QUANTA = 10


@dataclass(frozen=True, slots=True)
class _Stay:
    times: int  # in a row
    until_s: float
    over: bool = False


class Grounded:
    """Mutable."""

    def __init__(self) -> None:
        self._stays: dict[JobId, _Stay] = {}
        self._fails: dict[JobId, int] = {}  # that had been when the move began which is under way

    def __contains__(self, job: object) -> bool:
        stay = self._stays.get(job)  # type: ignore[call-overload]  # of anything
        return stay is not None and not stay.over

    def begins(self, job: JobId, fails: int) -> None:
        self._fails[job] = fails

    def failed(self, job: JobId, fails: int) -> bool:
        """Since its move began."""
        return fails > self._fails.get(job, 0)

    def stays(self, job: JobId, now_s: float, quantum_s: float) -> None:
        times = self._stays[job].times + 1 if job in self._stays else 1
        self._stays[job] = _Stay(times, now_s + quantum_s * min(2.0 ** min(times - 1, 10), MOST_QUANTA))

    def forget(self, job: JobId) -> None:
        """It has written one, or has ended."""
        self._stays.pop(job, None)
        self._fails.pop(job, None)

    def over(self, now_s: float) -> list[JobId]:
        """Those that may be asked again from now on; each is told once."""
        due = [job for job, stay in self._stays.items() if not stay.over and now_s >= stay.until_s]
        for job in due:
            self._stays[job] = _Stay(self._stays[job].times, self._stays[job].until_s, over=True)
        return due

    def deadlines(self) -> Iterator[float]:
        return (stay.until_s for stay in self._stays.values() if not stay.over)
