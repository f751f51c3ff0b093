"""Tokens of users, invitations of nodes, and the certificates that those are turned into."""

import asyncio
import hashlib
import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace

from hs_controller.calls import (
    DAY_S,
    Calls,
    Context,
    audit,
    key_of,
    reaches_all,
    revocation,
    seconds,
    withdrawal,
)
from hs_controller.config import USER_NAME
from hs_controller.gate import CALLER
from hs_controller.intake import Key
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.permissions import Caller
from hs_controller.pki import Authority, Issued
from hs_controller.registry import digest_of
from hs_controller.rows import JoinToken, Kept, UserToken
from hs_core.cluster import ClusterMachine, Outcome
from hs_core.errors import Kind, RefusedError
from hs_core.names import HOST_NAME, HostName, UserName
from hs_proto.certified import agent_dns
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1 import controller_pb2_grpc

TOKEN_S, TOKEN_MOST_S = 90 * DAY_S, 3650 * DAY_S
INVITATION_S, INVITATION_MOST_S = 3600.0, 30 * DAY_S
LABEL_CHARS = 100
NODE_CHARS = 253 - len(agent_dns(""))  # its certificate's DNS name is longer


class TokenCalls(Calls):
    def __init__(self, loop: Loop, hub: Hub, authority: Authority | None, secret: str) -> None:
        super().__init__(loop, hub)
        self._authority = authority
        self._secret = secret.encode()

    # --- users ------------------------------------------------------------------------------------------------------

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenReply:
        caller = CALLER.get()
        key = key_of(caller, "CreateToken", request)
        user = self._token_user(caller, request.user)
        valid_s = seconds(request.valid_s, "valid_s", TOKEN_MOST_S) or TOKEN_S
        if len(request.label) > LABEL_CHARS or not request.label.isprintable():
            raise RefusedError(f"label: at most {LABEL_CHARS} printable characters were expected")
        token = self._token(key, "hs_")

        def make(now_s: float, machine: ClusterMachine) -> Sequence[Kept]:
            if user != caller.name and machine.user(user) is None:
                tickets = self._loop.config.default_tickets
                raise RefusedError(
                    f"unknown user {user!r}; add it first: hsctl user set {user} --tickets {tickets:g}",
                    Kind.NOT_FOUND,
                )
            digest = digest_of(token)
            row = UserToken(
                id=digest[:12],
                user=user,
                label=request.label,
                digest=digest,
                created_s=now_s,
                not_after_s=now_s + valid_s,
            )
            text = f"{caller.name} made token {row.id} for {user}"
            fact = audit(now_s, "token-created", text, by=caller.name, user=user, token=row.id)
            gone = self._loop.mind.registry.add_token(row)
            return [Kept(now_s=now_s, rows=(row,), gone=gone, facts=(fact,))]

        def render(_outcomes: Sequence[Outcome]) -> bytes:
            row = self._loop.mind.registry.token(digest_of(token)[:12])
            assert row is not None
            return _token_view(row).SerializeToString()

        answer = await self._loop.ask(make, render, key)
        return pb.CreateTokenReply(token=token, view=pb.TokenView.FromString(answer))

    def _token(self, key: Key, prefix: str) -> str:
        """256 bits that nobody can guess, and the same again when the same request is repeated: so it need not be kept."""
        text = f"{prefix}\0{key.caller}\0{key.key}\0".encode() + key.digest
        drawn = hmac.digest(self._secret, text, hashlib.sha256)
        return prefix + urlsafe_b64encode(drawn).decode().rstrip("=")

    def _token_user(self, caller: Caller, named: str) -> UserName:
        user = named or caller.name
        if user != caller.name and not reaches_all(caller, "CreateToken"):
            raise RefusedError(
                f"user: {named!r}: only administrators make tokens for others", Kind.NOT_ALLOWED
            )
        if not named and not caller.account:
            raise RefusedError(f"user: missing; {caller.name} is no account: say whose token it is")
        if not USER_NAME.fullmatch(user):
            raise RefusedError(f"user: {user!r} is no user's name")
        return UserName(user)

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensReply:
        caller = CALLER.get()
        everybody = reaches_all(caller, "ListTokens")
        if request.user not in {"", caller.name} and not everybody:
            raise RefusedError(f"there is no user {request.user!r}", Kind.NOT_FOUND)
        user = request.user or ("" if everybody else caller.name)
        await self._loop.settled()
        registry = self._loop.mind.registry
        invited = [] if user else registry.open_invitations(self._loop.clock.now_s())
        views = [*map(_token_view, registry.tokens(user)), *map(_invitation_view, invited)]
        return pb.ListTokensReply(tokens=views, now=self._loop.clock.now_s())

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.TokenView:
        caller = CALLER.get()
        key = key_of(caller, "RevokeToken", request)
        gone = pb.TokenView()

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[Kept]:
            registry = self._loop.mind.registry
            if reaches_all(caller, "RevokeToken"):
                for invitation in registry.open_invitations(now_s):
                    if invitation.id == request.id:
                        gone.CopyFrom(_invitation_view(invitation))
                        gone.revoked = True
                        return [withdrawal(now_s, caller.name, invitation)]
            row = registry.token(request.id)
            if row is None or (row.user != caller.name and not reaches_all(caller, "RevokeToken")):
                raise RefusedError(f"there is no token {request.id!r}", Kind.NOT_FOUND)
            if row.revoked:
                return []
            return [revocation(now_s, caller.name, [row])]

        def render(_outcomes: Sequence[Outcome]) -> bytes:
            row = self._loop.mind.registry.token(request.id)
            return (gone if row is None else _token_view(row)).SerializeToString()

        return pb.TokenView.FromString(await self._loop.ask(make, render, key))

    # --- nodes ------------------------------------------------------------------------------------------------------

    async def EnrollNode(self, request: pb.EnrollNodeRequest, context: Context) -> pb.EnrollNodeReply:
        caller = CALLER.get()
        key = key_of(caller, "EnrollNode", request)
        authority = must_have(self._authority)
        node = node_name(request.node)
        valid_s = seconds(request.valid_s, "valid_s", INVITATION_MOST_S) or INVITATION_S
        token = self._token(key, "hsj_")
        reached_at = await asyncio.to_thread(self._loop.config.reached_at)  # which may ask for our own name

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[Kept]:
            digest = digest_of(token)
            row = JoinToken(
                id=digest[:12],
                node=node,
                digest=digest,
                created_s=now_s,
                not_after_s=now_s + valid_s,
                by=caller.name,
            )
            gone = self._loop.mind.registry.invite(row)
            text = f"{caller.name} lets {node} join within {valid_s:.0f} s"
            fact = audit(now_s, "node-enrolled", text, by=caller.name, host=node, token=row.id)
            return [Kept(now_s=now_s, rows=(row,), gone=gone, facts=(fact,))]

        def render(_outcomes: Sequence[Outcome]) -> bytes:
            not_after_s = self._loop.clock.now_s() + valid_s
            return pb.EnrollNodeReply(
                ca_sha256=authority.sha256, controller=reached_at, not_after=not_after_s
            ).SerializeToString()

        reply = pb.EnrollNodeReply.FromString(await self._loop.ask(make, render, key))
        reply.token = token
        return reply


class IdentityService(controller_pb2_grpc.IdentityServicer):
    """How a host gets, and keeps, its certificate."""

    def __init__(self, loop: Loop, hub: Hub, authority: Authority | None) -> None:
        self._loop = loop
        self._hub = hub
        self._authority = authority

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.Certificate:
        authority = must_have(self._authority)
        node = node_name(request.node)
        registry = self._loop.mind.registry
        registry.invitation(node, request.token, self._loop.clock.now_s())  # before anything is signed
        issued = authority.issue(node, request.csr_pem, time.time())

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[Kept]:
            registry = self._loop.mind.registry
            invitation = registry.invitation(node, request.token, now_s)
            identity = registry.joined(node, issued.serial, issued.not_after_s, time.time())
            text = f"{node} got a certificate with token {invitation.id}"
            fact = audit(now_s, "node-certified", text, by=invitation.by, host=node, serial=issued.serial)
            return [Kept(now_s=now_s, rows=(replace(invitation, used_s=now_s), identity), facts=(fact,))]

        await self._loop.ask(make, lambda _outcomes: b"", None)
        link = self._hub.link(node)
        if link is not None:  # whoever holds it showed a certificate that no longer counts
            link.close(f"{node} joined anew")
        return _certificate(issued, authority)

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.Certificate:
        authority = must_have(self._authority)
        caller = CALLER.get()
        node = HostName(caller.node)
        issued = authority.issue(node, request.csr_pem, time.time())

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[Kept]:
            registry = self._loop.mind.registry
            why = registry.why_refused(caller, time.time())
            if why:  # it was removed just now
                raise RefusedError(why, Kind.NOT_ALLOWED)
            identity = registry.renewed(node, issued.serial, issued.not_after_s, time.time())
            text = f"{node} renewed its certificate"
            fact = audit(now_s, "node-renewed", text, by=caller.name, host=node)
            return [Kept(now_s=now_s, rows=(identity,), facts=(fact,))]

        await self._loop.ask(make, lambda _outcomes: b"", None)
        return _certificate(issued, authority)


def must_have(authority: Authority | None) -> Authority:
    if authority is None:
        raise RefusedError(
            "this controller has no certificate authority: on its host, run `hs-controller init` and start it again",
            Kind.CONFLICT,
        )
    return authority


def node_name(name: str) -> HostName:
    if not HOST_NAME.fullmatch(name) or len(name) > NODE_CHARS:
        raise RefusedError(
            f"node: {name!r}: a host's name was expected "
            f"(letters, digits, '_' and '-', at most 63 between dots and {NODE_CHARS} in all)"
        )
    return HostName(name)


def _certificate(issued: Issued, authority: Authority) -> pb.Certificate:
    return pb.Certificate(chain_pem=issued.chain_pem, ca_pem=authority.pem, not_after=issued.not_after_s)


def _token_view(row: UserToken) -> pb.TokenView:
    return pb.TokenView(
        id=row.id,
        user=row.user,
        label=row.label,
        created_at=row.created_s,
        not_after=row.not_after_s,
        last_used_at=row.last_used_s,
        revoked=row.revoked,
    )


def _invitation_view(row: JoinToken) -> pb.TokenView:
    return pb.TokenView(
        id=row.id,
        user=row.by,
        created_at=row.created_s,
        not_after=row.not_after_s,
        node=row.node,
    )
