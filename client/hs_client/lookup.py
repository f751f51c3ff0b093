"""Whether the name of a controller's host can be looked up: said soon, and by name. The resolver asks a dead server for half a minute, and gRPC asks the resolver twice."""

import socket
import threading

from hs_client.errors import UnavailableError

LOOKUP_S = 5.0


def check(host: str) -> None:
    """Raises UnavailableError."""
    failed: list[OSError] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except OSError as error:
            failed.append(error)

    # A thread of its own, which nobody waits for any longer: the call has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LOOKUP_S)
    if asking.is_alive():
        why = f"no name server has answered within {LOOKUP_S:g} s"
    elif failed:
        why = failed[0].strerror or str(failed[0])
    else:
        return
    raise UnavailableError(
        f"the address of {host} cannot be looked up: {why}; check the name, and the name servers in"
        " /etc/resolv.conf, or say its address instead"
    )
