"""Jobs with processes on GPUs that are not their own: their scripts have set another `CUDA_VISIBLE_DEVICES` than they were given.

Nothing else keeps them from it, as all GPUs of a host are there for its users.
"""

from collections.abc import Collection, Iterator, Mapping

from hs_agent.folder import Key
from hs_agent.strangers import STAYS_S
from hs_core.names import GpuId


class Trespassers:
    """Looks from time to time; `now_s` of any clock that never jumps."""

    def __init__(self) -> None:
        self._there_since: dict[tuple[Key, GpuId], float] = {}

    def look(
        self, on: Collection[tuple[Key, GpuId]], bound: Mapping[Key, Collection[GpuId]], now_s: float
    ) -> Iterator[tuple[Key, GpuId]]:
        """Who has been there for too long. `bound`: GPUs of those that had the same ones before and after it was looked."""
        there = [(key, gpu) for key, gpu in on if key in bound and gpu not in bound[key]]
        self._there_since = {each: self._there_since.get(each, now_s) for each in there}
        return (each for each, since_s in self._there_since.items() if now_s - since_s >= STAYS_S)
