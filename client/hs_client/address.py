"""Where the controller is, and how it is known: what was asked for, else the embedded cluster, the login, this machine's own."""

import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hs_client import login
from hs_client.errors import InvalidError

SYSTEM_SOCKET = "/run/heteroshare/controller.sock"
CLUSTER_FILE = "cluster.json"
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    target: str  # as gRPC has it: "unix:/path" or "host:port"
    token: str = ""
    ca: str = ""  # PEM: what the controller's certificate is checked against; TLS where there is one
    origin: str  # for messages: where we know it from
    warning: str = ""  # for people: what is to be mended, though it can be used

    @property
    def socket(self) -> Path | None:
        return Path(self.target.removeprefix("unix:")) if self.target.startswith("unix:") else None


def default_state() -> Path:
    """The embedded cluster's folder. Raises InvalidError where HS_STATE names something else."""
    said = os.environ.get("HS_STATE")
    folder = Path(said or Path.home() / ".local/state/heteroshare").expanduser().absolute()
    if said and folder.exists() and not folder.is_dir():
        raise InvalidError(f"HS_STATE={said!r}: expected a folder, as `hsctl up` makes it")
    return folder


def embedded_socket(state: Path) -> str | None:
    """The socket of the cluster that `hsctl up` started with this folder, if it is there."""
    try:
        socket = json.loads((state / CLUSTER_FILE).read_text())["socket"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return socket if isinstance(socket, str) and Path(socket).is_socket() else None


def resolve(
    controller: str | None = None, token_file: str | None = None, ca_file: str | None = None
) -> Address:
    """Flag, then HS_CONTROLLER, then the embedded cluster, then the login, then the system's socket.

    Raises InvalidError also where `token_file` or `ca_file` would say nothing: on a socket one is known by one's account, and acts as somebody else than the token's owner.
    """
    found = _resolve(controller, token_file, ca_file)
    if token_file and found.socket is not None:
        raise InvalidError(
            f"--token-file: expected with HOST:PORT only; on {found.target} ({found.origin}) you are known by your account"
        )
    if ca_file and not found.ca:
        raise InvalidError(f"--ca: expected with HOST:PORT only; {found.target} ({found.origin}) is not TLS")
    return found


def _resolve(controller: str | None, token_file: str | None, ca_file: str | None) -> Address:
    asked = controller or os.environ.get("HS_CONTROLLER")
    if asked:
        return _asked(asked, "--controller" if controller else "HS_CONTROLLER", token_file, ca_file)
    state = default_state()
    if socket := embedded_socket(state):
        return Address(target=f"unix:{socket}", origin=f"the cluster in {state}")
    known = login.read()
    if known is not None:
        return _asked(known.controller, f"the login in {login.file()}", token_file, ca_file)
    missed = f", as no cluster is up in HS_STATE={state}" if os.environ.get("HS_STATE") else ""
    return Address(target=f"unix:{SYSTEM_SOCKET}", origin=f"the default{missed}")


def _asked(asked: str, origin: str, token_file: str | None, ca_file: str | None) -> Address:
    if asked.startswith(("unix:", "/")):
        return Address(target=_socket(asked, origin), origin=origin)
    token_file = token_file or os.environ.get("HS_TOKEN_FILE")
    token, warning = (login.token_in(token_file), login.seen_by_all(token_file)) if token_file else ("", "")
    if asked.startswith("http://"):
        host, port = split(asked.removeprefix("http://").rstrip("/"), origin)
        if not is_loopback(host):
            raise InvalidError(
                f"{origin}: {asked!r}: expected {host}:{port}, which is TLS: plaintext (http://) is for loopback only"
            )
        return Address(target=f"{host}:{port}", token=token, origin=origin, warning=warning)
    asked = asked.removeprefix("https://").rstrip("/")
    host, port = split(asked, origin)
    ca_file = ca_file or os.environ.get("HS_CA")
    ca = login.ca_in(ca_file) if ca_file else ""
    known = login.read()
    if known is not None and known.controller == f"{host}:{port}":
        return Address(
            target=known.controller,
            token=token or known.token,
            ca=ca or known.ca,
            origin=origin,
            warning=warning,
        )
    if not ca:
        raise InvalidError(
            f"{origin}: {asked!r}: its certificate cannot be checked: expected `hsctl login {host}:{port}` before, or --ca FILE"
        )
    return Address(target=f"{host}:{port}", token=token, ca=ca, origin=origin, warning=warning)


def _socket(asked: str, origin: str) -> str:
    path = asked.removeprefix("unix:").removeprefix("//") if asked.startswith("unix:") else asked
    if not path.startswith("/"):
        raise InvalidError(f"{origin}: {asked!r}: expected an absolute path after unix:")
    return f"unix:{path}"


def split(asked: str, origin: str) -> tuple[str, int]:
    """`host:port`, the host as it was written."""
    host, colon, port = asked.rpartition(":")
    # Python raises UnicodeError for a name with a part that is empty or longer, no OSError.
    is_host = _HOST.fullmatch(host) and all(0 < len(part) < 64 for part in host.removesuffix(".").split("."))
    if not (colon and is_host and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise InvalidError(
            f"{origin}: {asked!r}: expected unix:/path/to/controller.sock or HOST:PORT, e.g. gpu-head:7443"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
