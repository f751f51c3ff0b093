"""What a host's GPUs look like to the agent: real ones (NVML) and emulated ones answer the same questions."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from hs_agent.config import Config, DeviceKind
from hs_core.model import Gpu
from hs_core.names import GpuId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """For people, not for scheduling."""

    gpu: GpuId
    utilization_percent: int = 0
    memory_used_bytes: int = 0  # 0: the driver does not say
    ecc_errors: int = 0  # uncorrected ones since the driver was loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    gpu: GpuId
    pid: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    gpu: GpuId
    xid: int
    hardware: bool  # the device is to blame, and is unhealthy from now on


class Devices(Protocol):
    """Any call may be slow (a sick driver); none raises for the sickness of a device."""

    description: str
    warnings: tuple[str, ...]

    def gpus(self) -> tuple[Gpu, ...]:
        """All devices with their health as it is now; their number and order never change."""

    def readings(self) -> tuple[Reading, ...]: ...

    def processes(self) -> tuple[GpuProcess, ...]:
        """Who computes on them."""

    def events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for errors the driver reports, at most so long."""

    def account(self, used_bytes: Mapping[GpuId, int], busy: AbstractSet[GpuId]) -> None:
        """What jobs hold and where they run; real devices know it by themselves."""

    def close(self) -> None: ...


def open_devices(config: Config) -> Devices:
    """Raises RefusedError with what to do where there are none."""
    if config.devices is DeviceKind.EMULATED:
        from hs_agent.devices.emulated import EmulatedDevices

        return EmulatedDevices(config.name, config.emulated)
    from hs_agent.devices.nvml import NvmlDevices

    return NvmlDevices(one_name=bool(config.gpu_model))
