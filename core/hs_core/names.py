"""What things are called by."""

import re
from typing import NewType

JobId = NewType("JobId", int)
HostName = NewType("HostName", str)
UserName = NewType("UserName", str)
GpuId = NewType("GpuId", str)  # the device's UUID, "GPU-…"

# Of a host's name and of a DNS name: Python raises UnicodeError, no OSError, for one with a part that is empty or longer.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
A_HOST_NAME = "a host name (letters, digits, '_' and '-', at most 63 between dots and 253 in all)"
