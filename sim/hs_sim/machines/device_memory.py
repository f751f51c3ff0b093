"""What lies in the memory of each GPU: of every process from its launch on, but while it is parked in the host's. As much as jobs say they need."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hs_core.model import Gpu
from hs_core.names import GpuId
from hs_sim.machines.truth import LawBrokenError

if TYPE_CHECKING:
    from hs_sim.machines.part import Part


class DeviceMemory:
    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self._there: dict[GpuId, dict[Part, int]] = {gpu.id: {} for gpu in gpus}
        self._capacity = {gpu.id: gpu.memory_bytes for gpu in gpus}

    def takes(self, part: "Part", now_s: float) -> None:
        """Raises LawBrokenError where others leave it no room: a real one would die of it."""
        needed = part.gang.memory_bytes
        if not needed:
            return
        for gpu in part.gpus:
            there = self._there[gpu]
            there[part] = needed
            if sum(there.values()) > self._capacity[gpu]:
                jobs = ", ".join(f"{one.key[0]}:{one.key[1]} {size}" for one, size in there.items())
                raise LawBrokenError(
                    f"at {now_s:.3f}: more lies on {gpu} than it has, {self._capacity[gpu]} bytes: {jobs}"
                )

    def free_bytes(self, gpu: GpuId, stays: Callable[["Part"], bool]) -> int:
        """Were only these left there."""
        return self._capacity[gpu] - sum(size for part, size in self._there[gpu].items() if stays(part))

    def leaves(self, part: "Part") -> None:
        if part.gang.memory_bytes:
            for gpu in part.gpus:
                self._there[gpu].pop(part, None)
