"""Gavel's sum of throughputs, not normalized (OSDI'20, 4.2; `max_sum_throughput_perf`): jobs with quick steps first, and others may starve."""

from hs_core.mechanism.allocations import most_steps
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-max-sum", most_steps)
GAVEL_MAX_SUM = _THIS.policy()
compat = _THIS.compat
