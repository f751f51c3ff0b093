"""Who may be a node: the real daemon with TLS, real `hs-agent join`, and everything that must not work."""

import asyncio
import os
import pwd
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import credentials, identity, joining
from hs_agent.identity import Identity
from hs_agent.link import Link
from hs_agent.renewal import Keeper
from hs_client import tls
from hs_client.errors import UnavailableError
from hs_controller import config, pki
from hs_controller.__main__ import _settings as controller_settings
from hs_controller.config import ConfigError
from hs_controller.pki import Authority
from hs_core.errors import Kind, RefusedError
from hs_core.names import HostName
from hs_daemon import config_file
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1 import controller_pb2_grpc
from tests.controller.daemons import Daemon
from tests.controller.kit import FakeAgent, channel_to, until
from tests.controller.secured import Cluster, free_port, run_init


def test_init_makes_what_only_its_owner_can_read_and_never_again(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'state_dir = "{tmp_path}/state"\n')
    first = run_init(file)
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "state" / "pki"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    assert set(before) == {"ca.key", "ca.pem", "server.key", "server.pem"}
    again = run_init(file)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before
    authority = Authority.load(tmp_path / "state")
    assert authority is not None
    assert first.stdout == f"CA SHA-256: {authority.sha256}\n"


# Not to be looked at, whoever asks; for who is not root, so is what others may not enter.
UNSEEN = Path("/tmp") / ("x" * 300)


def test_files_that_may_not_be_looked_at_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'state_dir = "{UNSEEN}"\n')
    made = run_init(file)
    assert made.returncode == 1
    assert made.stderr == f"hs-controller: {UNSEEN}/pki: cannot be made: File name too long\n"
    monkeypatch.setattr(config, "DEFAULT_FILE", UNSEEN)
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        controller_settings(UNSEEN)
    with pytest.raises(RefusedError, match="cannot be read: File name too long"):
        identity.configured(UNSEEN)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("state_dir = " + "[" * 20_000, "is not TOML: lists or tables in one another without end"),
        ("state_dir = = 3", "is not TOML: Invalid value"),
        ("#" * (config_file.MOST_BYTES + 1), "cannot be read: at most 1 MiB were expected"),
    ],
    ids=["deep", "torn", "large"],
)
def test_a_join_says_what_is_wrong_with_the_agents_configuration(
    tmp_path: Path, content: str, says: str
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(content)
    with pytest.raises(RefusedError, match=f"agent.toml: {says}"):
        identity.configured(file)
    with pytest.raises(RefusedError, match="null: cannot be read: a plain file was expected"):
        identity.configured(Path("/dev/null"))


def test_a_port_without_certificates_is_not_opened_and_it_says_what_to_do(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, more=f'listen = "127.0.0.1:{free_port()}"\n')
    done = subprocess.run(daemon.argv(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"hs-controller init --config {daemon.file}" in done.stderr


def test_a_node_joins_with_its_token_connects_and_speaks_for_itself_only(cluster: Cluster) -> None:
    invited = cluster.enroll("v10")
    assert (invited.ca_sha256, invited.controller) == (cluster.ca_sha256, cluster.address)
    argv = [
        sys.executable,
        "-m",
        "hs_agent",
        "join",
        "--controller",
        cluster.address,
        "--token",
        invited.token,
    ]
    argv += ["--ca-sha256", invited.ca_sha256, "--name", "v10", "--identity", str(cluster.folder / "id")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((cluster.folder / "id" / "key.pem").stat().st_mode) == 0o600
    mine = identity.load_identity(cluster.folder / "id")
    assert mine is not None
    assert mine.node == "v10"

    async def story() -> None:
        async with cluster.channel(mine) as channel:
            agent = await FakeAgent(channel, "v10").join()
            await agent.leave()
            with pytest.raises(grpc.aio.AioRpcError, match="speaks for itself only") as refused:
                await FakeAgent(channel, "w10").join()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            for call in ("Info", "ListNodes"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await getattr(controller_pb2_grpc.HeteroShareStub(channel), call)(
                        getattr(pb, f"{call}Request")()
                    )
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(story())
    assert invited.token not in cluster.log.read_text()
    database = b"".join(file.read_bytes() for file in (cluster.folder / "state").glob("journal.db*"))
    assert invited.token.encode() not in database, "only its hash is kept"
    again = subprocess.run([*argv, "--replace"], capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 5
    assert "was used already" in again.stderr
    assert identity.load_identity(cluster.folder / "id") == mine, "a refused join leaves what was there"


KILLED_AT = """
import os, signal, sys
from hs_agent.__main__ import main

mark, left = sys.argv[1], int(sys.argv[2])
touches = ("open", "os.mkdir", "os.rename", "os.remove", "shutil.rmtree")

def watch(event, args):
    global left
    if event in touches and any(mark in str(each) for each in args[:2]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.argv = ["hs-agent", *sys.argv[3:]]
sys.addaudithook(watch)
sys.exit(main())
"""


@pytest.mark.parametrize("replace", [False, True])
def test_a_join_that_is_killed_wherever_leaves_a_whole_identity_or_none_and_is_said_again(
    cluster: Cluster, replace: bool
) -> None:
    place = cluster.folder / "host"
    folder = place / "identity"
    old = None
    if replace:
        old = cluster.join(cluster.enroll("v11").token, "v11", folder=folder, replace=folder.exists())

    def run(token: str, *python: str) -> subprocess.CompletedProcess[str]:
        words = ["--controller", cluster.address, "--token", token, "--ca-sha256", cluster.ca_sha256]
        words += ["--name", "v11", "--identity", str(folder), *(["--replace"] if replace else [])]
        argv = [sys.executable, *python, "join", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    token = cluster.enroll("v11").token
    for touch in count(1):
        done = run(token, "-c", KILLED_AT, folder.name, str(touch))
        if done.returncode == 0:
            break
        assert done.returncode in {-signal.SIGKILL, 5}, done.stderr
        secrets = [path for path in place.rglob("*") if path.is_file()] if place.exists() else []
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
        found = identity.load_identity(folder)
        assert found is None or found.node == "v11"
        if done.returncode == 5:
            assert "was used already; make another: hsctl node enroll v11" in done.stderr
            token = cluster.enroll("v11").token
        elif not replace and found is not None:
            break  # it had joined
    assert touch > 5, "it was killed at several places"
    joined = identity.load_identity(folder)
    assert joined is not None
    assert joined != old
    if replace:
        assert [path.name for path in place.iterdir()] == ["identity"], "nothing of those that were killed"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"token": "hsj_wrong"}, "not one for"),
        ({"name": "other"}, "not one for 'other'"),
        ({"ca_sha256": "00" * 32}, "another cluster"),
        ({"ca_sha256": "beef"}, "64 hexadecimal digits"),
        ({"controller": "localhost:65536"}, "'localhost:65536': host:port was expected"),
        ({"controller": "gpu..head:7443"}, "'gpu..head:7443': host:port was expected"),
        ({"controller": "https://gpu-head:7443"}, "'https://gpu-head:7443': host:port was expected"),
        ({"name": "../v1"}, "a host's name was expected"),
    ],
)
def test_a_join_that_is_wrong_leaves_nothing_behind(
    cluster: Cluster, change: dict[str, str], told: str
) -> None:
    node = f"n{abs(hash(told))}"
    token = cluster.enroll(node).token
    folder = cluster.folder / "there"
    with pytest.raises(RefusedError, match=told):
        cluster.join(**{"token": token, "node": node, "folder": folder, **change})
    assert [file for file in cluster.folder.iterdir() if "there" in file.name] == []
    assert cluster.join(token, node).node == node, "the token still works for whom it was made"


def test_a_join_that_cannot_write_uses_no_token_up_and_ends_no_certificate(cluster: Cluster) -> None:
    there = cluster.joined("v32")
    token = cluster.enroll("v32").token
    no_folder = cluster.folder / "file"
    no_folder.touch()
    with pytest.raises(RefusedError, match="cannot be written: Not a directory") as refused:
        cluster.join(token, "v32", folder=no_folder / "identity")
    assert refused.value.kind is Kind.CONFLICT
    asyncio.run(Keeper(there, cluster.address).renew())
    assert cluster.join(token, "v32", folder=there.folder, replace=True).node == "v32"


def test_an_expired_token_is_refused(cluster: Cluster) -> None:
    token = cluster.enroll("v11", valid_s=0.001).token
    with pytest.raises(RefusedError, match="has expired") as refused:
        cluster.join(token, "v11")
    assert refused.value.kind is Kind.NOT_ALLOWED


def test_an_invitation_for_longer_than_may_be_is_refused_in_days(cluster: Cluster) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        cluster.enroll("v11", valid_s=365 * 86_400.0)
    said = "valid_s: 31536000 seconds (365 days): at most 30 days were expected"
    assert refused.value.details() == said


def test_any_name_that_an_agent_may_have_can_be_invited_and_no_other(cluster: Cluster) -> None:
    longest = ".".join(["n" * 63, "rack-1_a", "x" * 63, "y" * 63, "z" * 34])
    assert cluster.joined(longest).node == longest
    for name in ("a..b", "a.", "a.-b", f"{longest}z", "n" * 64):
        with pytest.raises(grpc.RpcError) as refused:
            cluster.enroll(name)
        expected = "at most 63 between dots and 235 in all"
        assert f"{name!r}: a host's name was expected" in (said := refused.value.details())
        assert expected in said


def test_a_token_survives_kill_9_and_the_same_request_gives_the_same_one(cluster: Cluster) -> None:
    token = cluster.enroll("v12", key="once").token
    cluster.kill()
    cluster.start()
    assert cluster.enroll("v12", key="once").token == token
    assert cluster.join(token, "v12").node == "v12"
    cluster.kill()
    cluster.start()
    with pytest.raises(RefusedError, match="was used already"):
        cluster.join(token, "v12", folder=cluster.folder / "other")


def test_plaintext_and_old_tls_find_nobody_at_the_port(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            controller_pb2_grpc.HeteroShareStub(channel).Info(pb.InfoRequest(), timeout=5)
        assert refused.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    host, _, port = cluster.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((host, int(port)), 5) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)
    with cluster.anonymous() as channel, pytest.raises(grpc.RpcError) as refused:
        controller_pb2_grpc.HeteroShareStub(channel).Info(pb.InfoRequest(), timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, "it goes on serving"


def test_a_certificate_of_another_ca_is_worth_nothing(cluster: Cluster, tmp_path: Path) -> None:
    pki.init(tmp_path / "other")
    other = Authority.load(tmp_path / "other")
    assert other is not None
    mine = cluster.joined("v14")
    key = ec.generate_private_key(ec.SECP256R1())
    forged = other.issue("v14", credentials.csr("v14", key), time.time())
    own_key = key.private_bytes(
        joining.serialization.Encoding.PEM,
        joining.serialization.PrivateFormat.PKCS8,
        joining.serialization.NoEncryption(),
    )
    # Leaf only: with its root attached it would say that it is of another CA; it must not matter.
    leaf = x509.load_pem_x509_certificate(forged.chain_pem).public_bytes(joining.serialization.Encoding.PEM)

    async def story() -> None:
        async with cluster.channel(replace(mine, key_pem=own_key, chain_pem=leaf)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await FakeAgent(channel, "v14").join()
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(story())


def test_renewal_gives_a_new_certificate_for_the_same_node_and_both_count(cluster: Cluster) -> None:
    old = cluster.joined("v15")
    told: list[Identity] = []

    async def story() -> None:
        due = old.not_before_s + 0.7 * (old.not_after_s - old.not_before_s)
        keeper = Keeper(old, cluster.address, told.append, now_s=lambda: due if not told else time.time())
        keeping = asyncio.create_task(keeper.run())
        await until(lambda: bool(told))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert keeper.identity == told[0] == identity.load_identity(old.folder)
        assert told[0].chain_pem != old.chain_pem
        for one in (told[0], old):
            async with cluster.channel(one) as channel:
                await (await FakeAgent(channel, "v15").join()).leave()

    asyncio.run(story())


def test_whoever_joins_anew_ends_the_certificates_before(cluster: Cluster) -> None:
    old = cluster.joined("v16")
    new = cluster.join(cluster.enroll("v16").token, "v16", folder=cluster.folder / "anew")

    async def story() -> None:
        async with cluster.channel(old) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="replaced by a newer one") as refused:
                await FakeAgent(channel, "v16").join()
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        async with cluster.channel(new) as channel:
            await (await FakeAgent(channel, "v16").join()).leave()

    asyncio.run(story())


def test_who_is_connected_with_an_older_certificate_is_cut_off_when_the_node_joins_anew(
    cluster: Cluster,
) -> None:
    old, invited = cluster.joined("v17"), cluster.enroll("v17")

    def join_anew() -> Identity:
        return cluster.join(invited.token, "v17", folder=cluster.folder / "anew-v17")

    async def story() -> None:
        async with cluster.channel(old) as channel:
            agent = await FakeAgent(channel, "v17").join()
            await asyncio.to_thread(join_anew)
            await until(lambda: agent.error is not None)
            assert agent.error is not None
            assert "v17 joined anew" in str(agent.error.details())

    asyncio.run(story())


def test_people_are_told_the_address_of_a_second_machine_with_one_identity(cluster: Cluster) -> None:
    mine = cluster.joined("v18")

    async def story() -> None:
        async with cluster.channel(mine) as first, cluster.channel(mine) as second:
            agent = await FakeAgent(first, "v18").join()
            with pytest.raises(grpc.aio.AioRpcError, match="another machine is connected as v18"):
                await FakeAgent(second, "v18", boot="boot-2").join()
            async with channel_to(f"unix:{cluster.socket}") as channel:
                admin = controller_pb2_grpc.HeteroShareStub(channel)
                async with asyncio.timeout(60):  # it is refused before that is written
                    async for doubled in admin.Events(pb.EventsRequest(follow=True)):
                        if doubled.kind == "host-doubled":
                            break
            assert "a second machine at 127.0.0.1 says that it is v18" in doubled.text
            await agent.leave()

    asyncio.run(story())


def test_a_user_comes_with_a_token_that_can_be_revoked(cluster: Cluster) -> None:
    account = pwd.getpwuid(os.geteuid()).pw_name

    async def story() -> None:
        async with channel_to(f"unix:{cluster.socket}") as channel:
            admin = controller_pb2_grpc.HeteroShareStub(channel)
            await admin.SetUser(pb.SetUserRequest(key="u", name="ann", tickets=10))
            made = await admin.CreateToken(pb.CreateTokenRequest(key="t", user="ann", label="laptop"))
            again = await admin.CreateToken(pb.CreateTokenRequest(key="t", user="ann", label="laptop"))
            assert again == made, "the same request, the same answer"
            add = "add it first: hsctl user set nobody-known --tickets 100"
            with pytest.raises(grpc.aio.AioRpcError, match=add) as refused:
                await admin.CreateToken(pb.CreateTokenRequest(key="t2", user="nobody-known"))
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            await admin.CreateToken(pb.CreateTokenRequest(key="t3"))
            assert {t.user for t in (await admin.ListTokens(pb.ListTokensRequest())).tokens} == {
                "ann",
                account,
            }
        metadata = (("authorization", f"Bearer {made.token}"),)
        with cluster.anonymous() as channel:
            ann = controller_pb2_grpc.HeteroShareStub(channel)
            info = ann.Info(pb.InfoRequest(), metadata=metadata)
            assert (info.you, info.admin) == ("ann", False)
            own = ann.CreateToken(pb.CreateTokenRequest(key="mine"), metadata=metadata)
            assert [t.id for t in ann.ListTokens(pb.ListTokensRequest(), metadata=metadata).tokens] == [
                made.view.id,
                own.view.id,
            ]
            for request, code in (
                (pb.CreateTokenRequest(key="x", user="root"), grpc.StatusCode.PERMISSION_DENIED),
                (pb.CreateTokenRequest(key="y", valid_s=1e12), grpc.StatusCode.INVALID_ARGUMENT),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    ann.CreateToken(request, metadata=metadata)
                assert refused.value.code() is code
            with pytest.raises(grpc.RpcError) as refused:
                ann.RevokeToken(pb.RevokeTokenRequest(key="r", id="of-somebody-else"), metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            gone = ann.RevokeToken(pb.RevokeTokenRequest(key="r2", id=made.view.id), metadata=metadata)
            assert gone.revoked
            assert gone.last_used_at > 0
            with pytest.raises(grpc.RpcError) as refused:
                ann.Info(pb.InfoRequest(), metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        database = b"".join(file.read_bytes() for file in (cluster.folder / "state").glob("journal.db*"))
        assert made.token.encode() not in database

    asyncio.run(story())


def test_whoever_takes_the_port_for_browsers_for_the_other_one_is_told_so(tmp_path: Path) -> None:
    web = f"127.0.0.1:{free_port()}"
    cluster = Cluster(tmp_path, more=f'web_listen = "{web}"\n')
    cluster.start()
    try:
        token = cluster.enroll("v33").token
        with pytest.raises(RefusedError, match="is for browsers, not the controller's `listen`"):
            cluster.join(token, "v33", controller=web)
        with pytest.raises(UnavailableError, match="is for browsers, not the controller's `listen`"):
            tls.look(web)
        assert cluster.join(token, "v33").node == "v33"
    finally:
        assert cluster.end() == 0


def joined(authority: Authority, folder: Path) -> Identity:
    """As `hs-agent join --replace` puts it there."""
    key = ec.generate_private_key(ec.SECP256R1())
    key_pem = key.private_bytes(
        joining.serialization.Encoding.PEM,
        joining.serialization.PrivateFormat.PKCS8,
        joining.serialization.NoEncryption(),
    )
    issued = authority.issue("v1", credentials.csr("v1", key), time.time())
    made = identity.parsed(folder, key_pem, issued.chain_pem, authority.pem)
    with identity.fresh(folder, key_pem) as fresh:
        identity.fill(fresh, made)
    return made


def test_an_agent_that_found_its_identity_amid_a_crashed_join_keeps_it_and_takes_up_the_next(
    tmp_path: Path,
) -> None:
    pki.init(tmp_path)
    authority = Authority.load(tmp_path)
    assert authority is not None
    folder = tmp_path / "id"
    first = joined(authority, folder)
    folder.rename(identity.replaced(folder))  # a crash before the new one was put in its place
    found = identity.load_identity(folder)
    assert found is not None
    keeper = Keeper(found, "nobody:1")
    identity.put_certificate(replace(found, chain_pem=found.chain_pem + b"\n"))
    again = identity.load_identity(folder)
    assert again is not None
    assert again.chain_pem == first.chain_pem + b"\n", "a renewal is written where it lies"
    second = joined(authority, folder)
    keeper.look()
    assert keeper.identity.key_pem == second.key_pem


def test_a_folder_that_others_can_read_or_that_is_torn_is_no_identity(tmp_path: Path) -> None:
    pki.init(tmp_path)
    authority = Authority.load(tmp_path)
    assert authority is not None
    folder = tmp_path / "id"
    assert identity.load_identity(folder) is None
    issued = joined(authority, folder)
    assert identity.load_identity(folder).node == HostName("v1")
    folder.rename(identity.replaced(folder))
    assert identity.load_identity(folder).node == HostName("v1"), "a crash while it was replaced"
    identity.replaced(folder).rename(folder)
    (folder / "key.pem").chmod(0o644)
    with pytest.raises(RefusedError, match="can be read by others"):
        identity.load_identity(folder)
    (folder / "key.pem").chmod(0o600)
    (folder / "cert.pem").write_bytes(issued.chain_pem[:200])
    with pytest.raises(RefusedError, match="cannot be used"):
        identity.load_identity(folder)


def test_between_agents_both_show_certificates_and_tls_1_3_is_all_there_is(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("between_agents.py"), tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "gRPC's own lines about each stranger are no lines of a daemon's log"


def test_an_agent_knows_from_what_it_hears_that_its_node_was_removed(cluster: Cluster) -> None:
    own, other = cluster.joined("v41"), cluster.joined("v42")

    async def story() -> list[bool]:
        heard: list[bool] = []
        for one in (own, other):
            agent = SimpleNamespace(name=one.node, secure=True)
            link = Link(agent, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
            async with cluster.channel(one) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await FakeAgent(channel, one.node).join()
                heard.append(link._is_removed(refused.value))
        return heard

    cluster.join(cluster.enroll("v42").token, "v42", folder=cluster.folder / "v42-anew")
    with grpc.insecure_channel(f"unix:{cluster.socket}") as channel:
        stub = controller_pb2_grpc.HeteroShareStub(channel)
        stub.RemoveNode(pb.RemoveNodeRequest(key="gone", node="v41"))
    assert asyncio.run(story()) == [True, False]
