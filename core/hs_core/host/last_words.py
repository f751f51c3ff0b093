"""What incarnations that are no longer wanted here said last: they may have trained, and saved, while the controller heard nothing of this host."""

from collections.abc import Iterable
from typing import Any

from hs_core.host.plain import plain, revive
from hs_core.names import JobId
from hs_core.reports import JobReport

KEPT_S = 900.0  # longer than a host is cut off without its line being given up
MOST = 256  # the newest


class LastWords:
    """Mutable. They are said to each controller that is met in that time: to hear them twice changes nothing."""

    def __init__(self) -> None:
        self._said: dict[tuple[JobId, int], tuple[float, JobReport]] = {}  # and when, the oldest first

    def keep(self, report: JobReport, now_s: float) -> None:
        if report.run_s <= 0 and report.checkpoint_generation < 0:
            return  # it never was anything
        key = (report.job, report.epoch)
        self._said.pop(key, None)
        self._said[key] = now_s, report
        if len(self._said) > MOST:
            del self._said[next(iter(self._said))]

    def said(self, now_s: float) -> tuple[JobReport, ...]:
        self._said = {key: one for key, one in self._said.items() if now_s - one[0] <= KEPT_S}
        return tuple(report for _, report in self._said.values())

    def dump(self) -> list[Any]:
        return [[at_s, plain(report)] for at_s, report in self._said.values()]

    @classmethod
    def load(cls, dumped: Iterable[Any], *, at_s: float | None = None) -> "LastWords":
        """`at_s`: as if said then, where the clock began anew."""
        words = cls()
        for then_s, said in dumped:
            words.keep(revive(JobReport, said), then_s if at_s is None else at_s)
        return words
