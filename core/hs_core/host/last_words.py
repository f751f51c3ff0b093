"""What incarnations that are no longer wanted here said last: they may have trained, and saved, while the controller heard nothing of this host."""

from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple

from hs_core.host.plain import plain, revive
from hs_core.names import JobId
from hs_core.reports import JobReport
from hs_core.wanted import WantedJob

KEPT_S = 900.0  # longer than a host is cut off without its line being given up
MOST = 32  # they are saved with all that the agent knows, before each order is carried out


class _Words(NamedTuple):
    at_s: float
    report: JobReport
    is_copy: bool  # with a folder of its own, that goes with it
    in_folder: bool  # that its user named: nobody removes what is there


def _ended_well(report: JobReport) -> bool:
    return report.exit is not None and report.exit.ok


class LastWords:
    """Mutable. They are said to each controller that is met in that time: to hear them twice changes nothing.

    Of what is here nothing: where an older backup of the controller's was put back it may know such an incarnation as one that lives here.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[JobId, int], _Words] = {}  # the oldest first
        self._plain: dict[
            tuple[JobId, int], list[Any]
        ] = {}  # the same, JSON-able, as far as it was asked for

    def keep(self, wanted: WantedJob, report: JobReport, now_s: float) -> None:
        in_folder = bool(wanted.spec.checkpoint_dir) and wanted.copy < 0
        self._keep(_Words(now_s, report, is_copy=wanted.copy >= 0, in_folder=in_folder))

    def _keep(self, words: _Words) -> None:
        report = words.report
        ended = report.exit is not None and not report.exit.why
        if report.run_s <= 0 and report.checkpoint_generation < 0 and not ended:
            return  # it never was anything
        key = (report.job, report.epoch)
        self._said.pop(key, None)
        self._plain.pop(key, None)
        self._said[key] = words
        if len(self._said) > MOST:
            self._forget(self._least())

    def _least(self) -> tuple[JobId, int]:
        """That is missed least: of a job of which a later incarnation was here, else of one that did not end well, as it is not begun again for want of that; the oldest."""
        newest = dict(sorted(self._said))
        return min(
            self._said, key=lambda key: (_ended_well(self._said[key].report), key[1] == newest[key[0]])
        )

    def _forget(self, key: tuple[JobId, int]) -> None:
        del self._said[key]
        self._plain.pop(key, None)

    def look(self, here: Container[JobId], lends: AbstractSet[tuple[JobId, int]]) -> None:
        """Checkpoints of jobs that are not `here`, and not lent, are removed: nothing is said of them any more."""
        if not self._said:
            return
        lent = {job for job, _ in lends}
        for key, words in self._said.items():
            if words.report.checkpoint_generation < 0 or words.in_folder:
                continue
            if key in lends or (not words.is_copy and (key[0] in here or key[0] in lent)):
                continue
            gone = replace(words.report, checkpoint_generation=-1, checkpoint_step=-1)
            self._said[key] = words._replace(report=gone)
            self._plain.pop(key, None)

    def said(self, now_s: float) -> tuple[JobReport, ...]:
        for key in [key for key, words in self._said.items() if now_s - words.at_s > KEPT_S]:
            self._forget(key)
        return tuple(words.report for words in self._said.values())

    def dump(self) -> list[Any]:
        for key in self._said.keys() - self._plain.keys():
            words = self._said[key]
            self._plain[key] = [words.at_s, plain(words.report), words.is_copy, words.in_folder]
        return [self._plain[key] for key in self._said]

    @classmethod
    def load(cls, dumped: Iterable[Any], *, at_s: float | None = None) -> "LastWords":
        """`at_s`: as if said then, where the clock began anew."""
        words = cls()
        for then_s, said, is_copy, in_folder in dumped:
            report = revive(JobReport, said)
            words._keep(_Words(then_s if at_s is None else at_s, report, is_copy, in_folder))
        return words
