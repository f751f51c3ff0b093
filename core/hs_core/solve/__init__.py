"""The one door to the solvers: the same answer for the same question.

Solvers are imported on first use: the rest of the core neither needs nor pays for them. HiGHS' own package must not be loaded beside
OR-Tools (one process can't hold both), so HiGHS is reached through scipy. No time limits: they are hidden clocks.
"""

from hs_core.solve.ip import IpAnswer, ip
from hs_core.solve.lp import LpAnswer, Method, lp
from hs_core.solve.matrices import Entries, Floats, InfeasibleError, Ints, Matrix, UnboundedError
from hs_core.solve.pairs import Sinks, assign, match, transport

__all__ = [
    "Entries",
    "Floats",
    "InfeasibleError",
    "Ints",
    "IpAnswer",
    "LpAnswer",
    "Matrix",
    "Method",
    "Sinks",
    "UnboundedError",
    "assign",
    "ip",
    "lp",
    "match",
    "transport",
]
