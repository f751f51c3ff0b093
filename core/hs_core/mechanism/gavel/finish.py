"""Finish-time fairness (Themis' metric in Gavel's form): nobody should end much later than in a cluster of its own."""

from dataclasses import dataclass

import numpy as np

from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.fair import raise_least, tellable
from hs_core.mechanism.gavel.kinds import classes
from hs_core.mechanism.gavel.program import Program, Rows
from hs_core.mechanism.gavel.question import Allocation, Floats, Question, isolated_speed
from hs_core.solve import Method

EXACT = 1e-6  # relative, of rho
MOST_LPS = 6
LOOSE = 1e-5  # relative, of rho: room for a middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """Of each job (J)."""

    age_s: Floats  # since arrival
    steps_left: Floats
    alone_s: Floats
    """How long all of the job takes in the isolated share: what it would have taken for the steps done, plus `steps_left` over
    `isolated_speed` now."""


def rho(lives: Lives, steps_per_s: Floats) -> Floats:
    """J: time from arrival to finish over `alone_s`; infinite without speed, age over `alone_s` with nothing left."""
    left = np.divide(
        lives.steps_left, steps_per_s, out=np.full(len(steps_per_s), np.inf), where=steps_per_s > 0
    )
    ratio: Floats = (lives.age_s + np.where(lives.steps_left > 0, left, 0.0)) / lives.alone_s
    return ratio


def finish_time_fair(
    question: Question, lives: Lives, *, by_class: bool = True, method: Method | None = None
) -> Allocation:
    """Minimizes the largest rho; `value`: that. At most 6 LPs, most often 3 to 5 (a few more where jobs share: see `program`).

    For a given rho each job needs a certain speed, and a max-min LP says by how much (t) all could have more. Its prices y bound how small rho
    may be: whatever the allocation, sum y * need(rho) <= sum y * need(rho now) * t. The rho where this is equal is the next one to try: Newton's
    steps, from below. What the LP found gives a rho from above; between them is the optimum, and when they meet we stop. With Method.CENTRE the last LP
    takes the middle of all allocations whose worst rho is within 10^-5 of that.
    """
    runs = question.can.any(axis=1) & (lives.steps_left > 0)
    for name in ("age_s", "steps_left", "alone_s"):
        value = getattr(lives, name)
        if value.shape != question.gang.shape or not np.isfinite(value).all() or (value < 0).any():
            raise BrokenError(
                f"{name} must have a finite number of at least 0 for each of {len(question.gang)} jobs"
            )
    if (lives.alone_s[runs] <= 0).any():
        raise BrokenError("alone_s has 0 for a job that has steps left; expected seconds above 0")
    groups = classes(question, lives.age_s, lives.steps_left, lives.alone_s, by_class=by_class)
    program = Program(question, groups)
    at = groups.first
    search = _Search(lives.age_s[at], np.where(runs, lives.steps_left, 0.0)[at], lives.alone_s[at])
    if not len(program.of) or not runs.any():
        return program.allocation(np.zeros(len(program.of)), value=0.0, lps=0)
    share = isolated_speed(question)[at]
    guess, low, high, lps = max(search.worst(share), search.floor), search.floor, np.inf, 0
    best = np.zeros(len(program.of))
    centred = method is Method.CENTRE
    for _ in range(MOST_LPS - centred):
        found = raise_least(program, search.need(guess), method=None if centred else method)
        lps += found.lps
        speed = np.bincount(program.of, program.speed * found.x, len(at)) / groups.count
        if (reached := search.worst(speed)) < high:
            high, best = reached, found.x
        low = max(low, search.bound(guess, found.prices, float(found.extra[0])))
        if high <= low * (1 + EXACT):
            break
        # Not the bound itself: once that is within rounding of the optimum it would be solved for again and again, a little too low.
        guess = low * (1 + EXACT / 2)
    if centred and np.isfinite(high):
        enough = tellable(program, search.need(high * (1 + LOOSE)))
        asks = enough > 0
        scale = np.divide(1.0, enough, out=np.zeros_like(enough), where=asks)
        middle = program.solve(
            np.zeros(len(program.of)), Rows(program.rate(-scale), -asks.astype(float)), method=method
        )
        best, lps = middle.x, lps + middle.lps
    return program.allocation(best, value=high, lps=lps)


class _Search:
    """rho as a function of speed, and back, for classes of jobs; those with nothing left ask for nothing."""

    def __init__(self, age_s: Floats, steps_left: Floats, alone_s: Floats) -> None:
        self.asks = steps_left > 0
        self.age_s, self.left, self.alone_s = age_s[self.asks], steps_left[self.asks], alone_s[self.asks]
        self.floor = (
            float((self.age_s / self.alone_s).max(initial=0.0)) * (1 + EXACT / 100) + 1e-12
        )  # no speed is enough for less

    def need(self, rho: float) -> Floats:
        need = np.zeros(len(self.asks))
        need[self.asks] = self.left / (rho * self.alone_s - self.age_s)
        return need

    def worst(self, speed: Floats) -> float:
        speed = speed[self.asks]
        if (speed <= 0).any():
            return np.inf
        return float(((self.age_s + self.left / speed) / self.alone_s).max())

    def bound(self, guess: float, prices: Floats, most: float) -> float:
        """The rho whose needs cost what all speed can be worth at these prices."""
        price = np.maximum(prices[self.asks], 0.0)
        if most <= 0 or not price.any():
            return self.floor
        some = price > 0
        price, age_s, alone_s = price[some] / price.sum(), self.age_s[some], self.alone_s[some]
        slack = guess * alone_s - age_s

        def cost(rho: float) -> float:
            return float((price * slack / (rho * alone_s - age_s)).sum())

        low, high = self.floor, max(guess, self.floor * 2)
        if cost(low) <= most:
            return low
        while cost(high) > most:
            high *= 2
        while high - low > low * EXACT / 100:
            middle = (low + high) / 2
            low, high = (middle, high) if cost(middle) > most else (low, middle)
        return low
