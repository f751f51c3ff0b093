"""GPUs that are not there: declared models, identities that stay, memory accounted from what jobs declare and report."""

import uuid
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from hs_agent.config import EmulatedGpus
from hs_agent.devices import DeviceEvent, GpuProcess, Reading
from hs_core.model import Gpu
from hs_core.names import GpuId

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "emulated.heteroshare")


class EmulatedDevices:
    def __init__(self, host: str, declared: tuple[EmulatedGpus, ...]) -> None:
        kinds = [group for group in declared for _ in range(group.count)]
        self._gpus = tuple(
            Gpu(
                id=GpuId(f"GPU-{uuid.uuid5(_NAMESPACE, f'{host}/{index}/{group.model}')}"),
                index=index,
                model=group.model,
                memory_bytes=group.memory_bytes,
            )
            for index, group in enumerate(kinds)
        )
        self.description = ", ".join(f"{group.count} emulated {group.model}" for group in declared)
        self.warnings: tuple[str, ...] = ()
        self._used: Mapping[GpuId, int] = {}
        self._busy: AbstractSet[GpuId] = frozenset()

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    def readings(self) -> tuple[Reading, ...]:
        return tuple(
            Reading(
                gpu=gpu.id,
                utilization_percent=100 if gpu.id in self._busy else 0,
                memory_used_bytes=min(self._used.get(gpu.id, 0), gpu.memory_bytes),
            )
            for gpu in self._gpus
        )

    def processes(self) -> tuple[GpuProcess, ...]:
        return ()

    def events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:  # noqa: ARG002 — nothing ever happens to them
        return ()

    def account(self, used_bytes: Mapping[GpuId, int], busy: AbstractSet[GpuId]) -> None:
        self._used, self._busy = dict(used_bytes), frozenset(busy)

    def close(self) -> None:
        pass
