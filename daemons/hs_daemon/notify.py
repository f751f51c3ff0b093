"""systemd's notification socket: ready, still alive, stopping, and how it is in a line. Nothing happens where there is none.

systemd itself says neither wrong, so what cannot be used is told once in the log: a daemon that it waits for in vain, it ends without a word of why.
"""

import functools
import os
import socket

from hs_core.digits import whole
from hs_daemon.journal import complain

MOST_USEC = 2**63 - 1


def notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), address)
    except (OSError, ValueError) as error:  # a zero byte, or longer than the system's limit
        _complain_once(f"NOTIFY_SOCKET={os.environ['NOTIFY_SOCKET']!r}: systemd hears nothing of us: {error}")


def status(text: str, *news: str) -> None:
    """What `systemctl status` shows of us from now on, when we have ended as well. `news` is what else is so: READY=1, say."""
    notify("\n".join((*news, f"STATUS={' '.join(text.split())}")))


def give_up(name: str, why: object) -> None:
    """Why daemon `name` does not start, or ends: to people, to the journal, and in its status, as systemd's lines about jobs that go on push the journal's out of sight."""
    complain(f"{name}: {why}")
    status(str(why))


def watchdog_s() -> float | None:
    """How often systemd wants to hear from us, at the latest; None: it does not watch."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    said = os.environ.get("WATCHDOG_USEC", "")
    if not said:
        return None
    usec = whole(said, MOST_USEC)
    if usec is None:
        _complain_once(f"WATCHDOG_USEC={said!r}: expected microseconds; no watchdog is heard from")
    return usec / 1e6 if usec else None


@functools.cache
def _complain_once(text: str) -> None:
    complain(text)
