"""What all services share: the loop that they ask, and how a request is told from a repeated one."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import grpc

from hs_controller import permissions
from hs_controller.intake import Key
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.permissions import Caller, Reach
from hs_controller.rows import JoinToken, Kept, UserToken
from hs_core.errors import RefusedError
from hs_core.facts import Fact
from hs_core.names import HostName, UserName
from hs_proto.v1 import controller_pb2_grpc

KEY_CHARS = 128
DAY_S = 86_400.0

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in the stubs only


class Calls(controller_pb2_grpc.HeteroShareServicer):
    def __init__(self, loop: Loop, hub: Hub) -> None:
        self._loop = loop
        self._hub = hub


def key_of(caller: Caller, method: str, request: Any) -> Key:
    """What the request is, without its key: sent again, it is the same one."""
    key: str = request.key
    if not key:
        raise RefusedError(
            "key: missing; a mutating call carries an idempotency key (any new text, a UUID say)"
        )
    if len(key) > KEY_CHARS:
        raise RefusedError(f"key: {len(key)} characters; at most {KEY_CHARS} were expected")
    body = type(request)()
    body.CopyFrom(request)
    body.ClearField("key")
    digest = hashlib.sha256(method.encode() + b"\0" + body.SerializeToString(deterministic=True)).digest()
    return Key(caller=f"{'account' if caller.account else 'other'}:{caller.name}", key=key, digest=digest)


def reaches_all(caller: Caller, method: str) -> bool:
    return permissions.reach(caller, f"/hs.v1.HeteroShare/{method}") is Reach.ALL


def seconds(value: float, field: str, most_s: float = math.inf) -> float:
    """Raises RefusedError."""
    if not math.isfinite(value) or value < 0:
        raise RefusedError(f"{field}: {value!r}: seconds from 0 up were expected")
    if value > most_s:
        raise RefusedError(
            f"{field}: {value:.0f} seconds ({value / DAY_S:.4g} days): at most {most_s / DAY_S:g} days were expected"
        )
    return value


def audit(
    now_s: float, kind: str, text: str, *, by: str = "", user: str = "", host: str = "", **data: str | float
) -> Fact:
    """A deed that no machine knows of."""
    return Fact(
        now_s=now_s,
        kind=kind,
        text=text,
        user=UserName(user) if user else None,
        host=HostName(host) if host else None,
        data={**({"by": by} if by else {}), **data},
        deed=True,
    )


def withdrawal(now_s: float, by: str, invitation: JoinToken) -> Kept:
    text = f"{by} took back the invitation {invitation.id} of {invitation.node}"
    fact = audit(now_s, "node-uninvited", text, by=by, host=invitation.node, token=invitation.id)
    return Kept(now_s=now_s, gone=(invitation,), facts=(fact,))


def revocation(now_s: float, by: str, tokens: Iterable[UserToken]) -> Kept:
    rows = tuple(replace(row, revoked=True) for row in tokens)
    facts = tuple(
        audit(
            now_s,
            "token-revoked",
            f"{by} revoked token {row.id} of {row.user}",
            by=by,
            user=row.user,
            token=row.id,
        )
        for row in rows
    )
    return Kept(now_s=now_s, rows=rows, facts=facts)
