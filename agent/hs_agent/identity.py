"""Who this host is to the others: its key, its certificate and the cluster's CA, as they lie on its disk."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from hs_agent.config import DEFAULT_FILE, name_in, state_dir_in
from hs_agent.table import Table
from hs_core.digits import whole
from hs_core.errors import Kind, RefusedError
from hs_core.names import HostName
from hs_daemon import config_file
from hs_daemon.durable import sync_folder, write_new
from hs_daemon.owned import why_not_ours
from hs_daemon.there import exists
from hs_proto.certified import RENEW_AFTER, node_of

FOLDER = "identity"  # in the state folder
KEY, CERTIFICATE, CA = "key.pem", "cert.pem", "ca.pem"
ROOM, ROOM_BYTES = "room", 16 << 10  # for certificates that are yet to come


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
    there = _lies_in(folder)
    if not exists(there):
        return None
    try:
        for path in (there, *(there / name for name in (KEY, CERTIFICATE, CA))):
            if why := why_not_ours(path):
                raise RefusedError(f"{path}: {why}")
        if (there / KEY).stat().st_mode & 0o077:
            raise RefusedError(f"{there / KEY}: can be read by others; chmod 600 it")
        return parsed(folder, *((there / name).read_bytes() for name in (KEY, CERTIFICATE, CA)))
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
        if file != DEFAULT_FILE or exists(file):
            table = config_file.table(file)
    except OSError as error:
        raise RefusedError(f"{file}: cannot be read: {error.strerror}") from None
    except config_file.ConfigFileError as error:
        raise RefusedError(f"{file}: {error}") from None
    top = Table(str(file), "", table)
    return Place(name=name_in(top), folder=state_dir_in(top) / FOLDER)


def parsed(folder: Path, key_pem: bytes, chain_pem: bytes, ca_pem: bytes) -> Identity:
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


# --- put there ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fresh(folder: Path, key_pem: bytes) -> Iterator[Path]:
    """One beside it, with the key and room for the rest: who cannot write there is told before a token is used up."""
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    missing: list[Path] = []  # folders above it, the lowest first
    try:
        missing += [above for above in beside.parents if not exists(above)]
        shutil.rmtree(beside, ignore_errors=True)
        for left in _left_behind(folder):
            shutil.rmtree(left, ignore_errors=True)
        beside.mkdir(mode=0o700, parents=True)
        write_new(beside / KEY, key_pem)
        write_new(beside / ROOM, bytes(ROOM_BYTES))
        yield beside
    except OSError as error:
        raise RefusedError(f"{folder}: cannot be written: {error.strerror or error}", Kind.CONFLICT) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        with contextlib.suppress(OSError):  # where it has come to be, they are not empty
            for above in missing:
                above.rmdir()


def _left_behind(folder: Path) -> Iterator[Path]:
    """By joins that were killed: there are private keys in them."""
    for path in folder.parent.glob(f".{folder.name}.*"):
        pid = whole(path.suffix[1:], 2**31 - 1)
        if pid is not None and not Path(f"/proc/{pid}").exists():
            yield path


def fill(fresh: Path, identity: Identity) -> None:
    """The whole folder appears at once; one that it replaces is there until then."""
    folder = identity.folder
    (fresh / ROOM).unlink()
    write_new(fresh / CERTIFICATE, identity.chain_pem)
    write_new(fresh / CA, identity.ca_pem)
    sync_folder(fresh)
    if exists(folder):
        shutil.rmtree(replaced(folder), ignore_errors=True)
        folder.rename(replaced(folder))
    fresh.rename(folder)
    sync_folder(folder.parent)  # the token is used up: another cannot be had without the administrator
    shutil.rmtree(replaced(folder), ignore_errors=True)


def _lies_in(folder: Path) -> Path:
    """Where it is, or still is after a crash while another one was put in its place."""
    return folder if exists(folder) else replaced(folder)


def replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


def check_key(identity: Identity) -> None:
    """Raises RefusedError."""
    file = _lies_in(identity.folder) / KEY
    try:
        key_pem = file.read_bytes()
    except OSError as error:
        raise RefusedError(f"{file}: cannot be read: {error.strerror or error}") from None
    if key_pem != identity.key_pem:
        raise RefusedError(f"{identity.folder}: this host has joined anew meanwhile", Kind.CONFLICT)


def put_certificate(identity: Identity) -> None:
    """Raises OSError, and RefusedError where that certificate is no longer this host's."""
    folder = _lies_in(identity.folder)
    file = folder / CERTIFICATE
    fresh = file.with_name(f".{CERTIFICATE}")
    check_key(identity)
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    write_new(fresh, identity.chain_pem)
    fresh.rename(file)
    sync_folder(folder)
