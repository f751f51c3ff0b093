"""Gavel's finish-time fairness (OSDI'20, 4.2): the largest ratio of a job's time to completion to that in a cluster of its own is as small as can be."""

from hs_core.mechanism.allocations import fairest_finish
from hs_core.mechanism.fractions import Style
from hs_core.mechanism.gavels import Gavels

_THIS = Gavels("gavel-ftf", fairest_finish, Style(lives=True), lengths=True)
GAVEL_FTF = _THIS.policy()
compat = _THIS.compat
