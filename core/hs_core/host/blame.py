"""Whose word broke a host's mind, and who is ended for it: an agent that starts again from what it saved hears the same once more, and would serve nobody.

The fault is the program's, whatever a job says. So it takes as many breaks in a row that speak against the same incarnation, and where ending a few
does not help it was none of them.

Where breaks follow one another and nobody is to be ended for them, what comes from elsewhere (the controller, the driver) is tried on a copy of the mind first, and left out
where that breaks. Where that does not help either, it is the mind itself that cannot go on: it stands still for a while before each further try.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from hs_core.errors import BrokenError
from hs_core.events.host import HostEvent, Woke
from hs_core.names import JobId

IN_A_ROW = 2
MOST_ENDED = 8
FORGOTTEN_S = 3600.0
MOST_TRIES = 4  # in a row, at once
RETRY_S = 60.0

Incarnation = tuple[JobId, int]
"""Job and epoch."""


class LawError(BrokenError):
    """What must hold of these jobs does not."""

    def __init__(self, what: str, jobs: Collection[Incarnation]) -> None:
        super().__init__(what)
        self.jobs = tuple(jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    at_s: float
    suspects: tuple[Incarnation, ...]  # the likeliest first
    why: str


def suspects(event: HostEvent | None, error: Exception) -> tuple[Incarnation, ...]:
    """Whom was heard of last, then those with whom it is not as it must be, the newest first. `event`: None: it had heard nothing yet."""
    job, epoch = getattr(event, "job", None), getattr(event, "epoch", None)
    told = [(JobId(job), int(epoch))] if job is not None and epoch is not None else []
    named = sorted(error.jobs, reverse=True) if isinstance(error, LawError) else []
    return tuple(dict.fromkeys([*told, *named]))


def to_end(breaks: Sequence[Break], ended: Collection[Incarnation], now_s: float) -> Incarnation | None:
    """`breaks`: the newest last; `ended`: for such a reason, not long ago."""
    last = [each for each in breaks if now_s - each.at_s < FORGOTTEN_S][-IN_A_ROW:]
    if len(last) < IN_A_ROW or len(ended) >= MOST_ENDED:
        return None
    common = (who for who in last[-1].suspects if all(who in each.suspects for each in last))
    return next((who for who in common if who not in ended), None)


def unsolved(breaks: Sequence[Break], ended_s: Iterable[float], now_s: float) -> tuple[Break, ...]:
    """Those for which nobody was ended since, the newest last. `ended_s`: when some were."""
    since_s = max(ended_s, default=-inf)
    return tuple(each for each in breaks if each.at_s > since_s and now_s - each.at_s < FORGOTTEN_S)


def is_tried_first(event: HostEvent, fails: Sequence[Break]) -> bool:
    """`fails`: unsolved ones. A word of a job is that job's; where the timer breaks the mind, it breaks by itself."""
    return len(fails) >= IN_A_ROW and not isinstance(event, Woke) and getattr(event, "epoch", None) is None


def stands_until_s(fails: Sequence[Break]) -> float:
    """-inf: it does not stand still."""
    return fails[-1].at_s + RETRY_S if len(fails) >= MOST_TRIES else -inf
