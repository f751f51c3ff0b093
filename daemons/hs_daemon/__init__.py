"""What both daemons do alike on their hosts: logs, systemd's notification socket, the boot clock, their version."""

import time
from importlib import metadata


def version() -> str:
    try:
        return metadata.version("heteroshare")
    except metadata.PackageNotFoundError:
        return "0+source"


def boot_s() -> float:
    """Seconds since boot, suspended time included; nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
