"""Real GPUs through NVML: the only module that knows pynvml."""

import time
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from hs_agent.devices import DeviceEvent, GpuProcess, Reading
from hs_agent.devices.names import short_model
from hs_core.errors import Kind, RefusedError
from hs_core.model import Gpu
from hs_core.names import GpuId

# A program's own fault (13, 31, 43, 45, 68, 109) never drains a GPU.
HARDWARE_XIDS = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping",
    64: "ECC page retirement or row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GPU system processor timeout",
    120: "GPU system processor error",
    140: "unrecovered ECC error",
}
_OR_EMULATE = 'On a machine without NVIDIA GPUs set devices = "emulated" with [[emulated]] tables.'


@dataclass(slots=True)
class _Device:
    gpu: Gpu
    handle: Any
    xid: int = 0  # the first hardware one seen: it stays until the agent starts again


def _refuse(what: str, todo: str) -> RefusedError:
    return RefusedError(f"{what}. {todo} {_OR_EMULATE}", Kind.IMPOSSIBLE)


def _of_one_model(found: list[_Device], warnings: list[str]) -> list[_Device]:
    """A server is of one pool: those of the model that it has most of, of equals the first."""
    models = Counter(device.gpu.model for device in found)
    if len(models) < 2:
        return found
    [(model, _)] = models.most_common(1)
    out = ", ".join(
        f"{device.gpu.index} ({device.gpu.model})" for device in found if device.gpu.model != model
    )
    warnings.append(
        f"a server has GPUs of one model, here {model}, and GPU {out} is left out (to have all, give them one name: gpu_model)"
    )
    return [device for device in found if device.gpu.model == model]


class NvmlDevices:
    def __init__(self, *, one_name: bool = False) -> None:
        """`one_name`: all of its GPUs are said to be of one model, whatever the driver calls them."""
        try:
            import pynvml
        except ImportError:
            raise _refuse(
                "The Python package nvidia-ml-py is not installed",
                'Install it with: pip install "heteroshare[agent]".',
            ) from None
        self._nvml: Any = pynvml
        self._start()
        warnings: list[str] = []
        found = self._find(warnings)
        self._devices = found if one_name else _of_one_model(found, warnings)
        self.warnings = tuple(warnings)
        if not self._devices:
            why = f" ({'; '.join(warnings)})" if warnings else ""
            pynvml.nvmlShutdown()
            raise _refuse(f"NVML finds no usable GPU on this host{why}", "See what `nvidia-smi` lists.")
        names = ", ".join(sorted({device.gpu.model for device in self._devices}))
        self.description = f"{len(self._devices)} {names}, driver {self._driver()}"
        self._watched = self._watch()

    def _start(self) -> None:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            todo = {
                nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 comes with the NVIDIA driver: install it.",
                nvml.NVML_ERROR_DRIVER_NOT_LOADED: "Load the driver (`modprobe nvidia`) and look into `dmesg`.",
                nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "Library and kernel driver differ: reboot after the update.",
                nvml.NVML_ERROR_NO_PERMISSION: "Give the agent access to /dev/nvidia*.",
            }.get(error.value, "See whether `nvidia-smi` works.")
            raise _refuse(f"NVML cannot be used: {error}", todo) from None

    def _driver(self) -> str:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return "unknown"

    def _find(self, warnings: list[str]) -> list[_Device]:
        nvml = self._nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpu = Gpu(
                    id=GpuId(nvml.nvmlDeviceGetUUID(handle)),
                    index=index,
                    model=short_model(nvml.nvmlDeviceGetName(handle)),
                    memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
            except nvml.NVMLError as error:
                warnings.append(f"GPU {index} cannot be read and is left out: {error}")
                continue
            if self._mig(handle):
                warnings.append(
                    f"GPU {index} is in MIG mode and is left out: switch it off with `nvidia-smi -mig 0`"
                )
                continue
            found.append(_Device(gpu, handle))
        return found

    def _mig(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except self._nvml.NVMLError:
            return False  # most models have no such mode

    def _watch(self) -> Any:
        """An event set for XIDs; None where this driver or its permissions give none."""
        nvml = self._nvml
        try:
            watched = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self.warnings += (f"hardware errors (XID) cannot be watched: {error}",)
            return None
        for device in self._devices:
            try:
                nvml.nvmlDeviceRegisterEvents(device.handle, nvml.nvmlEventTypeXidCriticalError, watched)
            except nvml.NVMLError as error:
                self.warnings += (
                    f"hardware errors (XID) of GPU {device.gpu.index} cannot be watched: {error}",
                )
        return watched

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._health(device) for device in self._devices)

    def _health(self, device: _Device) -> Gpu:
        nvml = self._nvml
        why = f"XID {device.xid}: {HARDWARE_XIDS[device.xid]}" if device.xid else ""
        try:
            nvml.nvmlDeviceGetMemoryInfo(device.handle)
        except nvml.NVMLError as error:
            why = "the GPU is lost" if error.value == nvml.NVML_ERROR_GPU_IS_LOST else f"NVML: {error}"
        return replace(device.gpu, healthy=not why, why_unhealthy=why)

    def readings(self) -> tuple[Reading, ...]:
        return tuple(self._reading(device) for device in self._devices)

    def _reading(self, device: _Device) -> Reading:
        nvml = self._nvml

        def ask(question: Any, *arguments: int) -> Any:
            try:
                return question(device.handle, *arguments)
            except nvml.NVMLError:
                return None

        utilization = ask(nvml.nvmlDeviceGetUtilizationRates)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo)
        ecc = ask(
            nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        return Reading(
            gpu=device.gpu.id,
            utilization_percent=int(utilization.gpu) if utilization else 0,
            memory_used_bytes=int(memory.used) if memory else 0,
            ecc_errors=int(ecc or 0),
        )

    def processes(self) -> tuple[GpuProcess, ...]:
        nvml = self._nvml
        found = []
        for device in self._devices:
            try:
                running = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device.handle)
            except nvml.NVMLError:
                continue
            found += [
                GpuProcess(gpu=device.gpu.id, pid=int(one.pid), memory_bytes=int(one.usedGpuMemory or 0))
                for one in running
            ]
        return tuple(found)

    def events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        nvml = self._nvml
        if self._watched is None:
            time.sleep(timeout_s)
            return ()
        try:
            event = nvml.nvmlEventSetWait_v2(self._watched, int(timeout_s * 1000))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:  # a lost GPU answers at once, forever
                time.sleep(timeout_s)
            return ()
        return self._take(event)

    def _take(self, event: Any) -> tuple[DeviceEvent, ...]:
        nvml = self._nvml
        try:
            uuid = str(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError:
            return ()
        xid = int(event.eventData)
        for device in self._devices:
            if device.gpu.id == uuid:
                hardware = xid in HARDWARE_XIDS
                if hardware and not device.xid:
                    device.xid = xid
                return (DeviceEvent(gpu=device.gpu.id, xid=xid, hardware=hardware),)
        return ()

    def account(self, used_bytes: Mapping[GpuId, int], busy: AbstractSet[GpuId]) -> None:
        pass

    def close(self) -> None:
        try:
            if self._watched is not None:
                self._nvml.nvmlEventSetFree(self._watched)
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass
