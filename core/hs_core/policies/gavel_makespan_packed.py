"""Gavel's makespan policy with two jobs on a GPU (OSDI'20, 3.1 and 4.2; its `min_total_duration_packed`): as `gavel-makespan`, where time may also go to pairs.

Departures: those of `gavel-max-min-packed`.
"""

from hs_core.mechanism.allocations import earliest_end
from hs_core.mechanism.fractions import Style
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-makespan-packed", earliest_end, Style(packed=True), lengths=True)
GAVEL_MAKESPAN_PACKED = _THIS.policy()
compat = _THIS.compat
