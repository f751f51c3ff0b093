"""What systemd is told, where it listens (sd_notify)."""

import os
import socket


def notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        try:
            out.connect("\0" + address[1:] if address.startswith("@") else address)
            out.sendall(state.encode())
        except OSError:
            return  # nobody listens: nobody to tell


def watchdog_s() -> float | None:
    """How often systemd wants a sign of life; None: it does not."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 1e6 if microseconds.isdigit() and mine and int(microseconds) else None
