"""A real controller with certificates that listens on a port, and hosts with a real agent that may have joined."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import credentials, joining
from hs_agent.identity import Identity
from hs_controller.pki import Authority
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1 import controller_pb2_grpc
from tests.controller.daemons import Daemon
from tests.controller.kit import until


def run_init(file: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hs_controller", "init", "--config", str(file)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Cluster(Daemon):
    """A daemon with certificates that listens on a port."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(folder, more=f'listen = "{self.address}"\n{more}')
        done = run_init(self.file)
        assert done.returncode == 0, done.stderr
        self.ca_sha256 = done.stdout.split()[-1]

    def enroll(self, node: str, *, key: str = "", valid_s: float = 0.0) -> pb.EnrollNodeReply:
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            stub = controller_pb2_grpc.HeteroShareStub(channel)
            return stub.EnrollNode(
                pb.EnrollNodeRequest(key=key or f"{node[:64]}-{time.time()}", node=node, valid_s=valid_s)
            )

    def join(self, token: str, node: str, **more: object) -> Identity:
        return joining.join(
            **{
                "controller": self.address,
                "token": token,
                "ca_sha256": self.ca_sha256,
                "name": node,
                "folder": self.folder / f"identity-{node}",
                **more,
            }
        )

    def joined(self, node: str) -> Identity:
        return self.join(self.enroll(node).token, node)

    def channel(self, one: Identity) -> grpc.aio.Channel:
        options = [credentials.expects_controller(), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(self.address, credentials.channel_credentials(one), options)

    def anonymous(self) -> grpc.Channel:
        ca = (self.folder / "state" / "pki" / "ca.pem").read_bytes()
        options = [credentials.expects_controller(), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(ca), options)


CONNECTED = '"event": "connected"'


class Host:
    """One with a real agent, which may have joined."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.cluster, self.node = cluster, node
        place = cluster.folder / node
        self.identity, self.config, self.log = place / "state/identity", place / "agent.toml", place / "log"
        place.mkdir()
        self.config.write_text(
            f'controller = "{cluster.address}"\nname = "{node}"\ndevices = "emulated"\nemulated = ["V100:1"]\n'
            f'state_dir = "{place}/state"\nrun_dir = "{place}/run"\n'
        )

    def join(self, *, replace: bool = False) -> Identity:
        invited = self.cluster.enroll(self.node)
        return self.cluster.join(invited.token, self.node, folder=self.identity, replace=replace)

    def issued(self, mine: Identity, at_s: float) -> None:
        """Its certificate is one that it was given then."""
        authority = Authority.load(self.cluster.folder / "state")
        key = joining.serialization.load_pem_private_key(mine.key_pem, None)
        assert authority is not None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        one = authority.issue(self.node, credentials.csr(self.node, key), at_s)
        (self.identity / "cert.pem").write_bytes(one.chain_pem)

    def doctor(self) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "hs_agent", "doctor", "--config", str(self.config)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.log.open("wb") as out:
            argv = [sys.executable, "-m", "hs_agent", "--config", str(self.config)]
            agent = subprocess.Popen(argv, stdout=out, stderr=out)
        try:
            yield
        finally:
            agent.terminate()
            assert agent.wait(30) == 0

    def said(self, text: str) -> int:
        """How often its log has that."""
        return self.log.read_text().count(text)

    def says(self, text: str, times: int = 1) -> None:
        """It is waited for."""
        asyncio.run(until(lambda: self.said(text) >= times))
