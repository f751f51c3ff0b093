"""How a host gets its first certificate: with a token, from the controller that the administrator named by its CA."""

import contextlib
import hashlib
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import hs_daemon  # noqa: F401 - before gRPC, whose own lines it stops
from hs_daemon.there import exists

import grpc  # isort: skip
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import credentials
from hs_agent.config import split_address
from hs_agent.identity import Identity, fill, fresh, parsed
from hs_core.errors import Kind, RefusedError
from hs_proto.v1 import controller_pb2, controller_pb2_grpc

CONNECT_S = 20.0


def join(
    *, controller: str, token: str, ca_sha256: str, name: str, folder: Path, replace: bool = False
) -> Identity:
    """Raises RefusedError; then what is on the disk is as it was."""
    with contextlib.suppress(PermissionError):  # who may not look there may not write there either
        if exists(folder) and not replace:
            raise RefusedError(
                f"{folder}: this host has joined already; --replace to join anew", Kind.CONFLICT
            )
    ca_pem = _pinned_ca(controller, ca_sha256)
    key = ec.generate_private_key(ec.SECP256R1())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with fresh(folder, key_pem) as beside:
        chain_pem = _certified(controller, token, name, key, ca_pem)
        identity = parsed(folder, key_pem, chain_pem, ca_pem)
        if identity.node != name:
            raise RefusedError(f"{controller}: answered with a certificate of {identity.node}, not of {name}")
        fill(beside, identity)
    return identity


def _certified(
    controller: str, token: str, name: str, key: ec.EllipticCurvePrivateKey, ca_pem: bytes
) -> bytes:
    """Uses the token up."""
    request = controller_pb2.JoinRequest(node=name, token=token, csr_pem=credentials.csr(name, key))
    options = [*credentials.OPTIONS, credentials.expects_controller()]
    with grpc.secure_channel(controller, grpc.ssl_channel_credentials(ca_pem), options) as channel:
        try:
            answer = controller_pb2_grpc.IdentityStub(channel).Join(request, timeout=credentials.ASK_S)
        except grpc.RpcError as error:
            raise credentials.refusal(error, controller) from None
    if _sha256(answer.ca_pem) != _sha256(ca_pem):
        raise RefusedError(f"{controller}: answered with a certificate of another CA", Kind.NOT_ALLOWED)
    return bytes(answer.chain_pem)


def _pinned_ca(controller: str, ca_sha256: str) -> bytes:
    """The CA that the controller shows, if it is the one that the administrator named: trust on no first use."""
    wanted = ca_sha256.lower().replace(":", "")
    if len(wanted) != 64 or not all(c in "0123456789abcdef" for c in wanted):
        raise RefusedError(f"--ca-sha256 {ca_sha256!r}: 64 hexadecimal digits were expected")
    place = split_address(controller)
    if place is None or not place[1]:
        raise RefusedError(f"--controller {controller!r}: host:port was expected, such as gpu-head:7443")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is believed yet: the chain is only looked at
    try:
        with (
            socket.create_connection(place, CONNECT_S) as plain,
            context.wrap_socket(plain) as secure,
        ):
            chain, protocol = _chain(secure), secure.selected_alpn_protocol()
    except ssl.SSLError as error:
        raise RefusedError(
            f"{controller}: does not speak TLS 1.3 ({error.reason or error}); is it the controller's `listen`?",
            Kind.UNAVAILABLE,
        ) from None
    except OSError as error:
        raise RefusedError(f"{controller}: cannot be reached: {error}", Kind.UNAVAILABLE) from None
    found = [hashlib.sha256(der).hexdigest() for der in chain]
    if wanted not in found:
        raise RefusedError(
            f"{controller}: its CA has SHA-256 {found[-1] if found else 'none'}, not {wanted}: it is another cluster's"
            " controller, or somebody in between",
            Kind.NOT_ALLOWED,
        )
    if protocol != "h2":
        raise RefusedError(
            f"{controller}: this port is for browsers, not the controller's `listen`", Kind.UNAVAILABLE
        )
    _check_clock(controller, x509.load_der_x509_certificate(chain[0]))
    return ssl.DER_cert_to_PEM_cert(chain[found.index(wanted)]).encode()


def _check_clock(controller: str, shown: x509.Certificate) -> None:
    """A host that was off for long, or has a new mainboard, believes nobody."""
    begins_s, ends_s = shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
    if not begins_s <= time.time() < ends_s:
        raise RefusedError(
            f"{controller}: its certificate is good from {time.ctime(begins_s)} until {time.ctime(ends_s)}, but the clock of"
            f" this host says {time.ctime()}: set the clock",
            Kind.UNAVAILABLE,
        )


def _chain(secure: ssl.SSLSocket) -> list[bytes]:
    """All certificates that the other end sent, as DER."""
    if hasattr(secure, "get_unverified_chain"):  # Python 3.13
        return [bytes(one) for one in secure.get_unverified_chain()]
    inner: Any = secure._sslobj  # type: ignore[attr-defined]  # noqa: SLF001 — the same call, before it was public
    return [ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in inner.get_unverified_chain()]


def _sha256(pem: bytes) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()
