"""Invitations of nodes: who made them, who sees them, and that they can be taken back."""

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import identity
from hs_controller.config import Config
from hs_controller.gate import CALLER
from hs_controller.permissions import Caller, Role
from hs_controller.pki import Authority, init
from hs_controller.token_service import IdentityService
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
    return identity._csr(node, ec.generate_private_key(ec.SECP256R1()))


async def told(cluster: SimpleNamespace, kind: str) -> list[tuple[str, str]]:
    """Of each the server, and who made it."""
    found = cluster.client.stub.Events(pb.EventsRequest())
    return [(event.host, event.data.get("by")) async for event in found if event.kind == kind]


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
