"""Gavel's sum of throughputs with two jobs on a GPU (OSDI'20, 3.1 and 4.2; its `max_sum_throughput_packed`): as `gavel-max-sum`, where time may also go to pairs.

Departures: those of `gavel-max-min-packed`.
"""

from hs_core.mechanism.allocations import most_steps
from hs_core.mechanism.fractions import Style
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-max-sum-packed", most_steps, Style(packed=True))
GAVEL_MAX_SUM_PACKED = _THIS.policy()
compat = _THIS.compat
