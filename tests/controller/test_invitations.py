"""Invitations of nodes: who made them, who sees them, and that they can be taken back."""

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import credentials
from hs_controller.config import Config
from hs_controller.gate import CALLER
from hs_controller.permissions import Caller, Role
from hs_controller.pki import Authority, init
from hs_controller.refusals import token_id
from hs_controller.token_service import IdentityService
from hs_core.errors import RefusedError
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import refused, started


@pytest.fixture
def certified(lasting: Config) -> Config:
    init(lasting.state_dir)
    return replace(lasting, listen=("127.0.0.1", 0))


async def enrolled(cluster: SimpleNamespace, node: str) -> str:
    asked = pb.EnrollNodeRequest(key=uuid.uuid4().hex, node=node)
    return (await cluster.client.stub.EnrollNode(asked)).token


def serving(cluster: SimpleNamespace) -> IdentityService:
    authority = Authority.load(cluster.controller.config.state_dir)
    return IdentityService(cluster.loop, cluster.controller._hub, authority)


def request_of(node: str) -> bytes:
    return credentials.csr(node, ec.generate_private_key(ec.SECP256R1()))


async def told(cluster: SimpleNamespace, kind: str) -> list[tuple[str, str]]:
    """Of each the server, and who made it."""
    found = cluster.client.stub.Events(pb.EventsRequest())
    return [(event.host, event.data.get("by")) async for event in found if event.kind == kind]


def test_administrators_see_invitations_that_can_be_used_and_take_them_back(certified: Config) -> None:
    async def story() -> None:
        async with started(certified) as cluster:
            stub, service = cluster.client.stub, serving(cluster)
            me = (await stub.Info(pb.InfoRequest())).you
            used, token = await enrolled(cluster, "v1"), await enrolled(cluster, "v2")
            await service.Join(pb.JoinRequest(node="v1", token=used, csr_pem=request_of("v1")), None)
            (view,) = (await stub.ListTokens(pb.ListTokensRequest())).tokens
            assert (view.node, view.user, view.id) == ("v2", me, token_id(token))
            assert view.not_after > view.created_at
            assert not (await stub.ListTokens(pb.ListTokensRequest(user=me))).tokens, "it is no user's"
            asked = pb.RevokeTokenRequest(key="r", id=view.id)
            for _ in range(2):  # a repeated request has the same answer
                gone = await stub.RevokeToken(asked)
                assert (gone.id, gone.node, gone.revoked) == (view.id, "v2", True)
            assert await told(cluster, "node-uninvited") == [("v2", me)]
            assert not (await stub.ListTokens(pb.ListTokensRequest())).tokens
            with pytest.raises(RefusedError, match="the token is not one for 'v2'"):
                await service.Join(pb.JoinRequest(node="v2", token=token, csr_pem=request_of("v2")), None)
            for spent in (token, used):
                async with refused("not-found", grpc.StatusCode.NOT_FOUND, "there is no token"):
                    await stub.RevokeToken(pb.RevokeTokenRequest(key=uuid.uuid4().hex, id=token_id(spent)))

    asyncio.run(story())


def test_who_is_no_administrator_sees_no_invitation_and_takes_none_back(certified: Config) -> None:
    async def story() -> None:
        async with started(certified) as cluster:
            token = await enrolled(cluster, "v1")
            CALLER.set(Caller(name="ann", roles=frozenset({Role.USER})))
            service = cluster.controller._service
            assert not (await service.ListTokens(pb.ListTokensRequest(), None)).tokens
            with pytest.raises(RefusedError, match="there is no token"):
                await service.RevokeToken(pb.RevokeTokenRequest(key="r", id=token_id(token)), None)
            assert cluster.loop.mind.registry.invitations("v1")

    asyncio.run(story())


def test_a_certificate_is_the_deed_of_who_invited_the_node_and_a_renewal_its_own(certified: Config) -> None:
    async def story() -> None:
        async with started(certified) as cluster:
            me = (await cluster.client.stub.Info(pb.InfoRequest())).you
            service, token = serving(cluster), await enrolled(cluster, "v1")
            await service.Join(pb.JoinRequest(node="v1", token=token, csr_pem=request_of("v1")), None)
            assert await told(cluster, "node-certified") == [("v1", me)]
            node = Caller(name="agent v1", roles=frozenset({Role.NODE}), account=False, node="v1")
            CALLER.set(replace(node, serial=next(iter(cluster.loop.mind.registry.node("v1").serials))))
            await service.Renew(pb.RenewRequest(csr_pem=request_of("v1")), None)
            assert await told(cluster, "node-renewed") == [("v1", "agent v1")]

    asyncio.run(story())
