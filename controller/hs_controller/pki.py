"""A certificate authority of the cluster's own: it says who is the controller and who is which node, and nothing else.

By which names everybody is known: `hs_proto.certified`.

Others judge certificates by the time of day, so here it is the wall clock's that counts, not the one that never jumps (clock.py).
"""

import datetime as dt
import hashlib
import os
import shutil
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hs_core.errors import Kind, RefusedError
from hs_daemon.durable import sync_folder, write_new
from hs_daemon.owned import why_not_ours
from hs_daemon.there import exists
from hs_proto.certified import CONTROLLER_DNS, CONTROLLER_URI, RENEW_AFTER, agent_dns, agent_uri

CA_S = 10 * 365.25 * 86_400
LEAF_S = 7 * 86_400.0
BACKDATED_S = 300.0  # clocks of other hosts may be behind
CSR_BYTES = 8192
FILES = ("ca.key", "ca.pem", "server.key", "server.pem")


class PkiError(Exception):
    """The authority cannot be made or used; says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    chain_pem: bytes
    serial: str  # hexadecimal, as Python's ssl shows it
    not_after_s: float


def folder_of(state_dir: Path) -> Path:
    return state_dir / "pki"


def init(state_dir: Path) -> str:
    """Makes the authority and the controller's certificate; its SHA-256. What is there is never overwritten."""
    folder = folder_of(state_dir)
    fresh = folder.with_name(f".pki.{os.getpid()}")
    try:
        if exists(folder):
            raise PkiError(
                f"{folder}: exists already; every node's certificate depends on it, so it is never made anew"
                " (to start over on purpose, stop the controller, remove it, and enroll every node again)"
            )
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := why_not_ours(state_dir):  # no controller would start there
            raise PkiError(f"state_dir: {state_dir}: {why}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        ca = _ca_certificate(key, time.time())
        write_new(fresh / "ca.key", _key_pem(key))
        write_new(fresh / "ca.pem", _pem(ca))
        sync_folder(fresh)
        fresh.rename(folder)  # all of it or nothing
        sync_folder(state_dir)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise PkiError(f"{folder}: cannot be made: {error.strerror or error}") from None
    authority = Authority.load(state_dir)
    assert authority is not None
    authority.renew_own(time.time())
    return authority.sha256


class Authority:
    """Signs for nodes, and keeps the controller's own certificate fresh."""

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._folder = folder
        self._key = key
        self._certificate = certificate
        self.pem = _pem(certificate)
        self.sha256 = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
        self.until_s = certificate.not_valid_after_utc.timestamp()
        self.own_until_s = 0.0
        """When the certificate ends that the controller shows; 0: it shows none."""

    @classmethod
    def load(cls, state_dir: Path) -> "Authority | None":
        """None: `hs-controller init` was not run."""
        folder = folder_of(state_dir)
        if not exists(folder):
            return None
        try:
            _check_ours(folder)
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise PkiError(f"{folder}: cannot be read: {error}; put it back from a backup") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise PkiError(f"{folder}: ca.key does not belong to ca.pem; put both back from a backup")
        return cls(folder, key, certificate)

    # --- for nodes --------------------------------------------------------------------------------------------------

    def issue(self, node: str, csr_pem: bytes, now_s: float) -> Issued:
        """Only the public key is taken from the request; what the certificate says is ours to say. Raises RefusedError."""
        key = _public_key(csr_pem)
        names = [x509.UniformResourceIdentifier(agent_uri(node)), x509.DNSName(agent_dns(node))]
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        if why := self._why_over(now_s):
            raise RefusedError(why, Kind.CONFLICT)
        return self._sign(f"agent {node}"[:64], key, names, usage, now_s)

    # --- for the controller -----------------------------------------------------------------------------------------

    def own_due_s(self, now_s: float) -> float:
        """When the controller's own certificate is to be renewed; 0: there is none that can be used now."""
        try:
            own = x509.load_pem_x509_certificate((self._folder / "server.pem").read_bytes())
            key = serialization.load_pem_private_key((self._folder / "server.key").read_bytes(), None)
        except (OSError, ValueError):
            return 0.0
        if key.public_key() != own.public_key() or not self._signed(own):
            return 0.0
        start_s, end_s = own.not_valid_before_utc.timestamp(), own.not_valid_after_utc.timestamp()
        if not start_s <= now_s < end_s:  # before: the clock was wrong when it was made
            return 0.0
        named = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if not set(_host_names()) <= set(named.get_values_for_type(x509.DNSName)):
            return start_s  # it was made on another host, or under this one's older name: browsers do not take it
        return start_s + RENEW_AFTER * (end_s - start_s)

    def _signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def renew_own(self, now_s: float) -> None:
        """Raises PkiError."""
        if why := self._why_over(now_s):
            raise PkiError(f"{self._folder}: {why}")
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(CONTROLLER_URI)]
        names += [x509.DNSName(name) for name in dict.fromkeys((CONTROLLER_DNS, *_host_names()))]
        issued = self._sign("controller", key.public_key(), names, [ExtendedKeyUsageOID.SERVER_AUTH], now_s)
        files = {"server.key": _key_pem(key), "server.pem": issued.chain_pem}
        try:
            # Both first: where the disk is full, those that are there stay good.
            for name, data in files.items():
                fresh = self._folder / f".{name}"
                fresh.unlink(missing_ok=True)
                write_new(fresh, data)
            # A crash in between leaves two that do not belong together: `own_due_s` sees it.
            for name in files:
                (self._folder / f".{name}").rename(self._folder / name)
            sync_folder(self._folder)
        except OSError as error:
            raise PkiError(f"{self._folder}: cannot be written: {error.strerror or error}") from None

    def server_context(self, protocol: str = "h2") -> ssl.SSLContext:
        """TLS 1.3 only. A certificate is asked for, not demanded: people come with tokens, new nodes with nothing."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # every connection shows its certificate
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=self.pem.decode())
        self.load_own(context)
        context.set_alpn_protocols([protocol])
        return context

    def load_own(self, context: ssl.SSLContext) -> None:
        """Takes up the controller's certificate as it is now, for connections from now on."""
        try:
            context.load_cert_chain(self._folder / "server.pem", self._folder / "server.key")
            own = x509.load_pem_x509_certificate((self._folder / "server.pem").read_bytes())
        except (OSError, ValueError) as error:  # ssl's are OSErrors
            raise PkiError(f"{self._folder}: server.pem and server.key cannot be used: {error}") from None
        self.own_until_s = own.not_valid_after_utc.timestamp()

    def _why_over(self, now_s: float) -> str:
        """Why nothing can be signed any more; empty: it can."""
        if now_s < self.until_s:
            return ""
        return (
            f"the cluster's CA ended on {time.ctime(self.until_s)} (the clock of the controller's host says {time.ctime(now_s)}):"
            " a new one is needed, docs/security.md says how"
        )

    def _sign(
        self,
        subject: str,
        key: ec.EllipticCurvePublicKey,
        names: list[x509.GeneralName] | list[x509.UniformResourceIdentifier | x509.DNSName],
        usage: list[x509.ObjectIdentifier],
        now_s: float,
    ) -> Issued:
        end_s = min(now_s + LEAF_S, self.until_s)
        certificate = (
            _builder(subject, key, now_s - BACKDATED_S, end_s)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return Issued(
            chain_pem=_pem(certificate) + self.pem,
            serial=f"{certificate.serial_number:X}",
            not_after_s=certificate.not_valid_after_utc.timestamp(),
        )


# --- parts --------------------------------------------------------------------------------------------------------------


def _check_ours(folder: Path) -> None:
    """Whoever can change what is in it is whom they like. Raises PkiError and OSError."""
    files = [file for name in FILES if exists(file := folder / name)]
    for path in (folder, *files):
        why = why_not_ours(path)
        if why:
            raise PkiError(f"{path}: {why}")
        if path.suffix == ".key" and path.stat().st_mode & 0o077:
            raise PkiError(f"{path}: can be read by others; chmod 600 it")


def _public_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    if len(csr_pem) > CSR_BYTES:
        raise RefusedError(f"csr_pem: {len(csr_pem)} bytes; at most {CSR_BYTES} were expected")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        proven = request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature) as error:
        raise RefusedError(f"csr_pem: is no certificate request ({error})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RefusedError("csr_pem: an elliptic curve key on P-256 was expected")
    if not proven:
        raise RefusedError("csr_pem: is not signed with the key that it names")
    return key


def _ca_certificate(key: ec.EllipticCurvePrivateKey, now_s: float) -> x509.Certificate:
    builder = _builder("HeteroShare cluster CA", key.public_key(), now_s - BACKDATED_S, now_s + CA_S)
    return (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "HeteroShare cluster CA")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: str, key: ec.EllipticCurvePublicKey, start_s: float, end_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(start_s, dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(end_s, dt.UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host_names() -> tuple[str, ...]:
    """So that tools which know nothing of our names can check it, too."""
    names = (socket.gethostname(), "localhost")
    return tuple(name for name in names if name.isascii() and name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
