"""Who is refused is told in the log and counted, and cannot fill a disk with it."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
import structlog
from structlog.testing import capture_logs

from hs_controller.config import Config
from hs_controller.meters import REFUSED, Meters
from hs_controller.pki import init
from hs_controller.refusals import CALLS, OF_ALL, OF_ONE, WITHIN_S, Refusals, Why, token_id
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1 import controller_pb2_grpc
from tests.controller.browser import opened
from tests.controller.kit import channel_to, started
from tests.controller.test_web import token_of

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def _heard(_quiet: None) -> None:
    structlog.reset_defaults()


def lines(found: list[dict]) -> list[dict]:
    ours = [line for line in found if line["event"] in {"refused", "connection-refused"}]
    assert {line["log_level"] for line in ours} <= {"warning"}
    return ours


def counted(cluster: SimpleNamespace, call: str, why: Why) -> float:
    labels = {"call": call, "why": str(why)}
    return cluster.loop.meters.registry.get_sample_value("hs_refused_total", labels) or 0.0


async def is_refused(call: object) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call


@pytest.fixture
def secured(config: Config) -> Config:
    init(config.state_dir)
    return replace(config, listen=(HERE, 0))


async def channel(cluster: SimpleNamespace) -> grpc.aio.Channel:
    ca = (cluster.controller.config.state_dir / "pki" / "ca.pem").read_bytes()
    name = (("grpc.ssl_target_name_override", "controller.heteroshare"),)
    return grpc.aio.secure_channel(cluster.controller.address, grpc.ssl_channel_credentials(ca), name)


def test_a_refused_join_is_told_with_the_id_of_its_token_and_never_the_token(secured: Config) -> None:
    async def story() -> None:
        async with started(secured) as cluster, await channel(cluster) as port:
            made = await cluster.client.stub.EnrollNode(pb.EnrollNodeRequest(key="e", node="v1"))
            stub = controller_pb2_grpc.IdentityStub(port)
            with capture_logs() as found:
                await is_refused(stub.Join(pb.JoinRequest(node="v2", token=made.token)))
                await is_refused(stub.Join(pb.JoinRequest(node="v1", token="my password")))
            other, guessed = lines(found)
            assert (other["call"], other["kind"], other["address"]) == ("Join", "invitation", HERE)
            assert (other["token"], "'v2'" in other["why"]) == (token_id(made.token), True)
            assert "token" not in guessed
            assert made.token not in str(found)
            assert "password" not in str(found)
            assert counted(cluster, "Join", Why.INVITATION) == 2

    asyncio.run(story())


def test_a_token_that_is_not_good_and_a_call_that_is_not_allowed_are_told(secured: Config) -> None:
    async def story() -> None:
        async with started(secured) as cluster, await channel(cluster) as port:
            token = await token_of(cluster, "ann")
            stub = controller_pb2_grpc.HeteroShareStub(port)

            def shown(token: str) -> dict[str, object]:
                return {"metadata": (("authorization", f"Bearer {token}"),)}

            with capture_logs() as found:
                await is_refused(stub.SetPolicy(pb.SetPolicyRequest(key="p", name="x"), **shown(token)))
                await is_refused(stub.Info(pb.InfoRequest(), **shown("hs_guessed")))
                await is_refused(stub.Info(pb.InfoRequest()))
            told = [(one["call"], one["kind"], one.get("who"), one["address"]) for one in lines(found)]
            assert told == [
                ("SetPolicy", "rights", "ann", HERE),
                ("Info", "token", None, HERE),
                ("Info", "nobody", None, HERE),
            ]
            assert lines(found)[1]["token"] == token_id("hs_guessed")
            assert [counted(cluster, "Info", why) for why in (Why.TOKEN, Why.NOBODY)] == [1, 1]

    asyncio.run(story())


def test_who_makes_no_tls_is_told_by_its_address(secured: Config) -> None:
    async def story() -> None:
        async with started(secured) as cluster:
            host, port = cluster.controller.address.rsplit(":", 1)
            with capture_logs() as found:
                old = ssl.create_default_context()
                old.maximum_version = ssl.TLSVersion.TLSv1_2
                with pytest.raises((ssl.SSLError, OSError)):
                    await asyncio.open_connection(host, int(port), ssl=old)
            (line,) = lines(found)
            assert (line["event"], line["kind"], line["address"]) == ("connection-refused", "handshake", HERE)
            assert counted(cluster, "connection", Why.HANDSHAKE) == 1

    asyncio.run(story())


def test_what_fails_at_the_page_is_told_with_the_address_of_who_asks(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            token = await token_of(cluster, "ann")
            with capture_logs() as found:
                assert (await cluster.post("/login", {"token": "hs_guessed"})).code == 401
                assert (await cluster.get("/", token="hs_guessed")).code == 303
                assert (await cluster.post("/api/SetUser", {}, token=token)).code == 403
                assert (await cluster.get("/metrics")).code == 401
            told = [(one["call"], one["kind"], one.get("who"), one["address"]) for one in lines(found)]
            assert told == [
                ("page", "token", None, HERE),
                ("page", "token", None, HERE),
                ("SetUser", "rights", "ann", HERE),
                ("metrics", "nobody", None, HERE),
            ]
            assert counted(cluster, "page", Why.TOKEN) == 2

    asyncio.run(story())


def test_who_comes_through_the_socket_is_told_by_its_account(config: Config) -> None:
    async def story() -> None:
        async with started(config), channel_to(f"unix:{config.socket}") as socket:
            with capture_logs() as found:
                await is_refused(controller_pb2_grpc.IdentityStub(socket).Renew(pb.RenewRequest()))
            (line,) = lines(found)
            assert (line["call"], line["kind"], line["address"].split()[0]) == ("Renew", "rights", "uid")

    asyncio.run(story())


def test_lines_are_few_whoever_knocks_and_what_was_left_out_is_told() -> None:
    now_s, meters = [0.0], Meters()
    refusals = Refusals(meters, lambda: now_s[0])
    with capture_logs() as found:
        for _ in range(100):
            refusals.tell("/hs.v1.Identity/Join", Why.INVITATION, "x" * 10_000, address=HERE)
        assert len(found) == OF_ONE
        assert max(len(str(line)) for line in found) < 1000
        for host in range(1000):
            refusals.tell("Join", Why.INVITATION, "x", address=f"2001:db8:0:{host % 2}::{host:x}")
        assert len(found) == 3 * OF_ONE, "one network of IPv6 is one peer"
        for host in range(1000):
            refusals.tell("Join", Why.INVITATION, "x", address=f"10.0.{host // 250}.{host % 250}")
        assert len(found) == OF_ALL
        assert len(refusals._lines) <= OF_ALL
        now_s[0] += WITHIN_S
        refusals.tell("/hs.v1.Nothing/Made-up", Why.RIGHTS, "x")
    assert (found[-2]["event"], found[-2]["count"]) == ("refusals-not-told", 2100 - OF_ALL)
    assert found[-1]["call"] == "other"
    sample = meters.registry.get_sample_value
    assert sample("hs_refused_total", {"call": "Join", "why": "invitation"}) == 2100


def test_the_words_of_the_counter_are_in_its_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| `hs_refused_total`")]
    assert [str(why) for why in Why if f"`{why}`" not in row] == []
    assert {(call in CALLS, Why(why).value) for call, why in REFUSED} == {(True, why) for _, why in REFUSED}
    assert {"connection", "page", "metrics", "Join", "Submit"} <= CALLS
