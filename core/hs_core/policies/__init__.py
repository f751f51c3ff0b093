"""The table of policies. A new one is a file here and a line below."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from hs_core.errors import Kind, RefusedError
from hs_core.mechanism.rounds import RESET_S
from hs_core.policies import (
    allox,
    gavel_fifo,
    gavel_ftf,
    gavel_ftf_packed,
    gavel_makespan,
    gavel_makespan_packed,
    gavel_max_min,
    gavel_max_min_blind,
    gavel_max_min_packed,
    gavel_max_sum,
    gavel_max_sum_packed,
    gavel_water_filling,
    pop,
)
from hs_core.policies.allox import ALLOX
from hs_core.policies.fft import FFT
from hs_core.policies.fifo import FIFO
from hs_core.policies.gandiva_fair import GANDIVA_FAIR
from hs_core.policies.gang_lottery import GANG_LOTTERY
from hs_core.policies.gavel_fifo import GAVEL_FIFO
from hs_core.policies.gavel_ftf import GAVEL_FTF
from hs_core.policies.gavel_ftf_packed import GAVEL_FTF_PACKED
from hs_core.policies.gavel_hierarchical import GAVEL_HIERARCHICAL
from hs_core.policies.gavel_makespan import GAVEL_MAKESPAN
from hs_core.policies.gavel_makespan_packed import GAVEL_MAKESPAN_PACKED
from hs_core.policies.gavel_max_min import GAVEL_MAX_MIN
from hs_core.policies.gavel_max_min_blind import GAVEL_MAX_MIN_BLIND
from hs_core.policies.gavel_max_min_packed import GAVEL_MAX_MIN_PACKED
from hs_core.policies.gavel_max_sum import GAVEL_MAX_SUM
from hs_core.policies.gavel_max_sum_packed import GAVEL_MAX_SUM_PACKED
from hs_core.policies.gavel_sjf import GAVEL_SJF
from hs_core.policies.gavel_water_filling import GAVEL_WATER_FILLING
from hs_core.policies.hadar import HADAR
from hs_core.policies.hadar_exact import HADAR_EXACT
from hs_core.policies.hadare import HADARE
from hs_core.policies.las import LAS
from hs_core.policies.lottery import LOTTERY
from hs_core.policies.pal import PAL
from hs_core.policies.pollux import POLLUX
from hs_core.policies.pop import POP
from hs_core.policies.sjf import SJF
from hs_core.policies.sjf_bsbf import SJF_BSBF
from hs_core.policies.sjf_ffs import SJF_FFS
from hs_core.policies.srsf import SRSF
from hs_core.policies.srtf import SRTF
from hs_core.policies.tesserae_ftf import TESSERAE_FTF
from hs_core.policies.tesserae_las import TESSERAE_LAS
from hs_core.policies.tesserae_srtf import TESSERAE_SRTF
from hs_core.policies.themis import THEMIS
from hs_core.policies.tiresias import TIRESIAS
from hs_core.policies.yarn_cs import YARN_CS
from hs_core.policy import Policy

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        GANDIVA_FAIR,
        FIFO,
        YARN_CS,
        SJF,
        SJF_BSBF,
        SJF_FFS,
        SRTF,
        SRSF,
        LAS,
        TIRESIAS,
        PAL,
        FFT,
        HADAR,
        HADAR_EXACT,
        HADARE,
        POP,
        ALLOX,
        THEMIS,
        POLLUX,
        TESSERAE_LAS,
        TESSERAE_SRTF,
        TESSERAE_FTF,
        GAVEL_MAX_MIN,
        GAVEL_MAX_MIN_PACKED,
        GAVEL_MAX_MIN_BLIND,
        GAVEL_WATER_FILLING,
        GAVEL_HIERARCHICAL,
        GAVEL_FTF,
        GAVEL_FTF_PACKED,
        GAVEL_MAKESPAN,
        GAVEL_MAKESPAN_PACKED,
        GAVEL_MAX_SUM,
        GAVEL_MAX_SUM_PACKED,
        GAVEL_FIFO,
        GAVEL_SJF,
        LOTTERY,
        GANG_LOTTERY,
    )
}

GAVEL_COMPAT: Mapping[str, Callable[[float], Policy]] = {
    "allox": allox.compat,
    "fifo": gavel_fifo.compat,
    "gavel-fifo": gavel_fifo.compat,
    "gavel-ftf": gavel_ftf.compat,
    "gavel-ftf-packed": gavel_ftf_packed.compat,
    "gavel-makespan": gavel_makespan.compat,
    "gavel-makespan-packed": gavel_makespan_packed.compat,
    "gavel-max-min": gavel_max_min.compat,
    "gavel-max-min-packed": gavel_max_min_packed.compat,
    "gavel-max-min-blind": gavel_max_min_blind.compat,
    "gavel-max-sum": gavel_max_sum.compat,
    "gavel-max-sum-packed": gavel_max_sum_packed.compat,
    "gavel-water-filling": gavel_water_filling.compat,
    "pop": pop.compat,
}
"""As Gavel's own simulator has them, for comparisons with its numbers."""


def find(name: str, *, compat: bool = False, reset_s: float = RESET_S) -> Policy:
    """`compat`: as in Gavel's simulator, where that differs, with so long between two allocations at least. Raises RefusedError."""
    if compat and name in GAVEL_COMPAT:
        return GAVEL_COMPAT[name](reset_s)
    if name in POLICIES:
        return POLICIES[name]
    close = get_close_matches(name, POLICIES, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise RefusedError(
        f"no policy is called {name!r}; there are {', '.join(sorted(POLICIES))}{hint}", Kind.INVALID
    )
