"""Where jobs of a host are to stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from hs_core.names import GpuId, JobId

Places = dict[JobId, tuple[GpuId, ...]]


@dataclass(slots=True)
class Rearrangement:
    """Mutable."""

    places: Places  # where these are to stand, each of which is moved once
    tickets: Mapping[JobId, Fraction]  # of all jobs: with others it would be another
    until_s: float  # nobody who has not left by then is waited for
