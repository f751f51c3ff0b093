"""Gavel's max-min fairness over GPU models (OSDI'20, 4.1; its `max_min_fairness_perf`): the least normalized throughput per ticket is as large as can be."""

from hs_core.mechanism.allocations import fairest
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-max-min", fairest)
GAVEL_MAX_MIN = _THIS.policy()
compat = _THIS.compat
