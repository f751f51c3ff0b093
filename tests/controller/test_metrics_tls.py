"""`/metrics` over TLS: the controller's certificate, and a token all the same."""

import asyncio
import http.client
import socket
import ssl
import time
import urllib.error
from collections.abc import Iterator

import grpc
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families as parse

from hs_controller.pki import Authority
from hs_proto.certified import CONTROLLER_DNS
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1 import controller_pb2_grpc
from tests.controller.browser import fetch
from tests.controller.kit import FakeAgent
from tests.controller.secured import Cluster, free_port


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    port = free_port()
    one = Cluster(tmp_path_factory.mktemp("metrics"), more=f'web_listen = "127.0.0.1:{port}"\n')
    one.metrics = f"https://127.0.0.1:{port}/metrics"
    one.start()
    yield one
    if one.process is not None and one.process.poll() is None:
        one.kill()


def trusting(cluster: Cluster) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(cluster.folder / "state" / "pki" / "ca.pem"))
    context.set_alpn_protocols(["http/1.1"])
    return context


def token_of(cluster: Cluster) -> str:
    with grpc.insecure_channel(f"unix:{cluster.socket}") as channel:
        stub = controller_pb2_grpc.HeteroShareStub(channel)
        stub.SetUser(pb.SetUserRequest(key="u", name="prometheus", tickets=1))
        return stub.CreateToken(pb.CreateTokenRequest(key="t", user="prometheus")).token


def test_over_tls_it_shows_the_controllers_certificate_and_asks_for_a_token_all_the_same(
    secure: Cluster,
) -> None:
    context, token = trusting(secure), token_of(secure)
    port = int(secure.metrics.split(":")[2].split("/")[0])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=CONTROLLER_DNS) as tls,
    ):
        assert tls.version() == "TLSv1.3"
        head = (
            f"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        )
        tls.sendall(head.encode())
        answer = b"".join(iter(lambda: tls.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"hs_controller_term" in answer
    context.check_hostname = False
    assert fetch(secure.metrics, context=context).code == 401


def test_over_tls_a_nodes_certificate_is_no_token(secure: Cluster) -> None:
    node = secure.joined("m1")
    context = trusting(secure)
    context.check_hostname = False
    folder = secure.folder / "identity-m1"
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    assert node is not None
    assert fetch(secure.metrics, context=context).code == 401


def test_older_tls_and_plaintext_are_not_spoken(secure: Cluster) -> None:
    context = trusting(secure)
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(urllib.error.URLError):
        fetch(secure.metrics, context=context)
    with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
        fetch(secure.metrics.replace("https:", "http:"))


def test_the_ends_of_certificates_are_there_and_when_the_process_began(secure: Cluster) -> None:
    mine = secure.joined("m2")

    async def connect() -> None:
        async with secure.channel(mine) as channel:
            agent = await FakeAgent(channel, "m2").join()
            await agent.leave()

    asyncio.run(connect())
    context = trusting(secure)
    context.check_hostname = False
    page = fetch(secure.metrics, context=context, token=token_of(secure)).text
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(page)
        for sample in family.samples
    }
    ca = Authority.load(secure.folder / "state")
    assert ca is not None
    assert found["hs_certificate_end_seconds", "ca"] == ca.until_s
    shown = x509.load_pem_x509_certificate((secure.folder / "state/pki/server.pem").read_bytes())
    assert found["hs_certificate_end_seconds", "controller"] == shown.not_valid_after_utc.timestamp()
    assert found["hs_node_certificate_end_seconds", "m2"] == mine.not_after_s
    assert 0.0 < time.time() - found[("process_start_time_seconds",)] < 600.0
