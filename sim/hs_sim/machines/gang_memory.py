"""What a modelled incarnation holds of its GPUs' memory, and what of that lies in its hosts' memory meanwhile."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hs_core.model import split_memory
from hs_core.wanted import WantedJob
from hs_sim.machines.part import Part
from hs_sim.machines.truth import JobTruth

if TYPE_CHECKING:
    from hs_sim.machines.world import World

EARLY_PART = 0.625  # of what it needs in the end, for one that grows


class GangMemory:
    def __init__(self, world: "World", wanted: WantedJob, job: JobTruth) -> None:
        self._world = world
        self.bytes = job.sim.gpu_memory_bytes if job.untold else _declared(wanted)  # on each of its GPUs
        # Each of them has all of what a checkpoint holds, and no activations.
        self.parked_bytes = min(self.bytes, job.sim.state_bytes or self.bytes)
        self._grows_at = world.grows_at.get(job.sim.id, 0)
        self._known_bytes = wanted.needs_bytes
        self._early_bytes = int(EARLY_PART * self.bytes)
        self.held_bytes = self.bytes // 2 if job.untold else self.bytes  # of each, but while it is parked
        self.parked = False  # what it holds lies in its hosts' memory

    @property
    def swap_s(self) -> float:
        """All of its GPUs at once, each over its own link."""
        return self.parked_bytes / self._world.costs.swap_bytes_per_s

    @property
    def surprises(self) -> bool:
        """It has grown since it was last known what it holds; or begins with more than was seen of its class, of which some grow."""
        return bool(self._world.grows_at) and self.held_bytes > max(self._known_bytes, self._early_bytes)

    def tell(self) -> int:
        """What its hook measures."""
        self._known_bytes = max(self._known_bytes, self.held_bytes)
        return self.held_bytes

    def grows(self, step: int) -> bool:
        """With what it does next: its first step, or one from which on it needs more."""
        return self._at(step) > self.held_bytes

    def grow(self, parts: Iterable[Part], step: int) -> list[Part]:
        """Those that have no room for that."""
        self.held_bytes = self._at(step)
        return self._short(parts)

    def _at(self, step: int) -> int:
        return self.bytes if step >= self._grows_at else self._early_bytes

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
