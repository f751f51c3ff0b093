"""Where the controller is: what was asked for, else the embedded cluster that is up, else this machine's own."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from hs_client.errors import InvalidError

SYSTEM_SOCKET = "/run/heteroshare/controller.sock"
CLUSTER_FILE = "cluster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    target: str  # as gRPC has it: "unix:/path" or "host:port"
    token: str = ""
    origin: str  # for messages: where we know it from

    @property
    def socket(self) -> Path | None:
        return Path(self.target.removeprefix("unix:")) if self.target.startswith("unix:") else None


def default_state() -> Path:
    """The embedded cluster's folder."""
    return (
        Path(os.environ.get("HS_STATE") or Path.home() / ".local/state/heteroshare").expanduser().absolute()
    )


def embedded_socket(state: Path) -> str | None:
    """The socket of the cluster that `hsctl up` started with this folder, if it is there."""
    try:
        socket = json.loads((state / CLUSTER_FILE).read_text())["socket"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return socket if isinstance(socket, str) and Path(socket).is_socket() else None


def resolve(controller: str | None = None, token_file: str | None = None) -> Address:
    """Flag, then HS_CONTROLLER, then the embedded cluster, then the system's socket."""
    asked = controller or os.environ.get("HS_CONTROLLER")
    if asked:
        origin = "--controller" if controller else "HS_CONTROLLER"
        return Address(target=_target(asked, origin), token=_token(asked, token_file), origin=origin)
    state = default_state()
    if socket := embedded_socket(state):
        return Address(target=f"unix:{socket}", origin=f"the cluster in {state}")
    return Address(target=f"unix:{SYSTEM_SOCKET}", origin="the default")


def _target(asked: str, origin: str) -> str:
    if asked.startswith("unix:"):
        path = asked.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise InvalidError(f"{origin}: {asked!r}: expected an absolute path after unix:")
        return f"unix:{path}"
    if asked.startswith("/"):
        return f"unix:{asked}"
    host, colon, port = asked.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise InvalidError(f"{origin}: {asked!r}: expected unix:/path/to/controller.sock or HOST:PORT")
    if host.strip("[]") not in {"127.0.0.1", "::1", "localhost"}:
        raise InvalidError(
            f"{origin}: {asked!r}: expected a loopback address (127.0.0.1, ::1, localhost); a controller on another "
            "machine is reached through its unix socket forwarded by ssh (ssh -L /tmp/hs.sock:/run/heteroshare/controller.sock)"
        )
    return asked


def _token(asked: str, token_file: str | None) -> str:
    name = token_file or os.environ.get("HS_TOKEN_FILE")
    if not name or asked.startswith(("unix:", "/")):
        return ""
    try:
        token = Path(name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"token file {name!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not token or len(token) > 4096 or any(c.isspace() for c in token):
        raise InvalidError(f"token file {name!r}: expected one token and nothing else")
    return token
