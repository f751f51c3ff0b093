"""What administrators do to nodes and the journal: audited, repeatable, refused to others (that is in test_permissions)."""

import asyncio
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import grpc
import pytest

from hs_controller import admin_service, backup, pki, views
from hs_controller.app import Controller
from hs_controller.config import Config
from hs_controller.journal import Journal
from hs_controller.rows import Event
from hs_controller.sqlite import StoreUnavailableError
from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.events import Fact
from hs_core.mechanism.trade import dump
from hs_core.names import JobId, UserName
from hs_core.policies import find
from hs_core.policy import Trade, Verdict
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.daemons import Daemon
from tests.controller.kit import PLAIN, spec, started, until


async def kinds(here) -> list[tuple[str, str]]:
    call = here.client.stub.Events(pb.EventsRequest())
    return [(event.kind, event.data.get("by", "")) async for event in call]


def refused_as(error, code: grpc.StatusCode, words: str) -> None:
    assert (error.value.code(), words in error.value.details()) == (code, True), error.value.details()


def test_a_node_is_drained_and_undrained_once_however_often_it_is_asked(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub, you = here.client.stub, (await here.client.stub.Info(pb.InfoRequest())).you
            agent = await here.agent().join()
            request = pb.DrainNodeRequest(key="d", node="h1", reason="new fan", deadline_s=600)
            first = await stub.DrainNode(request)
            assert (first.draining, first.drain_reason, first.state) == (True, "new fan", "up")
            assert 590 < first.drain_deadline_at - here.loop.clock.now_s() <= 600
            assert await stub.DrainNode(request) == first, "the same key, the same answer"
            [job] = await here.client.submit(spec())
            await until(lambda: here.loop.mind.watched.decided_s > 0)
            assert (await here.client.view(job)).host == "", "nothing new comes to it"
            for key in ("u", "v"):
                assert not (await stub.UndrainNode(pb.NodeRequest(key=key, node="h1"))).draining
            await agent.until(lambda: agent.wants(job) is not None)
            told = await kinds(here)
            assert told.count(("host-drained", you)) == told.count(("host-undrained", you)) == 1
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.DrainNode(pb.DrainNodeRequest(key="x", node="h9"))
            refused_as(error, grpc.StatusCode.NOT_FOUND, "unknown server 'h9'")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.DrainNode(pb.DrainNodeRequest(node="h1"))
            refused_as(error, grpc.StatusCode.INVALID_ARGUMENT, "idempotency key")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.DrainNode(pb.DrainNodeRequest(key="y", node="h1", deadline_s=1e12))
            refused_as(error, grpc.StatusCode.INVALID_ARGUMENT, "days): at most 366 days")  # no date

    asyncio.run(story())


def test_while_a_directory_is_asked_for_an_account_or_the_host_others_are_answered(
    lasting: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        asked.set()
        assert answer.wait(5.0), "the event loop stood still meanwhile"
        return "gpu-head:7443"

    monkeypatch.setattr(admin_service, "check_account", slow)
    monkeypatch.setattr(Config, "reached_at", slow)
    pki.init(lasting.state_dir)

    async def story() -> None:
        async with started(lasting) as here:
            stub = here.client.stub
            for method, request in (
                (stub.SetUser, pb.SetUserRequest(key="u", name="ann", run_as="ann2")),
                (stub.EnrollNode, pb.EnrollNodeRequest(key="n", node="v1")),
            ):
                call = method(request)
                await until(asked.is_set)
                await stub.Info(pb.InfoRequest())
                answer.set()
                await call
                asked.clear()
                answer.clear()

    asyncio.run(story())


def test_of_a_drained_server_only_those_gpus_count_as_usable_on_which_somebody_still_runs(
    config: Config,
) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub, agent = here.client.stub, await here.agent(gpus=4).join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")

            async def pool() -> tuple[int, int, int]:
                [pool] = (await stub.Shares(pb.SharesRequest())).pools
                return pool.gpus, pool.healthy, pool.busy

            assert await pool() == (4, 4, 1)
            await stub.DrainNode(pb.DrainNodeRequest(key="d", node="h1"))
            assert await pool() == (4, 1, 1)
            await stub.UndrainNode(pb.NodeRequest(key="u", node="h1"))
            await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="g", node="h1", gpus=[0, 1], drain=True))
            assert await pool() == (4, 3, 1), "one of the drained ones is still somebody's"

    asyncio.run(story())


def test_gpus_are_drained_by_their_indices_and_stay_so_after_a_restart(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            await here.agent().join()
            drain = await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="a", node="h1", gpus=[1, 2], drain=True))
            assert list(drain.drained_gpus) == [1, 2]
            less = await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="b", node="h1", gpus=[2]))
            assert list(less.drained_gpus) == [1]
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="c", node="h1", gpus=[7], drain=True))
            refused_as(error, grpc.StatusCode.NOT_FOUND, "no GPU 7; it has 0, 1, 2, 3")
        async with started(config) as here:
            await here.agent().join()
            [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
            assert list(node.drained_gpus) == [1]

    asyncio.run(story())


def test_a_removed_node_is_gone_and_its_jobs_are_queued_again(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            agent = await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.RemoveNode(pb.RemoveNodeRequest(key="r", node="h1"))
            refused_as(error, grpc.StatusCode.ABORTED, "drain it first")
            await agent.leave()
            await until(lambda: not here.loop.mind.machine.connected)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.RemoveNode(pb.RemoveNodeRequest(key="r1", node="h1"))
            refused_as(error, grpc.StatusCode.ABORTED, f"job {job} may still run there, then twice")
            answer = await stub.RemoveNode(pb.RemoveNodeRequest(key="r2", node="h1", force=True))
            assert (answer.node, list(answer.requeued_jobs)) == ("h1", [job])
            assert not (await stub.ListNodes(pb.ListNodesRequest())).nodes
            assert (await stub.RemoveNode(pb.RemoveNodeRequest(key="r3", node="h1"))).node == "h1", (
                "safe to repeat"
            )
            told = await kinds(here)
            assert [kind for kind, _ in told].count("host-removed") == 1
        async with started(config) as here:
            assert not (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes, "after a restart too"

    asyncio.run(story())


def test_of_a_removed_nodes_jobs_those_that_have_found_another_home_by_then_are_named_too(
    config: Config,
) -> None:
    async def story() -> None:
        async with started(config, find("gandiva-fair")) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            other = await here.agent(name="h2").join()
            await agent.leave()
            machine, clock = here.loop.mind.machine, here.loop.clock
            await until(lambda: "h1" not in machine.connected)
            watched, pause_s = here.loop.mind.watched, machine.settings.settle_s
            await until(
                lambda: clock.now_s() - watched.decided_s >= pause_s
            )  # so that the removal is decided about at once
            answer = await here.client.stub.RemoveNode(pb.RemoveNodeRequest(key="r", node="h1", force=True))
            assert list(answer.requeued_jobs) == [job]
            await other.until(lambda: other.wants(job) is not None)

    asyncio.run(story())


def test_an_agent_that_says_nothing_is_away_when_its_lease_is_over(config: Config) -> None:
    quick = Config(file=config.file, state_dir=config.state_dir, socket=config.socket, lease_s=0.3)

    async def story() -> None:
        async with started(quick) as here:
            agent = await here.agent().join()
            await until(lambda: agent.error is not None)
            assert "said nothing for 0.3 s" in agent.error.details()
            await until(lambda: not here.loop.mind.machine.connected)

    asyncio.run(story())


def test_agents_hear_the_controller_though_it_has_nothing_to_say(config: Config) -> None:
    quick = Config(file=config.file, state_dir=config.state_dir, socket=config.socket, fence_after_s=0.4)

    async def story() -> None:
        async with started(quick) as here:
            agent = await here.agent().join()
            stamps: list[float] = []
            agent.on_any = lambda message: stamps.append(message.sent_s)
            await until(lambda: len(stamps) >= 3)
            assert stamps == sorted(stamps)

    asyncio.run(story())


def test_troubles_of_a_server_are_among_its_warnings_for_as_long_as_it_has_them(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            agent = await here.agent().join()

            async def warned(*expected: str) -> None:
                async with asyncio.timeout(60):
                    while True:
                        [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
                        if tuple(node.warnings) == expected:
                            return

            await warned()
            await agent.has_troubles("no job can be started: No space left on device", "x" * 5000)
            await warned("no job can be started: No space left on device", "x" * 500)
            await agent.has_troubles()
            await warned()

    asyncio.run(story())


def test_the_policy_says_what_it_is_and_how_long_it_took(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            await here.agent().join()
            await here.client.submit(spec())
            await until(lambda: here.loop.mind.watched.decided_s > 0)
            view = await here.client.stub.GetPolicy(pb.PolicyRequest())
            assert (view.name, view.quantum_s, view.fair) == ("plain", 1.0, False)
            assert "gandiva-fair" in view.available
            assert view.decided_at > 0
            assert view.decision_s > 0

    asyncio.run(story())


def test_a_policy_that_leaves_jobs_where_they_came_is_not_said_to_leave_no_gpu_idle(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            said = {
                name: (await stub.SetPolicy(pb.SetPolicyRequest(key=name, name=name))).work_conserving
                for name in ("las", "lottery", "gang-lottery", "fifo")
            }
            assert said == {"las": True, "lottery": False, "gang-lottery": False, "fifo": False}

    asyncio.run(story())


def test_a_policy_that_was_set_stays_in_office_and_restarts_nobody(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub, agent = here.client.stub, await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            before = await here.client.view(job)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.SetPolicy(pb.SetPolicyRequest(key="a", name="lass"))
            refused_as(error, grpc.StatusCode.INVALID_ARGUMENT, "did you mean las?")
            for key in ("b", "c"):
                view = await stub.SetPolicy(pb.SetPolicyRequest(key=key, name="las"))
                assert (view.name, view.preemptive) == ("las", True)
                assert view.text.startswith("Least attained service")
            await until(lambda: here.loop.mind.watched.decided_s > 0)
            after = await here.client.view(job)
            assert (after.host, after.epoch) == (before.host, before.epoch) == ("h1", 0)
            told = await kinds(here)
            assert [kind for kind, _ in told].count("policy-set") == 1
        async with started(config) as here:
            assert (await here.client.stub.GetPolicy(pb.PolicyRequest())).name == "las"

    asyncio.run(story())


def test_a_policy_that_fails_leaves_the_controller_in_office_until_another_one_is_put_in_its_place(
    config: Config,
) -> None:
    def fails(*_: object) -> Verdict:
        raise ZeroDivisionError("by nobody")

    async def story() -> None:
        async with started(config, replace(find("fifo"), decide=fails)) as here:
            stub, agent = here.client.stub, await here.agent().join()
            [job] = await here.client.submit(spec())
            await until(lambda: here.loop.mind.machine.failure)
            view = await stub.GetPolicy(pb.PolicyRequest())
            assert view.failure.startswith("ZeroDivisionError: by nobody (controller/test_admin.py:")
            assert "the policy fifo fails" in (await stub.Why(pb.JobRequest(job_id=job))).text
            view = await stub.SetPolicy(pb.SetPolicyRequest(key="a", name="las"))
            assert (view.name, view.failure) == ("las", "")
            await agent.until(lambda: agent.wants(job) is not None)
            assert [kind for kind, _ in await kinds(here)].count("policy-failed") == 1

    asyncio.run(story())


def test_a_policy_that_the_configuration_changes_is_in_the_audit_once(config: Config) -> None:
    async def policies_set(policy: str) -> list[tuple[str, str]]:
        async with started(config, find(policy)) as here:
            await here.client.submit(spec())
            return [each for each in await kinds(here) if each[0] == "policy-set"]

    assert asyncio.run(policies_set("fifo")) == []
    assert asyncio.run(policies_set("las")) == [("policy-set", "the configuration")]
    assert asyncio.run(policies_set("las")) == [("policy-set", "the configuration")]


def test_a_policy_that_the_configuration_changes_is_not_told_what_another_one_remembered(
    config: Config,
) -> None:
    async def decided(policy: str) -> str:
        async with started(config, find(policy)) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            return here.loop.mind.machine.failure

    assert asyncio.run(decided("gandiva-fair")) == ""
    assert asyncio.run(decided("las")) == ""
    assert asyncio.run(decided("pal")) == ""


def test_trades_of_a_policy_that_the_configuration_replaces_are_told_as_undone(config: Config) -> None:
    """By a controller that died before it had decided anything, too."""
    trade = Trade(
        fast="V100", slow="K80", giver=UserName("alice"), taker=UserName("bob"), fast_gpus=Fraction(1),
        slow_gpus=Fraction(2), price=2.0, giver_speedup=1.0, taker_speedup=3.0, since_s=1.0,
    )  # fmt: skip
    memory = {"quantum": 1, "moved": 1, "trades": dump([trade])}

    async def story(policy: str) -> list[str]:
        async with started(config, find(policy)) as here:
            await here.client.submit(spec())
            return [kind for kind, _ in await kinds(here) if kind.startswith("trade")]

    assert asyncio.run(story("gandiva-fair")) == []
    with sqlite3.connect(config.state_dir / "journal.db") as db:
        db.execute("insert or replace into meta values ('memory', ?)", (json.dumps(memory),))
    assert asyncio.run(story("las")) == ["trade-undone"]
    with sqlite3.connect(config.state_dir / "journal.db") as db:
        (left,) = db.execute("select value from meta where key = 'memory'").fetchone()
    assert "trades" not in json.loads(left)
    assert asyncio.run(story("las")) == ["trade-undone"]


def test_trades_are_shown_while_they_stand_and_on_request_when_undone(config: Config) -> None:
    trade = Trade(
        fast="V100",
        slow="K80",
        giver=UserName("ann"),
        taker=UserName("bob"),
        fast_gpus=Fraction(1),
        slow_gpus=Fraction(3),
        price=3.0,
        giver_speedup=1.5,
        taker_speedup=5.0,
        since_s=5.0,
    )
    shown = views.trade(trade)
    assert (shown.gives, shown.receives, shown.price, shown.undone) == ("ann", "bob", 3.0, 0.0)
    from hs_core.cluster.trade_facts import trade_data

    fact = Fact(now_s=9.0, kind="trade-undone", text="…", data={**trade_data(trade), "why": "bob left"})
    undone = views.undone_trade(Event(seq=1, fact=fact))
    assert (undone.undone, undone.why_undone) == (9.0, "bob left")
    undone.ClearField("undone")
    undone.ClearField("why_undone")
    assert undone == shown

    async def story() -> None:
        async with started(config) as here:
            assert not (await here.client.stub.ListTrades(pb.ListTradesRequest(all=True))).trades

    asyncio.run(story())


async def backup_of(config: Config, jobs: int) -> bytes:
    async with started(config) as here:
        for number in range(jobs):
            await here.client.submit(spec(f"job-{number}"))
        data, digest = b"", ""
        async for chunk in here.client.stub.Backup(pb.BackupRequest()):
            assert not digest, "the digest comes with the last chunk"
            data, digest = data + chunk.data, chunk.sha256
        assert hashlib.sha256(data).hexdigest() == digest
        assert ("backup", (await here.client.stub.Info(pb.InfoRequest())).you) in await kinds(here)
        await here.client.submit(spec("after the backup"))
    return data


def test_a_backup_that_is_not_made_is_not_in_the_audit_as_one(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_folder: Path) -> None:
        raise StoreUnavailableError("no room")

    async def told(here) -> list[str]:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await anext(aiter(here.client.stub.Backup(pb.BackupRequest())))
        refused_as(error, grpc.StatusCode.UNAVAILABLE, "no backup could be made: no room")
        return [kind for kind, _ in await kinds(here) if kind.startswith("backup")]

    async def story() -> None:
        async with started(config) as here:
            with monkeypatch.context() as patch:
                patch.setattr(backup, "check_room", refuse)
                assert await told(here) == []
            monkeypatch.setattr(backup, "take", refuse)
            assert await told(here) == ["backup", "backup-failed"]

    asyncio.run(story())


def test_a_backup_is_put_back_whole_and_above_all_terms_and_numbers_before(
    config: Config, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(asyncio.run(backup_of(config, 3)))
    assert not list(config.state_dir.glob("backup*"))
    config.file.write_text(f'state_dir = "{config.state_dir}"\n')
    argv = [
        sys.executable,
        "-m",
        "hs_controller",
        "restore",
        "--config",
        str(config.file),
        "--from",
        str(copy),
    ]

    def restore(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *more], capture_output=True, text=True, timeout=120, check=False)

    there = restore()
    assert (there.returncode, "--force" in there.stderr) == (1, True)
    held = Journal.open(config.state_dir)
    term = held.begin_term()
    locked = restore("--force")
    assert (locked.returncode, "another controller" in locked.stderr) == (1, True)
    held.close()
    torn = tmp_path / "torn.db"
    torn.write_bytes(copy.read_bytes()[:5000])
    before = {file.name: file.read_bytes() for file in config.state_dir.glob("journal*")}
    argv[-1] = str(torn)
    refused = restore("--force")
    assert refused.returncode == 1
    assert refused.stderr == f"hs-controller: {torn}: cannot be put back: database disk image is malformed\n"
    after = {file.name: file.read_bytes() for file in config.state_dir.glob("journal*")}
    assert after == before, "what cannot be put back changes nothing, and leaves nothing behind"
    argv[-1] = str(copy)
    done = restore("--force")
    assert done.returncode == 0, done.stderr
    assert "restored, with 3 jobs" in done.stdout

    async def story() -> None:
        async with started(config) as here:
            jobs = (await here.client.stub.ListJobs(pb.ListJobsRequest())).jobs
            assert sorted(job.name for job in jobs) == ["job-0", "job-1", "job-2"]
            assert here.loop.mind.machine.term > term + 1_000_000
            *_, backed_up, put_back = await kinds(here)
            me = (await here.client.stub.Info(pb.InfoRequest())).you
            assert (backed_up, put_back) == (("backup", me), ("journal-restored", me))
            assert await here.client.submit(spec()) == [1_000_004]

    asyncio.run(story())


def test_a_backup_is_whole_though_one_before_it_was_cancelled_while_it_was_made(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, making, made, take = threading.Event(), list[int](), list[int](), backup.take

    def slow(folder: Path) -> backup.Copy:
        making.append(len(making) - len(made))  # others that are being made
        if len(making) == 1:
            assert gate.wait(60.0)
        copy = take(folder)
        made.append(len(made))
        return copy

    monkeypatch.setattr(backup, "take", slow)

    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            first = asyncio.create_task(anext(aiter(stub.Backup(pb.BackupRequest()))))
            await until(lambda: bool(making))
            first.cancel()
            await asyncio.wait({first})
            await until(lambda: not here.controller._service._copies.sending.locked())
            asked = here.loop.onlookers.last_seq
            second = stub.Backup(pb.BackupRequest())
            await until(lambda: here.loop.onlookers.last_seq > asked)
            gate.set()
            chunks = [chunk async for chunk in second]
            assert hashlib.sha256(b"".join(chunk.data for chunk in chunks)).hexdigest() == chunks[-1].sha256
            assert making == [0, 0], "one after the other: they have one name"

    asyncio.run(story())


def test_a_backup_goes_to_a_new_machine(config: Config, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(asyncio.run(backup_of(config, 1)))
    new = tmp_path / "new"
    new.mkdir()
    daemon = Daemon(new)
    argv = [sys.executable, "-m", "hs_controller", "restore", "--config", str(daemon.file), "--from"]
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    wrong = subprocess.run([*argv, str(foreign)], capture_output=True, text=True, timeout=120, check=False)
    assert (wrong.returncode, "not a HeteroShare journal" in wrong.stderr) == (1, True)
    done = subprocess.run([*argv, str(copy)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with daemon.file.open("a") as file:
        file.write('\nlisten = "127.0.0.1:0"\n')
    bare = subprocess.run(daemon.argv(), capture_output=True, text=True, timeout=120, check=False)
    assert bare.returncode == 1
    assert f"put {new}/state/pki back from where you keep it" in bare.stderr, "a new CA would lock all out"
    shutil.copytree(made_pki(tmp_path), new / "state" / "pki")
    daemon.start()
    assert daemon.end() == 0


def made_pki(folder: Path) -> Path:
    pki.init(folder / "of-before")
    return folder / "of-before" / "pki"


def test_memory_is_written_when_it_changed_and_rates_now_and_then(config: Config) -> None:
    async def story() -> None:
        controller = Controller(config, PLAIN)
        await controller.start()
        try:
            mind = controller.loop.mind
            assert "memory" not in mind.meta(), "as it is in the journal"
            mind.machine._memory = {"rounds": 1}
            assert mind.meta()["memory"] == {"rounds": 1}
            assert "memory" not in mind.meta()
        finally:
            await controller.stop()

    asyncio.run(story())


def test_a_job_that_ran_on_a_server_which_is_away_is_listed_with_that() -> None:
    at = World(find("las"), Settings(quantum_s=10.0, settle_s=0.0))
    for line in ("user alice", "host n1 V100:4", "submit alice a", "report n1 1:0=running"):
        at.do(line)
    assert views.job_view(at.machine, at.machine.job(JobId(1)), 0.0, mine=True).reason == ""
    at.do("leave n1")
    shown = views.job_view(at.machine, at.machine.job(JobId(1)), 0.0, mine=True)
    assert (shown.state, shown.reason) == ("running", "host-away")
    assert shown.reason_text == "its server n1 is not connected; what it was doing there goes on"
