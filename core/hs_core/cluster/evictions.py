"""Who has to leave servers that were to be empty by now, and may write a checkpoint before it is ended."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from hs_core.names import HostName, JobId


@dataclass(slots=True)
class Evictions:
    """Mutable."""

    doomed: frozenset[HostName] = frozenset()  # servers, as was said
    saving: frozenset[JobId] = frozenset()  # write a checkpoint
    _since_s: dict[JobId, float] = field(
        default_factory=dict
    )  # they and those that did, while they are there

    def forget_others(self, there: Container[JobId], now_s: float) -> None:
        """Nobody else is left there. Where the clock was set back they have begun now."""
        self._since_s = {job: min(since_s, now_s) for job, since_s in self._since_s.items() if job in there}

    def has_begun(self, job: JobId) -> bool:
        return job in self._since_s

    def has_time(self, job: JobId, now_s: float, deadline_s: float) -> bool:
        """To write it; from the first time that this is asked."""
        return now_s < self._since_s.setdefault(job, now_s) + deadline_s

    def deadlines(self, deadline_s: float) -> Iterator[float]:
        for job in self.saving & self._since_s.keys():
            yield self._since_s[job] + deadline_s
