"""What a modelled incarnation holds of its GPUs' memory, and what of that lies in its hosts' memory meanwhile."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hs_core.model import split_memory
from hs_core.wanted import WantedJob
from hs_sim.machines.part import Part
from hs_sim.machines.truth import JobTruth

if TYPE_CHECKING:
    from hs_sim.machines.world import World


class GangMemory:
    def __init__(self, world: "World", wanted: WantedJob, job: JobTruth) -> None:
        self._world = world
        self.bytes = job.sim.gpu_memory_bytes if job.untold else _declared(wanted)  # on each of its GPUs
        # Each of them has all of what a checkpoint holds, and no activations.
        self.parked_bytes = min(self.bytes, job.sim.state_bytes or self.bytes)
        self.grown = not job.untold  # it holds all of that
        self.parked = False  # what it holds lies in its hosts' memory

    @property
    def held_bytes(self) -> int:
        """Of each of its GPUs, but while it is parked."""
        return self.bytes if self.grown else self.bytes // 2

    @property
    def swap_s(self) -> float:
        """All of its GPUs at once, each over its own link."""
        return self.parked_bytes / self._world.costs.swap_bytes_per_s

    def grow(self, parts: Iterable[Part]) -> list[Part]:
        """With its first step. Those that have no room for that."""
        self.grown = True
        return self._short(parts)

    def park(self, parts: Iterable[Part]) -> None:
        self.parked = True
        for part in parts:
            part.parked_bytes = self.parked_bytes * len(part.gpus)
            self._world.device_memory.leaves(part)

    def come_back(self, parts: Iterable[Part]) -> list[Part]:
        """Those that have no room for that."""
        self.parked = False
        return self._short(parts)

    def _short(self, parts: Iterable[Part]) -> list[Part]:
        device_memory, now_s = self._world.device_memory, self._world.clock.now_s
        return [part for part in parts if not device_memory.takes(part, now_s)]


def _declared(wanted: WantedJob) -> int:
    spec = wanted.spec
    if wanted.accumulation > 1:
        return split_memory(spec.gpu_memory_bytes, spec.gpu_memory_fixed_bytes, wanted.accumulation)
    return spec.gpu_memory_bytes
