"""What a controller presents: its CA by hash, its certificate's names and end. Looked at before anything is trusted."""

import contextlib
import hashlib
import hmac
import re
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any

from hs_client import lookup
from hs_client.address import split
from hs_client.errors import InvalidError, NotAllowedError, UnavailableError
from hs_proto.certified import CONTROLLER_DNS, CONTROLLER_URI

_TIMEOUT_S = 10.0
_ANOTHER_DAY = {9, 10}  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    target: str
    ca_pem: str
    ca_sha256: str
    names: tuple[str, ...]  # DNS names and addresses
    uris: tuple[str, ...]
    not_after: float
    ca_not_after: float
    protocol: str

    @property
    def is_controller(self) -> bool:
        return self.uris == (CONTROLLER_URI,) and CONTROLLER_DNS in self.names


def sha256_of(ca_pem: str) -> str:
    """As `openssl x509 -outform der | sha256sum` has it."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca_pem.strip())).hexdigest()


def look(target: str, ca_pem: str = "") -> Presented:
    """Two handshakes: one for the chain, another that checks the chain against the CA (its own, unless one is given)."""
    chain = _chain(target)
    ca = ca_pem or ssl.DER_cert_to_PEM_cert(chain[-1])
    # Not `create_default_context`: what that lets pass depends on the Python. As strict as the controller is itself.
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    trusting.load_verify_locations(cadata=ca)
    trusting.check_hostname = False
    trusting.minimum_version = ssl.TLSVersion.TLSv1_3
    with _connected(target, trusting) as opened:
        leaf: Any = opened.getpeercert()
        protocol = opened.version() or ""
    names = leaf.get("subjectAltName", ())
    return Presented(
        target=target,
        ca_pem=ca,
        ca_sha256=sha256_of(ca),
        names=tuple(value for kind, value in names if kind in {"DNS", "IP Address"}),
        uris=tuple(value for kind, value in names if kind == "URI"),
        not_after=ssl.cert_time_to_seconds(leaf["notAfter"]),
        ca_not_after=_end_of_ca(trusting),
        protocol=protocol,
    )


def _end_of_ca(context: ssl.SSLContext) -> float:
    (ca,) = context.get_ca_certs()
    return ssl.cert_time_to_seconds(str(ca["notAfter"]))


def _chain(target: str) -> list[bytes]:
    """The certificates in DER, the controller's own first. Nothing is believed of them here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _connected(target, context) as opened:
        public = getattr(opened, "get_unverified_chain", None)  # from Python 3.13 on
        if public is not None:
            found = list(public())
        else:
            inner: Any = opened._sslobj  # noqa: SLF001 — the same, before it was public
            found = [ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in inner.get_unverified_chain()]
    if len(found) < 2:
        raise InvalidError(
            f"{target}: the controller presents its own certificate only: expected its CA with --ca FILE"
        )
    return found


@contextlib.contextmanager
def _connected(target: str, context: ssl.SSLContext) -> Any:
    host, port = split(target, "address")
    lookup.check(host)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), port), timeout=_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as opened,
        ):
            if opened.selected_alpn_protocol() != "h2":
                raise UnavailableError(f"{target}: this port is for browsers, not the controller's `listen`")
            yield opened
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _ANOTHER_DAY:
            raise NotAllowedError(
                f"{target}: {error.verify_message} by the clock of this machine, which says {time.ctime()}"
            ) from None
        raise NotAllowedError(
            f"{target}: its certificate is not of that CA: {error.verify_message}"
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise UnavailableError(
            f"no controller answers at {target} by TLS: {getattr(error, 'strerror', None) or error}"
        ) from None


def hash_of(text: str) -> str:
    """As a person types it: with colons or not, in capitals or not."""
    digits = re.sub(r"^sha256:|:", "", text.strip().lower().removeprefix("sha256:"))
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise InvalidError(f"--ca-sha256 {text!r}: expected 64 hexadecimal digits")
    return digits


def check_hash(seen: Presented, expected: str) -> None:
    digits = hash_of(expected)
    if not hmac.compare_digest(digits, seen.ca_sha256):
        raise NotAllowedError(
            f"{seen.target}: its CA has SHA-256 {seen.ca_sha256}: expected {digits}; somebody else may be answering there"
        )
