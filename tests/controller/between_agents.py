"""Two agents of one cluster meet over TLS, and strangers are turned away. A program, because gRPC reads its list of cipher suites once."""

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import credentials, identity  # before gRPC, which it tells the list

import grpc  # isort: skip

from hs_controller.pki import Authority, init
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

LATEST, BEFORE = ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2


class Door(agent_pb2_grpc.AgentPeerServicer):
    async def Fetch(self, _request, context) -> AsyncIterator[agent_pb2.FetchChunk]:  # noqa: N802
        yield agent_pb2.FetchChunk(name=credentials.peer_node(context.auth_context()))


def issued(authority: Authority, folder: Path, node: str) -> identity.Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = authority.issue(node, credentials.csr(node, key), time.time()).chain_pem
    return identity.parsed(folder / node, pem, chain, authority.pem)


async def ask(port: int, own: grpc.ChannelCredentials, node: str) -> list[str]:
    options = [credentials.expects_peer(node), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", own, options) as channel:
        call = agent_pb2_grpc.AgentPeerStub(channel).Fetch(agent_pb2.FetchRequest(), timeout=5)
        return [chunk.name async for chunk in call]


async def is_refused(port: int, own: grpc.ChannelCredentials, node: str) -> bool:
    try:
        await ask(port, own, node)
    except grpc.aio.AioRpcError as error:
        return error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    return False


def agreed(port: int, version: ssl.TLSVersion, own: identity.Identity) -> str:
    """The version of TLS that they settle on where no other is offered, or why they do not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    key, chain = own.folder.with_suffix(".key"), own.folder.with_suffix(".pem")
    key.write_bytes(own.key_pem)
    chain.write_bytes(own.chain_pem)
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), 5) as plain:
        try:
            with context.wrap_socket(plain) as secure:
                return str(secure.version())
        except ssl.SSLError as error:
            return str(error)


async def meet(folder: Path) -> None:
    init(folder)
    authority = Authority.load(folder)
    assert authority is not None
    a, b, c = (issued(authority, folder, node) for node in "abc")
    shown = [a]
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentPeerServicer_to_server(Door(), server)
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials(a, lambda: shown[0]))
    await server.start()
    own = credentials.channel_credentials(b)
    assert await ask(port, own, "a") == ["b"]
    assert await is_refused(port, own, "c"), "it is a who is there"
    assert await is_refused(port, grpc.ssl_channel_credentials(authority.pem), "a"), "it shows no certificate"
    shown[0] = c
    assert await ask(port, credentials.channel_credentials(b), "c") == ["b"], (
        "a renewed certificate is taken up"
    )
    assert await asyncio.to_thread(agreed, port, LATEST, b) == "TLSv1.3"
    reason = await asyncio.to_thread(agreed, port, BEFORE, b)
    assert reason, "no reason is given"
    assert not reason.startswith("TLSv"), reason
    await server.stop(0)


asyncio.run(meet(Path(sys.argv[1])))
