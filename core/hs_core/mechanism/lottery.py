"""Drawing by weight, so that neither the order of entries nor a common factor of the weights changes a draw; and what was won in a quantum."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm

from hs_core.dice import Random
from hs_core.mechanism.slots import Slots
from hs_core.names import JobId
from hs_core.policy import Memory, Snapshot


class Urn:
    """Numbered lots with exact weights; draws with replacement until one is taken out."""

    def __init__(self, weights: Sequence[Fraction]) -> None:
        unit = lcm(*(weight.denominator for weight in weights))
        whole = [weight.numerator * (unit // weight.denominator) for weight in weights]
        assert all(weight > 0 for weight in whole), f"weights must be more than 0: {weights}"
        common = gcd(*whole) or 1
        self._weights = [weight // common for weight in whole]
        self._left = sum(self._weights)
        # The n-th is the sum of the lots before the n-th, as many as n's lowest bit says (a Fenwick tree): of thousands, few change as one is taken out.
        before = [0, *accumulate(self._weights)]
        self._sums = [before[at] - before[at - (at & -at)] for at in range(len(before))]

    def __bool__(self) -> bool:
        return self._left > 0

    def draw(self, dice: Random) -> int:
        assert self, "nothing left to draw"
        left, lot = dice.randrange(self._left), 0
        for bit in reversed(range(len(self._weights).bit_length())):
            further = lot + (1 << bit)
            if further < len(self._sums) and self._sums[further] <= left:
                left -= self._sums[further]
                lot = further
        return lot

    def take_out(self, lot: int) -> None:
        weight, self._weights[lot] = self._weights[lot], 0
        self._left -= weight
        at = lot + 1
        while at < len(self._sums):
            self._sums[at] -= weight
            at += at & -at


def won_before(snapshot: Snapshot, memory: Memory, slots: Slots) -> list[JobId]:
    """Who won GPUs in this quantum and has them still, in that order; none in a new one. Weights go by where jobs live, so the same lottery would be drawn otherwise a moment later."""
    won = memory["won"] if memory and memory["quantum"] == snapshot.quantum else []
    jobs = {job.id: job for job in snapshot.jobs}
    return [job for job in won if job in jobs and slots.offer(jobs[job])]
