"""Gavel's max-min fairness with two jobs on a GPU (OSDI'20, 3.1 and 4.1; its `max_min_fairness_packed`): as `gavel-max-min`, where time may also go to pairs.

Departures. Gavel has every pair measured; here a pair that was not is taken to slow each other by `sharing.UNMEASURED`, where their memory is known to fit. Time of pairs is by kinds of jobs
and laid out over few different pairs (`gavel.partners`), which is another optimum of the same program. Only gangs of one size share.
"""

from hs_core.mechanism.allocations import fairest
from hs_core.mechanism.fractions import Style
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-max-min-packed", fairest, Style(packed=True))
GAVEL_MAX_MIN_PACKED = _THIS.policy()
compat = _THIS.compat
