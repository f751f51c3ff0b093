"""The real process: killed and started again, a second one beside it, who comes through which door."""

import asyncio
import os
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hs_daemon import version
from hs_proto.v1 import common_pb2, controller_pb2_grpc
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.daemons import Daemon
from tests.controller.kit import Client, FakeAgent, channel_to, spec, until

NOBODY = 65534


class Hanging(Daemon):
    """With a policy in office that never answers."""

    def __init__(self, folder: Path, how: str) -> None:
        super().__init__(folder, more='policy = "las"\n')
        self.how = how

    def argv(self) -> list[str]:
        return [
            sys.executable,
            str(Path(__file__).with_name("hanging.py")),
            self.how,
            "--config",
            str(self.file),
        ]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    yield from _ended(Daemon(tmp_path))


@pytest.fixture
def open_daemon() -> Iterator[Daemon]:
    """In a folder that every account may enter. pytest's own are closed to others, and each run that begins beside this one closes them again."""
    with tempfile.TemporaryDirectory(prefix="hsc", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield from _ended(Daemon(folder))


def _ended(one: Daemon) -> Iterator[Daemon]:
    yield one
    if one.process is not None and one.process.poll() is None:
        one.kill()


def run_as(uid: int, address: Path, code: str) -> str:
    """What a process of another account sees through the socket; it gets nothing from this one but the address."""
    program = (
        # Imported before: this interpreter may live where the other account cannot read.
        "import os, grpc, contextlib, json, encodings.idna\n"
        "from hs_proto.v1 import controller_pb2 as pb, controller_pb2_grpc, agent_pb2, agent_pb2_grpc, common_pb2\n"
        f"grpc.insecure_channel('unix:{address}').close()\n"
        f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
        f"channel = grpc.insecure_channel('unix:{address}')\n"
        "stub = controller_pb2_grpc.HeteroShareStub(channel)\n"
        "def refusal(call):\n"
        "    try:\n        call()\n        return 'allowed'\n"
        "    except grpc.RpcError as error:\n        return f'{error.code().name}: {error.details()}'\n"
        + code
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_controller_without_a_descriptor_answers_who_is_connected(daemon: Daemon) -> None:
    async def story() -> None:
        daemon.start()
        async with channel_to(f"unix:{daemon.socket}") as channel:
            client = Client(channel)
            await client.stub.ListJobs(pb.ListJobsRequest())
            assert daemon.process is not None
            limits = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            info = await client.stub.Info(pb.InfoRequest())
            assert (info.version, info.read_only) == (version(), False)
            assert await client.submit(spec("runs")) == [1]

    asyncio.run(story())


def test_what_was_acknowledged_is_there_after_kill_9(daemon: Daemon) -> None:
    async def story() -> None:
        acknowledged: list[int] = []
        daemon.start()
        async with channel_to(f"unix:{daemon.socket}") as channel:
            client = Client(channel)
            info = await client.stub.Info(pb.InfoRequest())
            agent = await FakeAgent(channel).join()
            acknowledged += await client.submit(spec("runs"))
            await agent.until(lambda: agent.wants(1) is not None)
            await agent.report(1, "running", gpu_s=5.0, step=50)
            await client.until(1, lambda view: view.state == "running")

            async def submit_until_it_dies() -> None:
                try:
                    while True:
                        acknowledged.extend(await client.submit(spec("more")))
                except grpc.aio.AioRpcError:
                    return

            streams = [asyncio.create_task(submit_until_it_dies()) for _ in range(4)]
            await until(lambda: len(acknowledged) >= 100)
            daemon.kill()
            await asyncio.gather(*streams)
            await agent.leave()
        daemon.start()
        async with channel_to(f"unix:{daemon.socket}") as channel:
            client = Client(channel)
            again = await client.stub.Info(pb.InfoRequest())
            assert again.term == info.term + 1
            listed = await client.stub.ListJobs(pb.ListJobsRequest(limit=5000))
            jobs = {view.id: view for view in listed.jobs}
            assert set(acknowledged) <= set(jobs)
            assert len(jobs) <= len(acknowledged) + 4, "at most those whose answer was under way"
            assert (jobs[1].state, jobs[1].gpu_s) == ("running", 5.0)
            said = common_pb2.JobReport(
                job_id=1,
                phase="running",
                gpu_s=6.0,
                step=60,
                checkpoint_step=-1,
                sliceable=True,
                gpus=["GPU-h1-0"],
            )
            agent = await FakeAgent(channel).join((said,))
            await agent.until(lambda: bool(agent.wanted))
            assert agent.wanted[-1].term == again.term
            assert agent.wants(1).epoch == 0, "it was not started again"
            await client.until(1, lambda view: view.gpu_s == 6.0)
            [row] = (await client.stub.Usage(pb.UsageRequest())).rows
            assert row.gpu_s == 6.0
            await agent.leave()
        assert daemon.end() == 0
        assert not daemon.socket.exists()

    asyncio.run(story())


async def _stuck(daemon: Daemon, channel: grpc.aio.Channel) -> FakeAgent:
    """Somebody's job waits, and the policy is at a decision that never ends."""
    agent = await FakeAgent(channel).join()
    await Client(channel).submit(spec("waits"))
    await until(lambda: "hangs\n" in daemon.log.read_text())
    return agent


@pytest.mark.parametrize("how", ["wait", "loop"])
def test_a_controller_whose_policy_never_answers_ends_as_any_other(tmp_path: Path, how: str) -> None:
    daemon = Hanging(tmp_path, how).start()

    async def story() -> None:
        async with channel_to(f"unix:{daemon.socket}") as channel:
            await (await _stuck(daemon, channel)).leave()

    try:
        asyncio.run(story())
        assert daemon.end() == 0
        assert '"event": "stopped"' in daemon.log.read_text().splitlines()[-1]
        assert not daemon.socket.exists()
    finally:
        daemon.kill()


def test_a_policy_that_never_answers_is_given_up_for_another_which_is_in_office_after_a_restart(
    tmp_path: Path,
) -> None:
    daemon = Hanging(tmp_path, "wait").start()

    async def given_up() -> None:
        async with channel_to(f"unix:{daemon.socket}") as channel:
            client, agent = Client(channel), await _stuck(daemon, channel)
            assert (await client.stub.GetPolicy(pb.PolicyRequest())).deciding_s > 0
            said = await client.stub.SetPolicy(pb.SetPolicyRequest(key="p", name="fifo"))
            assert (said.name, said.failure) == ("fifo", "")
            await agent.until(lambda: agent.wants(1) is not None)
            assert (await client.stub.GetPolicy(pb.PolicyRequest())).given_up == 1
            await agent.leave()

    async def after() -> None:
        async with channel_to(f"unix:{daemon.socket}") as channel:
            client = Client(channel)
            view = await client.stub.GetPolicy(pb.PolicyRequest())
            assert (view.name, view.given_up) == ("fifo", 0)
            agent = await FakeAgent(channel).join()
            await client.submit(spec("another"))
            await agent.until(lambda: agent.wants(2) is not None)
            await agent.leave()

    try:
        asyncio.run(given_up())
        assert daemon.end() == 0
        daemon.start()
        asyncio.run(after())
        assert daemon.end() == 0
    finally:
        daemon.kill()


def test_a_log_on_a_full_disk_stops_nothing(daemon: Daemon) -> None:
    daemon.log.symlink_to("/dev/full")
    daemon.start()
    daemon.log.unlink()

    async def submitted() -> list[int]:
        async with channel_to(f"unix:{daemon.socket}") as channel:
            client, agent = Client(channel), await FakeAgent(channel).join()
            jobs = await client.submit()
            await agent.until(lambda: agent.wants(1) is not None)
            await agent.leave()
            return jobs

    assert asyncio.run(submitted()) == [1]
    assert daemon.end() == 0


def test_the_journal_keeps_each_lines_level(daemon: Daemon, tmp_path: Path) -> None:
    daemon.log.touch()
    there = daemon.log.stat()
    stream = f"{there.st_dev}:{there.st_ino}"
    daemon.start(JOURNAL_STREAM=stream)
    lines = daemon.log.read_text().splitlines()
    assert any(line.startswith('<6>{"event": "in-office", ') for line in lines), lines
    second = Daemon(tmp_path)
    with second.log.open("a") as log:
        done = subprocess.run(
            second.argv(),
            env={**os.environ, "JOURNAL_STREAM": stream},
            stderr=log,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert daemon.log.read_text().splitlines()[-1].startswith("<3>hs-controller: ")


def test_lines_that_the_journal_does_not_read_have_no_mark(daemon: Daemon) -> None:
    daemon.start(JOURNAL_STREAM="1:1")
    lines = daemon.log.read_text().splitlines()
    assert [line for line in lines if not line.startswith('{"event": ')] == []


def test_a_hang_up_ends_the_controller_as_a_stop_does(daemon: Daemon) -> None:
    daemon.start()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon.process.wait(20) == 0
    assert '"event": "stopped"' in daemon.log.read_text()


def test_a_hang_up_that_nohup_ignores_ends_nothing() -> None:
    code = "from hs_daemon.signals import stop_signals; print([one.name for one in stop_signals()])"
    told = [
        subprocess.run(
            ["sh", "-c", f"{before}exec {shlex.quote(sys.executable)} -c '{code}'"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        for before in ("trap '' HUP; ", "trap - HUP; ")
    ]
    assert [one.stdout.strip() for one in told] == [
        "['SIGTERM', 'SIGINT']",
        "['SIGTERM', 'SIGINT', 'SIGHUP']",
    ]


def test_a_second_controller_on_the_same_state_refuses_to_start(daemon: Daemon) -> None:
    daemon.start()
    done = subprocess.run(daemon.argv(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"another controller (pid {daemon.process.pid})" in done.stderr
    assert daemon.end() == 0, "the first one was not disturbed"


def test_a_second_controller_on_the_same_socket_refuses_to_start(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    other = daemon.folder / "other.toml"
    other.write_text(f'state_dir = "{tmp_path}/other"\nsocket = "{daemon.socket}"\n')
    argv = [sys.executable, "-m", "hs_controller", "run", "--config", str(other)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "another process listens there" in done.stderr
    assert daemon.end() == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('polcy = "fifo"', "did you mean 'policy'"),
        ('policy = "gandiva-fare"', "gandiva-fair"),
        ('dev = true\nlisten = "0.0.0.0:7443"', "never leaves this machine"),
        ('users.bob.run_as = "nobody-at-all"', "no such account"),
    ],
)
def test_a_wrong_configuration_ends_with_2_and_says_why(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'{text}\nstate_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/s"\n')
    argv = [sys.executable, "-m", "hs_controller", "run", "--config", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert str(file) in done.stderr
    assert told in done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="changing the account needs root")
def test_an_account_is_known_by_its_connection_and_is_no_admin(open_daemon: Daemon) -> None:
    daemon = open_daemon.start()
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o666
    said = run_as(
        NOBODY,
        daemon.socket,
        "info = stub.Info(pb.InfoRequest())\nprint(info.you, info.admin)\n"
        "print(refusal(lambda: stub.SetUser(pb.SetUserRequest(key='k', name='nobody', tickets=1e6))))\n"
        "spec = dict(name='j', command=['true'], gpus=1, workdir='/', env={'TOKEN': 'secret'})\n"
        "print(refusal(lambda: stub.Submit(pb.SubmitRequest(key='k', as_user='root', jobs=[common_pb2.JobSpec(**spec)]))))\n"
        "print(refusal(lambda: stub.Cancel(pb.JobsRequest(key='k2', job_ids=[99]))))\n"
        "print(list(stub.Submit(pb.SubmitRequest(key='k3', jobs=[common_pb2.JobSpec(**spec)])).job_ids))\n"
        "print(refusal(lambda: next(iter(agent_pb2_grpc.AgentLinkStub(channel).Connect(iter([]))))))\n",
    ).splitlines()
    assert said[0] == "nobody False"
    assert said[1].startswith("PERMISSION_DENIED: user set is not allowed to nobody")
    assert said[2].startswith("PERMISSION_DENIED: as_user")
    assert said[3] == "NOT_FOUND: there is no job 99"
    assert said[4] == "[1]"
    assert said[5].startswith("PERMISSION_DENIED: Connect is not allowed")

    async def root() -> int:
        async with channel_to(f"unix:{daemon.socket}") as channel:
            stub = controller_pb2_grpc.HeteroShareStub(channel)
            assert (await stub.Info(pb.InfoRequest())).admin
            [mine] = await Client(channel).submit(spec(env={"TOKEN": "secret"}))
            return mine

    mine = asyncio.run(root())
    said = run_as(
        NOBODY,
        daemon.socket,
        f"print(refusal(lambda: stub.Cancel(pb.JobsRequest(key='c', job_ids=[{mine}]))))\n"
        f"print(refusal(lambda: stub.Pause(pb.JobsRequest(key='p', job_ids=[1, {mine}]))))\n"
        f"print(refusal(lambda: next(stub.Logs(pb.LogsRequest(job_id={mine})))))\n"
        f"job = stub.GetJob(pb.JobRequest(job_id={mine}))\nprint(job.view.user, dict(job.spec.env))\n"
        "print(dict(stub.GetJob(pb.JobRequest(job_id=1)).spec.env), stub.GetJob(pb.JobRequest(job_id=1)).view.state)\n"
        "print([view.id for view in stub.ListJobs(pb.ListJobsRequest()).jobs])\n",
    ).splitlines()
    assert said[:3] == [f"NOT_FOUND: there is no job {mine}"] * 3, (
        "what is not yours answers like what does not exist"
    )
    assert said[3] == "root {'TOKEN': '(hidden)'}"
    assert said[4] == "{'TOKEN': 'secret'} queued", (
        "a refused request changed nothing of the other jobs in it either"
    )
    assert said[5] == f"[1, {mine}]"
    private = daemon.folder / "c.sock.d"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert daemon.end() == 0


def test_loopback_in_development_asks_for_the_token(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    daemon = Daemon(tmp_path, more=f'dev = true\nlisten = "127.0.0.1:{port}"\n').start()
    file = tmp_path / "state" / "admin.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text().strip()

    async def story() -> None:
        async with channel_to(f"127.0.0.1:{port}") as channel:
            stub = controller_pb2_grpc.HeteroShareStub(channel)
            wrong = [
                None,
                (("authorization", "Bearer wrong"),),
                (("authorization", token),),
                (("token", token),),
            ]
            for metadata in wrong:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stub.Info(pb.InfoRequest(), metadata=metadata)
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            right = (("authorization", f"Bearer {token}"),)
            info = await stub.Info(pb.InfoRequest(), metadata=right)
            assert (info.you, info.admin) == ("admin", True)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await FakeAgent(channel).join()
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError, match="say whose job it is"):
                await stub.Submit(pb.SubmitRequest(key="k", jobs=[spec()]), metadata=right)

    try:
        asyncio.run(story())
        assert token not in daemon.log.read_text()
    finally:
        assert daemon.end() == 0


def test_the_embedded_clusters_socket_is_its_owners_alone(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, more="embedded = true\n").start()
    try:
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    finally:
        assert daemon.end() == 0


def test_connections_have_a_limit(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, more="[limits]\nconnections_per_uid = 3\n").start()
    try:
        held = []
        for _ in range(5):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.settimeout(60)
            one.connect(str(daemon.socket))
            held.append(one)
        # HTTP/2 servers speak first; those beyond the limit are hung up on instead.
        answers = [one.recv(9) for one in held]
        assert sum(1 for answer in answers if answer) == 3
        for one in held:
            one.close()
    finally:
        assert daemon.end() == 0
