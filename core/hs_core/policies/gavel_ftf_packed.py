"""Gavel's finish-time fairness with two jobs on a GPU (OSDI'20, 3.1 and 4.2; its `finish_time_fairness_packed`): as `gavel-ftf`, where time may also go to pairs.

Departures: those of `gavel-max-min-packed`.
"""

from hs_core.mechanism.allocations import fairest_finish
from hs_core.mechanism.fractions import Style
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-ftf-packed", fairest_finish, Style(packed=True, lives=True), lengths=True)
GAVEL_FTF_PACKED = _THIS.policy()
compat = _THIS.compat
