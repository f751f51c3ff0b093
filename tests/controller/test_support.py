"""What the controller puts into a support bundle, and what it does not."""

import asyncio
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from hs_controller import support
from hs_controller.config import Config, ConfigUser
from hs_core.errors import Kind, RefusedError
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1 import controller_pb2_grpc
from tests.controller.kit import spec, started, until
from tests.controller.secured import CONNECTED, Cluster, Host

SECRET = "hunter2-is-nobodys-business"


async def files_of(stub: controller_pb2_grpc.HeteroShareStub) -> dict[str, pb.SupportFile]:
    found: dict[str, pb.SupportFile] = {}
    async for piece in stub.Support(pb.SupportRequest()):
        one = found.setdefault(piece.name, pb.SupportFile(name=piece.name))
        one.data += piece.data
        one.missing = one.missing or piece.missing
    return found


def test_configuration_decisions_metrics_and_what_each_agents_doctor_says_are_in_it(lasting, monkeypatch):
    monkeypatch.setattr(support, "ANSWER_S", 0.2)
    monkeypatch.setattr(support, "PIECE_BYTES", 1000)
    config = replace(lasting, users={"ann": ConfigUser(tickets=7.0)}, admins=("eve",))

    async def story():
        async with started(config) as here:
            well, silent, gone = [await here.agent(name=name).join() for name in ("h1", "h2", "h3")]
            silent.doctor = None
            await gone.leave()
            await until(lambda: "h3" not in here.loop.mind.machine.connected)
            await here.client.submit()
            await until(lambda: here.loop.mind.watched.decided_s > 0)
            found = await files_of(here.client.stub)
            said = json.loads(found["controller/configuration.json"].data)
            assert (said["quantum_s"], said["users"]["ann"]["tickets"], said["admins"]) == (600, 7, ["eve"])
            assert said["state_dir"] == str(config.state_dir)
            office = json.loads(found["controller/office.json"].data)
            assert (office["servers"], office["servers_connected"], office["policy"]) == (3, 2, "plain")
            assert office["decided_at_s"] > 0
            assert sum(office["jobs"].values()) == 1
            metrics = found["controller/metrics.txt"].data
            assert b"hs_scheduler_cycle_seconds_bucket" in metrics
            assert metrics.rstrip().split(b"\n")[-1].count(b" ") == 1, "whole, in pieces"
            doctors = {name: (one.data, one.missing) for name, one in found.items() if "servers/" in name}
            assert doctors == {
                "servers/h1/doctor.txt": (b"ok    python", ""),
                "servers/h2/doctor.txt": (b"", "h2 did not answer within 0.2 s"),
                "servers/h3/doctor.txt": (b"", "h3 is not connected"),
            }
            (deed,) = [
                event.fact for event in here.loop.onlookers.events if event.fact.kind == "support-bundle"
            ]
            assert deed.deed
            for agent in (well, silent):
                await agent.leave()

    asyncio.run(story())


def test_a_server_that_goes_away_meanwhile_is_not_waited_for(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            agent.doctor = None
            taking = asyncio.create_task(files_of(here.client.stub))
            await until(lambda: bool(here.controller._hub.link("h1")._doctors))
            await agent.leave()
            found = await taking
            assert found["servers/h1/doctor.txt"].missing == "h1 went away meanwhile"

    asyncio.run(story())


def test_there_is_a_bundle_while_the_journal_cannot_be_written(lasting, monkeypatch):
    async def story():
        async with started(lasting) as here:

            async def full(*_: object) -> bytes:
                raise RefusedError("the controller cannot write its journal just now", Kind.UNAVAILABLE)

            with monkeypatch.context() as meanwhile:
                meanwhile.setattr(here.loop, "ask", full)
                assert "controller/office.json" in await files_of(here.client.stub)

    asyncio.run(story())


def test_no_key_of_the_configuration_holds_a_secret() -> None:
    """All of it is shown: who adds a key that must not be has to say so in support.configuration."""
    said = support.configuration(Config(file=Path("c.toml")))
    assert not [key for key in said if re.search(r"token|secret|password|key", key)]


def secrets_in(folder: Path) -> list[str]:
    """Of every private key and token in files below it, as they would look in a text."""
    found = []
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_bytes().decode(errors="replace")
        private = re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.*?)-----END", text, re.DOTALL)
        found += [line for body in private for line in body.splitlines()]
        found += [text.strip()] if "token" in path.name or "secret" in path.name else []
    return found


def hsctl(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    argv: Sequence[str] = [
        sys.executable,
        "-m",
        "hs_client",
        "--controller",
        f"unix:{cluster.socket}",
        *words,
    ]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_no_key_token_or_environment_is_in_a_bundle_of_a_real_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    host = Host(cluster, "v77")
    host.join()
    with host.running(), grpc.insecure_channel(f"unix:{cluster.socket}") as channel:
        stub = controller_pb2_grpc.HeteroShareStub(channel)
        host.says(CONNECTED)
        stub.SetUser(pb.SetUserRequest(key="u", name="ann"))
        token = stub.CreateToken(pb.CreateTokenRequest(key="t", user="ann")).token
        invited = cluster.enroll("v78").token
        stub.Submit(
            pb.SubmitRequest(
                key="j", as_user="ann", jobs=[spec(command=["echo", SECRET], env={"WANDB_API_KEY": SECRET})]
            )
        )
        done = hsctl(cluster, "support-bundle", str(tmp_path / "b.tar.gz"))
        assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "b.tar.gz") as bundle:
        files = {
            member.name.partition("/")[2]: bundle.extractfile(member).read().decode() for member in bundle
        }
    assert re.search(r"^ok +certificate", files["servers/v77/doctor.txt"], re.MULTILINE)
    assert re.search(r"clock .* the controller's \(within", files["servers/v77/doctor.txt"]), "over mTLS"
    assert "ann" in files["state/users.jsonl"]
    assert files["state/jobs.jsonl"]
    hidden = [*secrets_in(cluster.folder), token, invited, SECRET]
    assert len(hidden) >= 3 * 3 + 1 + 3, (
        "keys of the CA, the controller and a node, the secret of tokens, and ours"
    )
    for name, text in files.items():
        assert not [secret for secret in hidden if secret in text], name
