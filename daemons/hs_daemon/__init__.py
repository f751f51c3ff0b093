"""What both daemons do alike on their hosts: logs, systemd's notification socket, the boot clock, their version, their host's name."""

import os
import socket
import time
from functools import cache
from importlib import metadata

# Read when gRPC is loaded. Its own lines (one a connection that is no TLS) are neither JSON nor have a level; what fails comes as exceptions.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Its own resolver goes by one line of /etc/hosts for a name and by none of /etc/nsswitch.conf: a name would be another machine than to all others.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")


@cache
def version() -> str:
    """It is asked for again and again, also where there is no descriptor left to read it with."""
    try:
        return metadata.version("heteroshare")
    except metadata.PackageNotFoundError:
        return "0+source"


def host_name() -> str:
    """As other hosts may know this one. Where /etc/hosts has its name in the line of `localhost`, its full name is that."""
    found = socket.getfqdn()
    return socket.gethostname() if found.partition(".")[0].endswith("localhost") else found


def boot_s() -> float:
    """Seconds since boot, suspended time included; nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
