"""The controller over a real unix socket, with an agent that follows a script."""

import asyncio
import os
import pwd
import sqlite3
from dataclasses import replace

import grpc
import pytest
import structlog
from structlog.testing import capture_logs

from hs_daemon import version
from hs_proto import convert, dialect
from hs_proto.v1 import common_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import (
    CONFLICT,
    INVALID,
    NOT_FOUND,
    refused,
    spec,
    started,
    until,
)
from tests.controller.test_loop import Commits, disk_error

ME = pwd.getpwuid(os.geteuid()).pw_name


def test_a_job_is_wanted_reported_and_shown_until_it_ended(config):
    async def story():
        async with started(config) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(spec(gpus=2))
            await agent.until(lambda: agent.wants(job) is not None)
            wanted = agent.wants(job)
            assert (wanted.user, wanted.run_as, wanted.spec.gpus) == (ME, ME, 2)
            await agent.report(job, "running", gpus=2, step=10, gpu_s=4.0, run_s=2.0, steps_per_s=5.0)
            view = await here.client.until(job, lambda view: view.state == "running")
            assert (view.step, view.gpu_s, list(view.gpu_ids)) == (10, 4.0, ["GPU-h1-0", "GPU-h1-1"])
            await agent.report(job, "exited", step=20, gpu_s=8.0, exit=common_pb2.Exit(code=0))
            view = await here.client.until(job, lambda view: view.state == "succeeded")
            assert view.exit.code == 0
            assert view.gpu_s == 8.0
            usage = await here.client.stub.Usage(pb.UsageRequest())
            assert [(row.user, row.gpu_model, row.gpu_s, row.jobs) for row in usage.rows] == [
                (ME, "V100", 8.0, 1)
            ]
            await agent.leave()

    asyncio.run(story())


def test_requests_that_make_no_sense_are_refused_and_leave_nothing(lasting):
    async def story():
        async with started(lasting) as here:
            stub = here.client.stub
            async with refused(*INVALID, "key: missing"):
                await stub.Submit(pb.SubmitRequest(jobs=[spec()]))
            async with refused(*INVALID, "jobs[1]: migrate: 'sometimes' is not one of"):
                await here.client.submit(spec(), spec(migrate="sometimes"))
            async with refused(*INVALID, "gpus"):
                await here.client.submit(spec(gpus=0))
            async with refused(*NOT_FOUND, "hsctl user set carl"):
                await here.client.submit(as_user="carl")
            async with refused(*NOT_FOUND, "there is no job 77"):
                await stub.Cancel(pb.JobsRequest(key="k", job_ids=[77]))
            async with refused(*NOT_FOUND, "there is no job 77"):
                await stub.GetJob(pb.JobRequest(job_id=77))
            async with refused(*INVALID, "states: 'going'"):
                await stub.ListJobs(pb.ListJobsRequest(states=["going"]))
            async with refused(*INVALID, "run_as", "no such account"):
                await stub.SetUser(pb.SetUserRequest(key="k", name="carl", run_as="nobody-at-all"))
            async with refused(*INVALID, "window_s"):
                await stub.Shares(pb.SharesRequest(window_s=float("nan")))
            async with refused(*INVALID, "tail: 100001: at most 100000"):
                await stub.Events(pb.EventsRequest(tail=100_001)).read()
            assert (await stub.ListJobs(pb.ListJobsRequest(all=True))).jobs == []
            assert here.loop.mind.machine.users() == (), "nobody was added for a request that was refused"

    asyncio.run(story())


def test_who_is_refused_as_the_cluster_is_full_is_not_added_either(lasting):
    async def story():
        async with started(replace(lasting, limits=replace(lasting.limits, live_jobs=1))) as here:
            stub = here.client.stub
            await stub.SetUser(pb.SetUserRequest(key="u", name="ann"))
            await here.client.submit(as_user="ann")
            for dry_run in (True, False):
                async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "the cluster takes 1"):
                    await here.client.submit(dry_run=dry_run)
            assert [user.name for user in here.loop.mind.machine.users()] == ["ann"]

    asyncio.run(story())


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}", "%", "\n"])
def test_a_refusal_comes_through_however_long_the_words_in_it_are(lasting, letter):
    async def story():
        async with started(lasting) as here:
            async with refused(
                *NOT_FOUND, letter.encode("unicode_escape").decode() if letter == "\n" else letter
            ):
                await here.client.stub.DrainNode(pb.DrainNodeRequest(key="k", node=letter * 100_000))
            async with refused(*NOT_FOUND, "unknown server 'h1'; known: none yet"):
                await here.client.stub.DrainNode(pb.DrainNodeRequest(key="l", node="h1"))

    asyncio.run(story())


def test_a_message_that_is_too_large_is_refused(lasting):
    async def story():
        async with started(lasting) as here:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await here.client.submit(spec(env={"A": "x" * (2 << 20)}))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(story())


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([common_pb2.JobSpec()] * 300_000, "jobs: 300000 in one request; 1 to 4096 were expected"),
        (
            [common_pb2.JobSpec(after=[common_pb2.After(job_id=1)] * 1001)],
            "jobs[0]: after: 1001; at most 1000",
        ),
        (
            [common_pb2.JobSpec(strategies=[common_pb2.Strategy()] * 65)],
            "jobs[0]: strategies: 65; at most 64",
        ),
    ],
    ids=["jobs", "after", "strategies"],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_message_of_more_than_may_be_is_refused_before_it_is_read(
    lasting, monkeypatch, jobs: list[common_pb2.JobSpec], why: str, dry_run: bool
):
    """To read it all would keep everybody else waiting for seconds."""
    read: list[common_pb2.JobSpec] = []
    monkeypatch.setattr(convert, "to_spec", read.append)

    async def story():
        async with started(lasting) as here, refused(*INVALID, why):
            await here.client.stub.Submit(pb.SubmitRequest(key="k", jobs=jobs, dry_run=dry_run))

    asyncio.run(story())
    assert not read


def test_a_model_that_no_server_has_is_named_where_a_job_would_take_others_too(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            both = [spec(gpu_types=["V100", "A10"])]
            for dry_run in (True, False):
                reply = await here.client.stub.Submit(pb.SubmitRequest(key="k", jobs=both, dry_run=dry_run))
                assert list(reply.notes) == [
                    "no server has A10 GPUs: it can only run on the others that it names"
                ]
            reply = await here.client.stub.Submit(
                pb.SubmitRequest(jobs=[spec(gpu_types=["V100"])], dry_run=True)
            )
            assert not reply.notes
            await agent.leave()

    asyncio.run(story())


def test_a_dry_run_says_what_would_happen_and_changes_nothing(lasting):
    async def story():
        async with started(lasting) as here:
            stub = here.client.stub
            reply = await stub.Submit(pb.SubmitRequest(jobs=[spec(suspend="none")], dry_run=True))
            assert list(reply.job_ids) == []
            assert any("unsliced" in note for note in reply.notes)
            assert any("no server" in note for note in reply.notes)
            agent = await here.agent().join()
            async with refused("impossible", grpc.StatusCode.FAILED_PRECONDITION, "9 GPUs"):
                await stub.Submit(pb.SubmitRequest(jobs=[spec(gpus=9)], dry_run=True))
            assert here.loop.mind.machine.users() == ()
            assert here.loop.mind.machine.next_job_id == 1
            await agent.leave()

    asyncio.run(story())


def test_the_same_submit_sent_again_is_the_same_job_after_a_restart_too(lasting):
    async def story():
        async with started(lasting) as here:
            assert await here.client.submit(key="k") == [1]
            assert await here.client.submit(key="k") == [1]
        async with started(lasting) as here:
            assert await here.client.submit(key="k") == [1]
            async with refused(*CONFLICT, "key"):
                await here.client.submit(spec("other"), key="k")
            async with refused(*CONFLICT, "key"):
                await here.client.stub.Cancel(pb.JobsRequest(key="k", job_ids=[1]))
            assert await here.client.submit(key="k2") == [2]

    asyncio.run(story())


def test_pause_unpause_and_cancel_answer_with_the_jobs_as_they_are_then(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            jobs = await here.client.submit(spec("a"), spec("b"))
            stub = here.client.stub
            await agent.until(lambda: all(agent.wants(job) for job in jobs))
            paused = await stub.Pause(pb.JobsRequest(key="1", job_ids=jobs))
            assert [(view.id, view.state, view.reason) for view in paused.jobs] == [
                (job, "paused", "paused") for job in jobs
            ]
            await agent.until(lambda: all(agent.wants(job).paused for job in jobs))
            more = await stub.Pause(pb.JobsRequest(key="1+", job_ids=jobs))
            assert (paused.unchanged, more.unchanged) == ([], jobs)
            resumed = await stub.Unpause(pb.JobsRequest(key="2", job_ids=jobs[:1]))
            assert resumed.jobs[0].state != "paused"
            more = await stub.Unpause(pb.JobsRequest(key="2+", job_ids=jobs))
            assert (resumed.unchanged, more.unchanged) == ([], jobs[:1])
            assert (await stub.Unpause(pb.JobsRequest(key="2", job_ids=jobs[:1]))).unchanged == [], (
                "sent again: what it did"
            )
            cancelled = await stub.Cancel(pb.JobsRequest(key="3", job_ids=jobs))
            assert {view.state for view in cancelled.jobs} == {"cancelling"}
            await agent.until(lambda: all(agent.wants(job).cancelled for job in jobs))
            for job in jobs:
                await agent.report(job, "exited", exit=common_pb2.Exit(signal=15))
            for job in jobs:
                assert (await here.client.until(job, lambda view: view.ended_at > 0)).state == "cancelled"
            await agent.until(lambda: agent.wants(jobs[0]) is None)
            async with refused(*CONFLICT, "cancelled"):
                await stub.Pause(pb.JobsRequest(key="4", job_ids=jobs))
            again = await stub.Cancel(pb.JobsRequest(key="5", job_ids=jobs))
            assert {view.state for view in again.jobs} == {"cancelled"}, "what has ended is left as it is"
            assert again.unchanged == jobs
            sent_again = await stub.Cancel(pb.JobsRequest(key="3", job_ids=jobs))
            assert sent_again == pb.JobsReply(jobs=again.jobs), "as they are now"
            kept = (await here.loop.store.read(lambda journal: journal.load())).answered
            assert [answered.key for answered in kept if answered.answer] != [], "the submit's numbers"
            assert not any(answered.answer for answered in kept if answered.key in "123"), (
                "a job is kept once"
            )
            await agent.leave()

    asyncio.run(story())


def test_shares_say_who_is_entitled_to_and_receives_what(config):
    async def story():
        async with started(config) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(spec(gpus=4))
            await agent.until(lambda: agent.wants(job) is not None)
            now_s = asyncio.get_running_loop().time
            began_s = now_s()

            async def received() -> pb.ShareView:
                """Once the window lies within its running, whatever the machine's pace."""
                while True:
                    await agent.report(job, "running", gpus=4, gpu_s=4 * (now_s() - began_s))
                    await asyncio.sleep(0.1)
                    [share] = (await here.client.stub.Shares(pb.SharesRequest(window_s=3.0))).shares
                    assert share.received_gpus < 5
                    if share.received_gpus > 3:
                        return share

            share = await asyncio.wait_for(received(), 60)
            assert (share.user, share.gpu_model, share.tickets) == (ME, "V100", 100)
            assert (share.demand_gpus, share.entitled_gpus) == (4, 4)
            [pool] = (await here.client.stub.Shares(pb.SharesRequest())).pools
            assert (pool.gpus, pool.healthy, pool.busy, pool.away) == (4, 4, 4, 0)
            await agent.leave()
            await until(lambda: not here.loop.mind.machine.connected)
            [pool] = (await here.client.stub.Shares(pb.SharesRequest())).pools
            assert (pool.gpus, pool.healthy, pool.busy, pool.away) == (4, 0, 0, 4), (
                "nobody knows what runs there"
            )

    asyncio.run(story())


def test_shares_say_nothing_of_a_pool_that_is_gone_once_nobody_has_received_any_of_it(config):
    async def story():
        async with started(config) as here:
            stub, agent = here.client.stub, await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "exited", gpu_s=5.0, exit=common_pb2.Exit())
            await here.client.until(job, lambda view: view.state == "succeeded")
            await agent.leave()
            await until(lambda: not here.loop.mind.machine.connected)
            await stub.RemoveNode(pb.RemoveNodeRequest(key="r", node="h1"))
            [share] = (await stub.Shares(pb.SharesRequest())).shares
            assert share.gpu_model == "V100"
            assert share.received_gpus > 0
            ledger, now_s = here.loop.mind.ledger, here.loop.clock.now_s
            await until(lambda: ledger.received_gpus((ME, "V100"), 0.1, now_s()) == 0)
            await until(lambda: not here.loop.mind.machine.entitled())  # by the next decision
            await until(lambda: ledger.due_gpus((ME, "V100"), 0.1, now_s()) == 0)
            assert not (await stub.Shares(pb.SharesRequest(window_s=0.1))).shares
            [row] = (await stub.Usage(pb.UsageRequest())).rows
            assert (row.gpu_model, row.gpu_s) == ("V100", 5.0)

    asyncio.run(story())


def test_nodes_are_shown_up_and_away_with_who_is_on_them(lasting):
    async def story():
        async with started(lasting) as here:
            stub = here.client.stub
            agent = await here.agent().join()
            [job] = await here.client.submit(spec(gpus=2))
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running", gpus=2)
            await here.client.until(job, lambda view: view.state == "running")
            [node] = (await stub.ListNodes(pb.ListNodesRequest())).nodes
            assert (node.name, node.state, len(node.gpus), node.version) == ("h1", "up", 4, "t")
            assert [use.running_job for use in node.uses] == [job, job, 0, 0]
            [other] = await here.client.submit(spec(gpus=1))
            await agent.until(lambda: agent.wants(other) is not None)
            await agent.report(other, "running", gpus=1)
            await here.client.until(other, lambda view: view.state == "running")
            [node] = (await stub.ListNodes(pb.ListNodesRequest())).nodes
            assert [(use.running_job, use.second_job) for use in node.uses][:2] == [(job, other), (job, 0)]
            await agent.leave()
            await until(lambda: here.loop.mind.machine.connected == frozenset())
            [node] = (await stub.ListNodes(pb.ListNodesRequest())).nodes
            assert node.state == "away"
            assert node.last_report_at > 0, "when it was heard last is still known"
            view = await here.client.view(job)
            assert view.state == "running", "what a server did when it went away goes on there"

    asyncio.run(story())


def test_a_node_is_shown_with_the_memory_that_its_agent_said_last(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
            assert (node.memory_bytes, node.memory_available_bytes) == (0, 0)
            for left in (70 << 30, 0):
                await agent.has_memory(256 << 30, left)
                [job] = await here.client.submit(spec(gpus=1))  # heard after it
                await agent.until(lambda job=job: agent.wants(job) is not None)
                await agent.report(job, "running", gpus=1)
                await here.client.until(job, lambda view: view.state == "running")
                [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
                assert (node.memory_bytes, node.memory_available_bytes) == (256 << 30, left)

    asyncio.run(story())


def test_users_are_set_by_administrators(lasting):
    async def story():
        async with started(lasting) as here:
            stub = here.client.stub
            user = await stub.SetUser(pb.SetUserRequest(key="1", name="carl", tickets=300, run_as="nobody"))
            assert (user.name, user.tickets, user.run_as) == ("carl", 300, "nobody")
            user = await stub.SetUser(pb.SetUserRequest(key="2", name="carl", tickets=50))
            assert (user.tickets, user.run_as) == (50, "nobody")
            [job] = await here.client.submit(as_user="carl")
            [submitted] = [
                event
                async for event in here.client.stub.Events(pb.EventsRequest(job_id=job))
                if event.kind == "submitted"
            ]
            you = (await here.client.stub.Info(pb.InfoRequest())).you
            assert submitted.text == f"{you} submitted 'train' for 1 GPU, in the name of carl"
            assert (submitted.user, submitted.data["by"]) == ("carl", you)
            assert (await here.client.view(job)).user == "carl"
            info = await stub.Info(pb.InfoRequest())
            assert (info.you, info.admin, info.policy, info.term) == (ME, True, "plain", 1)

    asyncio.run(story())


def test_while_the_journal_cannot_be_written_people_are_told_so_and_not_that_servers_are_away(
    lasting, monkeypatch
):
    """Who is there is said by the links, as nothing that they tell is taken in."""

    async def story():
        async with started(lasting) as here:
            agent, other = await here.agent().join(), await here.agent(name="h2").join()
            [runs] = await here.client.submit()
            await agent.until(lambda: agent.wants(runs) is not None)
            await agent.report(runs, "running", gpu_s=3.0)
            await here.client.until(runs, lambda view: view.state == "running")
            [waits] = await here.client.submit()
            await agent.until(lambda: agent.wants(waits) is not None)
            await agent.report(waits, "held")
            await here.client.until(waits, lambda view: view.state == "suspended")
            await other.leave()
            await until(lambda: "h2" not in here.loop.mind.machine.connected)
            commits = Commits(here.loop, monkeypatch)
            commits.error = disk_error(sqlite3.SQLITE_FULL, "database or disk is full")
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "cannot write its journal"):
                await here.client.submit()
            stub, told = (
                here.client.stub,
                "cannot write its journal just now: nothing new is decided, running",
            )
            for job, reason in ((runs, "running"), (waits, "read-only")):
                why = await stub.Why(pb.JobRequest(job_id=job))
                view = await here.client.view(job)
                assert (why.reason, view.reason) == (reason, reason)
                for text in (why.text, view.reason_text):
                    assert told in text
                    assert "not connected" not in text
            shares = await stub.Shares(pb.SharesRequest())
            assert shares.read_only
            assert [(pool.gpus, pool.busy, pool.healthy, pool.away) for pool in shares.pools] == [
                (8, 1, 4, 4)
            ]
            await agent.leave()  # one that goes meanwhile is away
            await until(lambda: not here.loop.mind.machine.connected)
            assert (await here.client.view(runs)).reason == "host-away"
            [pool] = (await stub.Shares(pb.SharesRequest())).pools
            assert pool.away == 8
            commits.error = None
            await until(lambda: not here.loop.read_only)
            assert not (await stub.Shares(pb.SharesRequest())).read_only

    asyncio.run(story())


def test_a_controller_that_cannot_write_says_so_and_goes_on_answering(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            journal = here.loop.store._journal
            pages = journal._writer.exec_driver_sql("PRAGMA page_count").scalar_one()
            journal._writer.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            journal._writer.rollback()
            async with refused(
                "unavailable", grpc.StatusCode.UNAVAILABLE, "disk is full", "running jobs go on"
            ):
                for _ in range(200):
                    await here.client.submit(*(spec(env={"A": "x" * 20_000}) for _ in range(20)))
            stub = here.client.stub
            assert (await here.client.view(job)).id == job
            await agent.report(job, "running", gpu_s=3.0)
            # Small writes may fit where the large one did not: read-only ends by itself, and so does what was missed.
            view = await here.client.until(job, lambda view: view.state == "running")
            assert view.gpu_s == 3.0
            await until(lambda: not here.loop.read_only)
            assert not (await stub.Info(pb.InfoRequest())).read_only
            assert agent.error is None, "the agent's connection was never touched"
            await agent.leave()

    asyncio.run(story())


def test_an_agent_that_knows_other_messages_is_named_and_what_of_them_is_not_known_is_refused_with_that(
    config,
):
    async def story():
        async with started(config) as here:
            agent = here.agent()
            agent.dialect = "0123456789ab"
            structlog.reset_defaults()
            with capture_logs() as told:
                await agent.join()
            assert [line["host"] for line in told if line["event"] == "agent-of-another-version"] == ["h1"]
            assert agent.welcome.dialect == dialect.of_agents()
            [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
            unlike = f"the agent is of version t, messages 0123456789ab; this controller is of version {version()}, messages {dialect.of_agents()}"
            assert any(warning.startswith(unlike) for warning in node.warnings)
            [job] = await here.client.submit(spec())
            await agent.report(job, "sleepwalking")
            await until(lambda: agent.error is not None)
            assert "'sleepwalking'" in agent.error.details()
            assert unlike in agent.error.details()
            other = await here.agent(name="h2").join()
            assert (await here.client.stub.Info(pb.InfoRequest())).dialect == dialect.of_clients()
            nodes = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
            assert [list(node.warnings) for node in nodes if node.name == "h2"] == [[]]
            await other.leave()

    asyncio.run(story())
