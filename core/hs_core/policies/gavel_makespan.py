"""Gavel's makespan policy (OSDI'20, 4.2; its `min_total_duration_perf`): all jobs that are here end as early as can be."""

from hs_core.mechanism.allocations import earliest_end
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-makespan", earliest_end, lengths=True)
GAVEL_MAKESPAN = _THIS.policy()
compat = _THIS.compat
