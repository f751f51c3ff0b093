"""Who this host is to the others: its key, its certificate and the cluster's CA; how it gets them, and keeps them fresh.

TLS 1.3: the controller's door speaks nothing older. gRPC has no switch for it between agents, but takes a list of cipher suites for
TLS 1.2 alone; given one that needs RSA keys, which nobody has here, TLS 1.2 has nothing left to agree on. The package sets that list.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hs_daemon  # noqa: F401 - before gRPC, whose own lines it stops

import grpc  # isort: skip
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hs_agent.config import DEFAULT_FILE, name_in, split_address, state_dir_in
from hs_agent.table import Table
from hs_core.digits import whole
from hs_core.errors import Kind, RefusedError
from hs_core.names import HostName
from hs_daemon import boot_s, config_file
from hs_daemon.durable import sync_folder, write_new
from hs_daemon.owned import why_not_ours
from hs_proto.certified import CONTROLLER_DNS, RENEW_AFTER, agent_dns, node_of
from hs_proto.v1 import controller_pb2, controller_pb2_grpc

log = structlog.get_logger("identity")

FOLDER = "identity"  # in the state folder
KEY, CERTIFICATE, CA = "key.pem", "cert.pem", "ca.pem"
ROOM, ROOM_BYTES = "room", 16 << 10  # for certificates that are yet to come
RETRY_S = (5.0, 600.0)
CALL_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    node: HostName
    folder: Path
    key_pem: bytes
    chain_pem: bytes
    ca_pem: bytes
    not_before_s: float
    not_after_s: float

    @property
    def renew_after_s(self) -> float:
        """Since it was issued."""
        return RENEW_AFTER * (self.not_after_s - self.not_before_s)

    @property
    def renew_at_s(self) -> float:
        return self.not_before_s + self.renew_after_s

    def why_not_good(self, now_s: float) -> str:
        """What to tell people; empty: it is good now."""
        anew = (
            f"`hsctl node enroll {self.node}` where an administrator is, then `hs-agent join --replace` here"
        )
        if now_s < self.not_before_s:
            return (
                f"the clock of this host says {time.ctime(now_s)}, but its certificate begins on"
                f" {time.ctime(self.not_before_s)}: set the clock; if it is right now, and was ahead then: {anew}"
            )
        if now_s < self.not_after_s:
            return ""
        return f"this host's certificate ended on {time.ctime(self.not_after_s)}: {anew}"


def load_identity(folder: Path) -> Identity | None:
    """None: this host has not joined. Raises RefusedError where what is there cannot be used."""
    if not folder.exists():
        folder = _replaced(folder)  # a crash while another one was put in its place
    if not folder.exists():
        return None
    try:
        for path in (folder, *(folder / name for name in (KEY, CERTIFICATE, CA))):
            if why := why_not_ours(path):
                raise RefusedError(f"{path}: {why}")
        if (folder / KEY).stat().st_mode & 0o077:
            raise RefusedError(f"{folder / KEY}: can be read by others; chmod 600 it")
        return _identity(folder, *((folder / name).read_bytes() for name in (KEY, CERTIFICATE, CA)))
    except OSError as error:
        todo = "join the cluster anew" if isinstance(error, FileNotFoundError) else "is this root?"
        raise RefusedError(f"{error.filename}: cannot be read: {error.strerror}; {todo}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a host is called, and where its identity lies."""

    name: str
    folder: Path


def configured(file: Path) -> Place:
    """As the agent's configuration has it. Nothing else of that needs to be right yet, and the usual one may be missing. Raises RefusedError."""
    table: Mapping[str, object] = {}
    try:
        if file != DEFAULT_FILE or file.exists():
            table = config_file.table(file)
    except OSError as error:
        raise RefusedError(f"{file}: cannot be read: {error.strerror}") from None
    except config_file.ConfigFileError as error:
        raise RefusedError(f"{file}: {error}") from None
    top = Table(str(file), "", table)
    return Place(name=name_in(top), folder=state_dir_in(top) / FOLDER)


def _identity(folder: Path, key_pem: bytes, chain_pem: bytes, ca_pem: bytes) -> Identity:
    try:
        key = serialization.load_pem_private_key(key_pem, None)
        own = x509.load_pem_x509_certificate(chain_pem)
        ca = x509.load_pem_x509_certificate(ca_pem)
        own.verify_directly_issued_by(ca)
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception as error:  # the library has a class for each way in which a file can be wrong
        raise RefusedError(
            f"{folder}: its key and certificates cannot be used ({error}); join anew"
        ) from None
    if key.public_key() != own.public_key():
        raise RefusedError(f"{folder}: {KEY} does not belong to {CERTIFICATE}; join anew")
    node = node_of(names.get_values_for_type(x509.UniformResourceIdentifier))
    if node is None:
        raise RefusedError(f"{folder}: {CERTIFICATE} is no agent's; join anew")
    return Identity(
        node=HostName(node),
        folder=folder,
        key_pem=key_pem,
        chain_pem=chain_pem,
        ca_pem=ca_pem,
        not_before_s=own.not_valid_before_utc.timestamp(),
        not_after_s=own.not_valid_after_utc.timestamp(),
    )


# --- what gRPC wants ----------------------------------------------------------------------------------------------------


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """For channels to the controller and to peers. They do not follow a renewal: build new channels from the new identity."""
    return grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.chain_pem)


def expects_controller() -> tuple[str, str]:
    """A channel option: the other end must have the controller's certificate, whatever address was dialled."""
    return "grpc.ssl_target_name_override", CONTROLLER_DNS


def expects_peer(node: HostName) -> tuple[str, str]:
    """A channel option: the other end must have this node's certificate."""
    return "grpc.ssl_target_name_override", agent_dns(node)


def server_credentials(
    identity: Identity, newest: Callable[[], Identity] | None = None
) -> grpc.ServerCredentials:
    """For the peers' door: both sides show a certificate of this cluster. `newest` is asked at each handshake."""

    def configuration(one: Identity) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(one.key_pem, one.chain_pem)], one.ca_pem)

    shown = identity

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        now = newest() if newest is not None else identity
        if now is shown:
            return None
        shown = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        configuration(identity),
        changed,  # type: ignore[arg-type]  # None, "as before", is in gRPC's documentation but not in the stubs
        require_client_authentication=True,
    )


def peer_node(auth_context: Mapping[str, Sequence[bytes]]) -> HostName | None:
    """The node at the other end of a call (`context.auth_context()`); None: it is no agent."""
    node = node_of([uri.decode() for uri in auth_context.get("peer_uri", ())])
    return HostName(node) if node is not None else None


# --- joining ------------------------------------------------------------------------------------------------------------


def join(
    *, controller: str, token: str, ca_sha256: str, name: str, folder: Path, replace: bool = False
) -> Identity:
    """Raises RefusedError; then what is on the disk is as it was."""
    with contextlib.suppress(PermissionError):  # who may not look there may not write there either
        if folder.exists() and not replace:
            raise RefusedError(
                f"{folder}: this host has joined already; --replace to join anew", Kind.CONFLICT
            )
    ca_pem = _pinned_ca(controller, ca_sha256)
    key = ec.generate_private_key(ec.SECP256R1())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with _fresh(folder, key_pem) as fresh:
        chain_pem = _certified(controller, token, name, key, ca_pem)
        identity = _identity(folder, key_pem, chain_pem, ca_pem)
        if identity.node != name:
            raise RefusedError(f"{controller}: answered with a certificate of {identity.node}, not of {name}")
        _fill(fresh, identity)
    return identity


def _certified(
    controller: str, token: str, name: str, key: ec.EllipticCurvePrivateKey, ca_pem: bytes
) -> bytes:
    """Uses the token up."""
    request = controller_pb2.JoinRequest(node=name, token=token, csr_pem=_csr(name, key))
    options = [*_OPTIONS, expects_controller()]
    with grpc.secure_channel(controller, grpc.ssl_channel_credentials(ca_pem), options) as channel:
        try:
            answer = controller_pb2_grpc.IdentityStub(channel).Join(request, timeout=CALL_S)
        except grpc.RpcError as error:
            raise _refusal(error, controller) from None
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
            socket.create_connection(place, CALL_S) as plain,
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


def _csr(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64] or "agent")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _sha256(pem: bytes) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()


_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

_KINDS = {
    grpc.StatusCode.PERMISSION_DENIED: Kind.NOT_ALLOWED,
    grpc.StatusCode.UNAUTHENTICATED: Kind.NOT_ALLOWED,
    grpc.StatusCode.INVALID_ARGUMENT: Kind.INVALID,
    grpc.StatusCode.NOT_FOUND: Kind.NOT_FOUND,
    grpc.StatusCode.ABORTED: Kind.CONFLICT,
}


def _refusal(error: grpc.RpcError, controller: str) -> RefusedError:
    return RefusedError(f"{controller}: {error.details()}", _KINDS.get(error.code(), Kind.UNAVAILABLE))


# --- on the disk --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _fresh(folder: Path, key_pem: bytes) -> Iterator[Path]:
    """One beside it, with the key and room for the rest: who cannot write there is told before a token is used up."""
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    missing: list[Path] = []  # folders above it, the lowest first
    try:
        missing += [above for above in fresh.parents if not above.exists()]
        shutil.rmtree(fresh, ignore_errors=True)
        for left in _left_behind(folder):
            shutil.rmtree(left, ignore_errors=True)
        fresh.mkdir(mode=0o700, parents=True)
        write_new(fresh / KEY, key_pem)
        write_new(fresh / ROOM, bytes(ROOM_BYTES))
        yield fresh
    except OSError as error:
        raise RefusedError(f"{folder}: cannot be written: {error.strerror or error}", Kind.CONFLICT) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        with contextlib.suppress(OSError):  # where it has come to be, they are not empty
            for above in missing:
                above.rmdir()


def _left_behind(folder: Path) -> Iterator[Path]:
    """By joins that were killed: there are private keys in them."""
    for path in folder.parent.glob(f".{folder.name}.*"):
        pid = whole(path.suffix[1:], 2**31 - 1)
        if pid is not None and not Path(f"/proc/{pid}").exists():
            yield path


def _fill(fresh: Path, identity: Identity) -> None:
    """The whole folder appears at once; one that it replaces is there until then."""
    folder = identity.folder
    (fresh / ROOM).unlink()
    write_new(fresh / CERTIFICATE, identity.chain_pem)
    write_new(fresh / CA, identity.ca_pem)
    sync_folder(fresh)
    if folder.exists():
        shutil.rmtree(_replaced(folder), ignore_errors=True)
        folder.rename(_replaced(folder))
    fresh.rename(folder)
    sync_folder(folder.parent)  # the token is used up: another cannot be had without the administrator
    shutil.rmtree(_replaced(folder), ignore_errors=True)


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


# --- keeping it fresh ---------------------------------------------------------------------------------------------------


class Keeper:
    """Has the newest identity, and renews it when two thirds of its life are over. The key stays until the host joins anew."""

    def __init__(
        self,
        identity: Identity,
        controller: str,
        changed: Callable[[Identity], None] = lambda _identity: None,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self._controller = controller
        self._changed = changed
        self._now_s = now_s
        self._unwritten = False  # the newest one is not on the disk yet
        self._renewed_s = float("-inf")  # on the boot clock

    @property
    def _left_s(self) -> float:
        """Until it is to be renewed. Where this host's clock is days ahead that is always due: then it counts from when it was issued last."""
        left_s = self.identity.renew_at_s - self._now_s()
        return left_s if left_s > 0 else self._renewed_s + self.identity.renew_after_s - boot_s()

    async def run(self) -> None:
        """Until cancelled. A controller that is away is asked again, sooner at first; so is a disk that is full."""
        pause_s = RETRY_S[0]
        while True:
            left_s = self._left_s
            if left_s > 0 and not self._unwritten:
                await asyncio.sleep(min(left_s, 3600.0))  # the clock may be set meanwhile
                continue
            try:
                if left_s <= 0:
                    await self.renew()
                else:
                    await self._write()
                if not self._unwritten:
                    pause_s = RETRY_S[0]
                    continue
            except RefusedError as refused:
                log.warning("certificate not renewed", why=str(refused), ends_at_s=self.identity.not_after_s)
            except (
                Exception
            ):  # it is asked for again all the same: without one the host is cut off in the end
                log.exception("certificate not renewed", ends_at_s=self.identity.not_after_s)
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 — spread, not secret
            pause_s = min(2 * pause_s, RETRY_S[1])

    def look(self) -> None:
        """Takes up what `hs-agent join --replace` has put on the disk since. Raises RefusedError where it cannot be used."""
        found = load_identity(self.identity.folder)
        if found is not None and found.node == self.identity.node and found.key_pem != self.identity.key_pem:
            self.identity, self._unwritten = found, False
            log.info("joined anew", node=found.node, ends_at_s=found.not_after_s)

    def why_not_good(self) -> str:
        """Empty: it is."""
        return self.identity.why_not_good(self._now_s())

    async def renew(self) -> Identity:
        old = self.identity
        new = _identity(old.folder, old.key_pem, await self._certified(old), old.ca_pem)
        await asyncio.to_thread(_check_key, new)
        self.identity, self._unwritten, self._renewed_s = new, True, boot_s()
        log.info("certificate renewed", node=new.node, ends_at_s=new.not_after_s)
        await self._write()
        self._changed(new)
        return new

    async def _certified(self, old: Identity) -> bytes:
        key = serialization.load_pem_private_key(old.key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        options = [*_OPTIONS, expects_controller()]
        async with grpc.aio.secure_channel(self._controller, channel_credentials(old), options) as channel:
            stub = controller_pb2_grpc.IdentityStub(channel)
            request = controller_pb2.RenewRequest(csr_pem=_csr(old.node, key))
            try:
                answer = await stub.Renew(request, timeout=CALL_S)
            except grpc.RpcError as error:
                raise _refusal(error, self._controller) from None
        return bytes(answer.chain_pem)

    async def _write(self) -> None:
        """What cannot be written is in force all the same: a full disk is to cut nobody off, nor the controller to be asked for one after the other."""
        try:
            await asyncio.to_thread(_put_certificate, self.identity)
        except OSError as error:
            file = self.identity.folder / CERTIFICATE
            log.warning(
                "certificate not written",
                file=str(file),
                why=error.strerror or str(error),
                todo="make room: until then an agent that is started again has the one before",
            )
        else:
            self._unwritten = False


def _check_key(identity: Identity) -> None:
    """Raises RefusedError."""
    try:
        key_pem = (identity.folder / KEY).read_bytes()
    except OSError as error:
        raise RefusedError(f"{identity.folder / KEY}: cannot be read: {error.strerror or error}") from None
    if key_pem != identity.key_pem:
        raise RefusedError(f"{identity.folder}: this host has joined anew meanwhile", Kind.CONFLICT)


def _put_certificate(identity: Identity) -> None:
    """Raises OSError, and RefusedError where that certificate is no longer this host's."""
    file = identity.folder / CERTIFICATE
    fresh = file.with_name(f".{CERTIFICATE}")
    _check_key(identity)
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    write_new(fresh, identity.chain_pem)
    fresh.rename(file)
    sync_folder(identity.folder)
