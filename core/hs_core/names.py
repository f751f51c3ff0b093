"""What things are called by."""

from typing import NewType

JobId = NewType("JobId", int)
HostName = NewType("HostName", str)
UserName = NewType("UserName", str)
GpuId = NewType("GpuId", str)  # the device's UUID, "GPU-…"
