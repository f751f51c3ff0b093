"""Who calls: by the kernel's word on a unix socket, by the certificate or the token on the port."""

import contextlib
import hashlib
import hmac
import os
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hs_controller import pki
from hs_controller.accounts import name_of
from hs_controller.config import Config
from hs_controller.permissions import Caller, Role
from hs_controller.refusals import Why, token_id
from hs_controller.sqlite import MAKE_ROOM, NO_ROOM, StoreFullError
from hs_daemon.durable import write_new
from hs_daemon.owned import why_not_ours
from hs_daemon.there import exists
from hs_proto.certified import node_of

Metadata = Sequence[tuple[str, str | bytes]]

NOT_KNOWN = "the token is not known, or has expired or been revoked: `hsctl token create` makes one"
SAY_WHO = "say who you are: `authorization: Bearer …` with a token (hsctl token create)"
ANONYMOUS = Caller(name="somebody unknown", roles=frozenset({Role.ANONYMOUS}), account=False)


class StrangerError(Exception):
    """What was shown to say who it is, is not good (any more)."""

    def __init__(self, text: str, why: Why | None = None, *, who: str = "", token: str = "") -> None:
        """`why` None: nothing was wrong with it. `token`: the id of the one that was shown."""
        super().__init__(text)
        self.why = why
        self.who = who
        self.token = token


class SecretError(Exception):
    """A file with a secret cannot be made or used; the controller does not start."""


class Guest(Protocol):
    """The other end of a connection."""

    whose: str
    """Whom its connections are counted for; empty: the address that it came from."""

    def caller(self, metadata: Metadata) -> Caller:
        """Who makes this call. Raises StrangerError."""


@dataclass(frozen=True, slots=True)
class Known(Guest):
    """All calls on this connection are one account's."""

    who: Caller
    whose: str = ""

    def caller(self, metadata: Metadata) -> Caller:
        del metadata
        return self.who


@dataclass(frozen=True, slots=True)
class TokenHolder(Guest):
    """`authorization: Bearer …` with each call; without it a caller is nobody in particular."""

    find: Callable[[str], Caller | None]
    whose: str = ""

    def caller(self, metadata: Metadata) -> Caller:
        for key, value in metadata:
            if key != "authorization" or not isinstance(value, str):
                continue
            scheme, _, token = value.partition(" ")
            found = self.find(token.strip()) if scheme.lower() == "bearer" else None
            if found is None:
                raise StrangerError(NOT_KNOWN, Why.TOKEN, token=token_id(token.strip()))
            return found
        return ANONYMOUS


@dataclass(frozen=True, slots=True)
class Certified(Guest):
    """A node, by its certificate; asked again at each call whether that still counts."""

    who: Caller
    accepted: Callable[[Caller], str]  # why not; empty: it is
    whose: str = ""

    def caller(self, metadata: Metadata) -> Caller:
        del metadata
        why = self.accepted(self.who)
        if why:
            raise StrangerError(why, Why.CERTIFICATE, who=self.who.name)
        return self.who


def node_guest(certificate: dict[str, Any], accepted: Callable[[Caller], str]) -> Certified | None:
    """Whose certificate it is, as Python's ssl shows one that it has verified; None: no node's."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    node = node_of(uris)
    if node is None:
        return None
    who = Caller(
        name=f"agent {node}",
        roles=frozenset({Role.NODE}),
        account=False,
        node=node,
        serial=f"{int(certificate['serialNumber'], 16):X}",  # as the one who issued it writes it
        issued_s=ssl.cert_time_to_seconds(certificate["notBefore"]) + pki.BACKDATED_S,
        until_s=float(ssl.cert_time_to_seconds(certificate["notAfter"])),
    )
    return Certified(who, accepted, f"node {node}")


def account(uid: int, config: Config) -> Caller:
    """The account behind a connection. Its roles come from the kernel's word and the configuration alone."""
    known = name_of(uid)
    name = known or f"uid-{uid}"
    roles = {Role.USER}
    if uid in {0, os.geteuid()}:
        roles |= {Role.ADMIN, Role.AGENT}
    elif known in config.admins:
        roles |= {Role.ADMIN}
    return Caller(name=name, roles=frozenset(roles), account=known is not None)


def administrators(config: Config) -> frozenset[str]:
    """The accounts to which everything is allowed that come through the socket."""
    return frozenset({*config.admins, *filter(None, map(name_of, (0, os.geteuid())))})


def token_user(name: str, config: Config) -> Caller:
    """Who shows a token that was made for this user."""
    roles = {Role.USER, Role.ADMIN} if name in config.admins else {Role.USER}
    return Caller(name=name, roles=frozenset(roles))


# --- secrets in the state folder ----------------------------------------------------------------------------------------

ADMIN = Caller(name="admin", roles=frozenset({Role.ADMIN, Role.AGENT}), account=False)


@dataclass(frozen=True, slots=True)
class AdminToken:
    """In development the text of `<state>/admin.token` is as good as being root."""

    digest: bytes

    def caller(self, token: str) -> Caller | None:
        offered = hashlib.sha256(token.encode()).digest()
        return ADMIN if hmac.compare_digest(offered, self.digest) else None


def admin_token(state_dir: Path) -> AdminToken:
    return AdminToken(hashlib.sha256(secret(state_dir / "admin.token").encode()).digest())


def secret(file: Path) -> str:
    """What the file holds; made when there is none."""
    try:
        if not exists(file):
            fresh = file.with_name(f".{file.name}.{os.getpid()}")
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            write_new(fresh, f"{secrets.token_urlsafe(32)}\n".encode())
            fresh.rename(file)
        text = file.read_text(encoding="ascii").strip()
        mode, why = file.stat().st_mode, why_not_ours(file)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise StoreFullError(f"{file}: cannot be made: {MAKE_ROOM}") from None
        raise SecretError(f"{file}: {error}") from None
    if len(text) < 20:
        raise SecretError(f"{file}: holds no token (at least 20 characters); remove it to have one made")
    if why:
        raise SecretError(f"{file}: {why}")
    if mode & 0o077:
        raise SecretError(f"{file}: can be read by others; chmod 600 it, or remove it to have a new one made")
    return text


def derived(text: str, use: str) -> str:
    """A secret of its own for each use."""
    return hmac.digest(text.encode(), use.encode(), hashlib.sha256).hex()
