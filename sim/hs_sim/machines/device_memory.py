"""What lies in the memory of each GPU: of every process from its launch on, but while it is parked in the host's. As much as jobs say they need.

Of one whose user says nothing it is half from its launch on, which is when scripts build their models, and all from its first step on; or most of it, and all from a later one on.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hs_core.model import Gpu
from hs_core.names import GpuId
from hs_core.reports import Phase
from hs_sim.machines.part import Way
from hs_sim.machines.truth import LawBrokenError

if TYPE_CHECKING:
    from hs_sim.machines.part import Part


class DeviceMemory:
    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self._there: dict[GpuId, dict[Part, int]] = {gpu.id: {} for gpu in gpus}
        self._capacity = {gpu.id: gpu.memory_bytes for gpu in gpus}

    def takes(self, part: "Part", now_s: float) -> bool:
        """False: others leave it no room, and it dies of it. Raises LawBrokenError where that need not be: what all need was said or seen, and these could leave."""
        needed = part.gang.memory.held_bytes
        short = False
        for gpu in part.gpus if needed else ():
            there = self._there[gpu]
            there[part] = needed
            if sum(there.values()) <= self._capacity[gpu]:
                continue
            short = True
            # Nobody waits for the other parts of a gang that comes up, and then again for others to leave.
            at_s = min(now_s, part.gang.let_go_s) if part.gang.nodes == 1 else part.launched_s
            left = all(_could_leave(o, at_s) for o in there if o is not part)
            known = not any(one.gang.memory.surprises for one in there)
            if not part.gang.job.untold or (left and known):
                jobs = ", ".join(f"{one.key[0]}:{one.key[1]} {size}" for one, size in there.items())
                raise LawBrokenError(
                    f"at {now_s:.3f}: more lies on {gpu} than it has, {self._capacity[gpu]} bytes: {jobs}"
                )
        return not short

    def capacity_bytes(self, gpu: GpuId) -> int:
        return self._capacity[gpu]

    def free_bytes(self, gpu: GpuId, stays: Callable[["Part"], bool]) -> int:
        """Were only these left there."""
        return self._capacity[gpu] - sum(size for part, size in self._there[gpu].items() if stays(part))

    def leaves(self, part: "Part") -> None:
        if part.gang.memory.bytes:
            for gpu in part.gpus:
                self._there[gpu].pop(part, None)


def _could_leave(part: "Part", at_s: float) -> bool:
    """Its host, as far as that knew then, could have had it write a checkpoint, and end."""
    machine = part.agent.machine
    report = machine.report(part.key[0]) if machine is not None else None
    if report is None or report.phase is Phase.STARTING or report.checkpoint_fails:
        return False
    stands = part.way not in (Way.COMING, Way.UP) and not part.frozen
    return stands and part.up_s < at_s and part.gang.world.can_checkpoint(part.gang.job)
