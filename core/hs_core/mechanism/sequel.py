"""Quanta in which nothing changed but time: gangs over several servers take turns and lags are watched, without a decision.

A lag that makes somebody's tickets heavier or lighter does so at once (in large clusters some quanta later). A decision is asked for again
where it might say something else: where tickets have changed so much that jobs may be better off elsewhere, or there was no budget left for a
move; `LOOK` quanta after the last one, where a job that would move has been where it is for long enough; and every `REVIEW` quanta for what
changes slowly (measured rates).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hs_core.mechanism import split, until_edge
from hs_core.mechanism.crowd import Crowd
from hs_core.mechanism.lags import STEPS, Ints, Lags
from hs_core.mechanism.level import Level
from hs_core.mechanism.reweighing import Scales
from hs_core.mechanism.split import Few
from hs_core.mechanism.user_turns import Both
from hs_core.mechanism.world import At, World
from hs_core.names import HostName, JobId
from hs_core.policy import Had, Memory, Onward
from hs_core.wanted import Turn

REVIEW = 15  # quanta
MANY_JOBS = 2_000  # from here on clusters are large
PACED_JOBS = 400  # for each so many more a quantum more passes before anything but a change is decided about
WEIGHED_JOBS = 12_500  # for each so many a quantum more until lags are looked at
LOOK = 6  # quanta; of ten looks at what has not changed seven or eight find nothing to move
FAR = STEPS // 8  # that factors may change by before moves are thought of
SLACK_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What stands until the next decision."""

    world: World
    levels: Mapping[str, Level]
    lags: (
        Lags | None
    )  # None: jobs have found homes or other ones since, so that what is due to users is another matter
    factors: Mapping[At, Fraction]
    jobs: int
    scales: Scales
    wakes_s: float  # somebody may move from then on
    held_back: bool  # or in the next quantum, for lack of budget in this one


def pace(jobs: int) -> int:
    """Quanta from one decision to the next where nothing changed: what it costs grows with the jobs, what it could find to do hardly."""
    return 1 + max(0, jobs - MANY_JOBS) // PACED_JOBS


class FairSequel:
    """Of one decision. `memory`: what that decision remembered."""

    turnover = False

    def __init__(self, decided: Decided, memory: Memory, table: Few | Crowd | Both) -> None:
        self._decided = decided
        self._memory = dict(memory)
        self._quantum: int = memory["quantum"]
        self._decided_at = self._quantum
        self._pace = pace(decided.jobs)
        self._weighs_every = 1 + decided.jobs // WEIGHED_JOBS
        self._lags: Lags | None = None
        self._weighed: Ints = np.empty(0, dtype=np.int64)  # factors, as decided
        self._told: Ints = self._weighed  # as tickets have them
        self._place: Ints = self._weighed  # of those who may lag, where `Had` has them
        self._table = table
        self._turns: Mapping[HostName, Turn] = {}

    def edge(self, quantum: int, now_s: float, had: Had) -> Onward | None:
        decided, age = self._decided, quantum - self._decided_at
        if quantum != self._quantum + 1 or age >= max(REVIEW, self._pace):
            return None
        due = age >= self._pace
        looks = age >= max(self._pace, LOOK)
        if (due and decided.held_back) or (looks and now_s >= decided.wakes_s - SLACK_S):
            return None
        lags = self._lags or self._first(had)
        lags = lags.after(had.gpus[self._place])
        changed: Mapping[JobId, Fraction] = {}
        if age % self._weighs_every == 0:
            if due and np.maximum.reduce(np.abs(lags.steps - self._weighed), initial=0) >= FAR:
                return None
            if not np.array_equal(lags.steps, self._told):
                changed = decided.scales.weigh(lags, self._told)
                self._told = lags.steps
        self._quantum, self._lags = quantum, lags
        self._turns = self._table.play()
        return Onward(turns=self._turns, tickets=changed)

    def _first(self, had: Had) -> Lags:
        """As they were when it was decided, of the world as that has left it."""
        decided = self._decided
        lags = decided.lags
        if lags is None:
            lags = Lags(decided.world, decided.levels, self._memory.get("lags", {}))
        self._weighed = self._told = lags.steps_of(decided.factors)
        self._place = np.array([had.place[at] for at in lags.whom], dtype=np.int64)
        return lags

    def memory(self) -> Memory:
        if self._lags is None:
            return self._memory
        now = {
            "lags": self._lags.dump(),
            "turns": split.dump_turns(self._turns),
            "books": self._table.books(),
            "weights": until_edge.weighed_anew(self._memory.get("weights", {}), self._lags.factors()),
        }
        kept = {name: value for name, value in {**self._memory, **now}.items() if value}
        return {**kept, "quantum": self._quantum, "moved": self._memory["moved"]}
