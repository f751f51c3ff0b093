"""Commands beside jobs, as the controller passes them on: to whom, in the journal, and for as long as somebody is there."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest

from hs_controller import gate
from hs_controller.config import Config
from hs_controller.links import ERRANDS_OF_ONE
from hs_proto.v1 import agent_pb2, common_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import (
    CONFLICT,
    INVALID,
    NOT_FOUND,
    Client,
    channel_to,
    refused,
    started,
    until,
)

UNAVAILABLE = ("unavailable", grpc.StatusCode.UNAVAILABLE)
SECRET = "hunter2"


@contextlib.asynccontextmanager
async def a_job_that_runs(config: Config) -> AsyncIterator[SimpleNamespace]:
    async with started(config) as here:
        agent = await here.agent().join()
        [job] = await here.client.submit()
        await agent.until(lambda: agent.wants(job) is not None)
        await agent.report(job, "running")
        await here.client.until(job, lambda view: view.state == "running")
        yield SimpleNamespace(**vars(here), fake=agent, job=job, stub=here.client.stub)
        await agent.leave()


def said(request: agent_pb2.Exec, data: bytes = b"", **more: object) -> agent_pb2.ExecData:
    return agent_pb2.ExecData(request_id=request.request_id, data=data, **more)


def ask(job: int, *command: str, **more: object) -> pb.ExecRequest:
    return pb.ExecRequest(job_id=job, command=command or ("nvidia-smi",), **more)


def test_what_a_command_says_comes_through_and_then_how_it_ended(lasting):
    async def story():
        async with a_job_that_runs(lasting) as here:
            asked = []

            def answer(request):
                asked.append(request)
                end = common_pb2.ExecEnd(code=7)
                return [said(request, b"one"), said(request, b"two", is_error=True), said(request, end=end)]

            here.fake.on_exec = answer
            chunks = [chunk async for chunk in here.stub.Exec(ask(here.job, "py-spy", "dump", limit_s=5))]
            assert [(chunk.data, chunk.is_error) for chunk in chunks] == [
                (b"one", False),
                (b"two", True),
                (b"", False),
            ]
            assert [chunk.HasField("end") for chunk in chunks] == [False, False, True]
            assert chunks[-1].end.code == 7
            (request,) = asked
            assert (request.job_id, request.epoch, list(request.command), request.limit_s) == (
                here.job,
                0,
                ["py-spy", "dump"],
                5,
            )
            link = here.controller._hub.link("h1")
            await until(lambda: not link.errands)
            assert not here.fake.cancelled

    asyncio.run(story())


def test_who_ran_which_program_is_told_before_it_begins_and_never_with_what(lasting):
    async def story():
        async with a_job_that_runs(lasting) as here:
            before = []

            def answer(request):
                before.extend(here.loop.onlookers.events)
                return [said(request, end=common_pb2.ExecEnd())]

            here.fake.on_exec = answer
            async for _ in here.stub.Exec(ask(here.job, "curl", "-H", f"token: {SECRET}")):
                pass
            you = (await here.stub.Info(pb.InfoRequest())).you
            (fact,) = [event.fact for event in before if event.fact.kind == "exec"]
            assert fact.text == f"{you} asks h1 to run curl beside it", "h1 may refuse it"
            assert (fact.job, fact.host, fact.data) == (here.job, "h1", {"by": you, "program": "curl"})
            assert not fact.deed, "it is their own job"
            assert not any(SECRET in str(event) for event in here.loop.onlookers.events)

    asyncio.run(story())


def test_others_find_no_such_job_and_an_administrators_command_is_a_deed(lasting):
    async def story():
        config = replace(lasting, dev=True, listen=("127.0.0.1", 0))
        async with a_job_that_runs(config) as here:
            here.fake.on_exec = lambda request: [said(request, end=common_pb2.ExecEnd())]
            for name in ("ann", "bob"):
                await here.stub.SetUser(pb.SetUserRequest(key=name, name=name))
            [theirs] = await here.client.submit(as_user="ann")
            await here.fake.until(lambda: here.fake.wants(theirs) is not None)
            await here.fake.report(theirs, "running")
            await here.client.until(theirs, lambda view: view.state == "running")
            shown = {}
            for name in ("ann", "bob"):
                made = await here.stub.CreateToken(pb.CreateTokenRequest(key=f"t-{name}", user=name))
                shown[name] = (("authorization", f"Bearer {made.token}"),)
            async with channel_to(here.controller.address) as channel:
                stub = Client(channel).stub
                for job in (theirs, here.job, 999):
                    async with refused(*NOT_FOUND, f"there is no job {job}"):
                        await stub.Exec(ask(job), metadata=shown["bob"]).read()
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stub.Exec(ask(theirs)).read()
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
                async for _ in stub.Exec(ask(theirs), metadata=shown["ann"]):
                    pass
            async for _ in here.stub.Exec(ask(theirs)):
                pass
            you = (await here.stub.Info(pb.InfoRequest())).you
            facts = [event.fact for event in here.loop.onlookers.events if event.fact.kind == "exec"]
            assert [(fact.data["by"], fact.deed) for fact in facts] == [("ann", False), (you, True)]

    asyncio.run(story())


def test_a_command_is_refused_where_its_job_has_no_server_that_is_here(lasting):
    async def story():
        async with a_job_that_runs(lasting) as here:
            after = [common_pb2.After(job_id=here.job, condition="any")]
            [waits] = await here.client.submit(
                common_pb2.JobSpec(name="w", command=["x"], gpus=4, workdir="/", after=after)
            )
            for job, rank, how in (
                (here.job, 1, (*INVALID, "rank = 1: job 1 is on h1; expected 0")),
                (999, 0, (*NOT_FOUND, "there is no job 999")),
            ):
                async with refused(*how):
                    await here.stub.Exec(ask(job, rank=rank)).read()
            async with refused(*INVALID, "command is empty"):
                await here.stub.Exec(pb.ExecRequest(job_id=here.job)).read()
            async with refused(*INVALID, "limit_s: 3601 seconds"):
                await here.stub.Exec(ask(here.job, limit_s=3601)).read()
            here.fake.on_exec = lambda request: [
                said(request, error="job 1 has not its turn", error_kind="conflict")
            ]
            async with refused(*CONFLICT, "job 1 has not its turn"):
                await here.stub.Exec(ask(here.job)).read()
            await here.stub.Cancel(pb.JobsRequest(key="c", job_ids=[waits]))
            async with refused(*CONFLICT, f"job {waits} has ended (cancelled)"):
                await here.stub.Exec(ask(waits)).read()
            await here.fake.leave()
            await until(lambda: here.loop.mind.machine.connected == frozenset())
            async with refused(*UNAVAILABLE, "h1, where job 1 is, is away"):
                await here.stub.Exec(ask(here.job)).read()

    asyncio.run(story())


def test_what_cannot_be_put_in_the_journal_is_not_run(lasting, monkeypatch):
    async def story():
        async with a_job_that_runs(lasting) as here:
            asked = []
            here.fake.on_exec = lambda request: asked.append(request) or []

            def full(*_):
                raise sqlite3.OperationalError("database or disk is full")

            monkeypatch.setattr(here.loop, "ask", full)
            with pytest.raises(grpc.aio.AioRpcError):
                await here.stub.Exec(ask(here.job)).read()
            assert not asked

    asyncio.run(story())


def test_a_command_is_ended_when_who_asked_for_it_is_gone_or_may_be_told_no_more(lasting, monkeypatch):
    monkeypatch.setattr(gate, "LOOK_S", 0.05)

    async def story():
        config = replace(lasting, dev=True, listen=("127.0.0.1", 0))
        async with a_job_that_runs(config) as here:
            numbers = []
            here.fake.on_exec = lambda request: numbers.append(request.request_id) or [said(request, b"up")]
            call = here.stub.Exec(ask(here.job))
            assert (await call.read()).data == b"up"
            call.cancel()
            await here.fake.until(lambda: here.fake.cancelled == set(numbers))
            me = (await here.stub.Info(pb.InfoRequest())).you
            made = await here.stub.CreateToken(pb.CreateTokenRequest(key="token", user=me))
            async with channel_to(here.controller.address) as channel:
                shown = (("authorization", f"Bearer {made.token}"),)
                call = Client(channel).stub.Exec(ask(here.job), metadata=shown)
                assert (await call.read()).data == b"up"
                await here.stub.RevokeToken(pb.RevokeTokenRequest(key="revoke", id=made.view.id))
                await here.fake.until(lambda: here.fake.cancelled == set(numbers) and len(numbers) == 2)

    asyncio.run(story())


def test_who_has_a_command_is_told_when_its_server_goes_away(lasting):
    async def story():
        async with a_job_that_runs(lasting) as here:
            here.fake.on_exec = lambda request: [said(request, b"up")]
            call = here.stub.Exec(ask(here.job))
            assert (await call.read()).data == b"up"
            await here.fake.leave()
            async with refused(*UNAVAILABLE, "h1 went away"):
                await call.read()

    asyncio.run(story())


def test_one_user_has_a_few_at_a_server_and_others_have_theirs(lasting):
    async def story():
        async with a_job_that_runs(lasting) as here:
            here.fake.on_exec = lambda request: [said(request, b"up")]
            calls = [here.stub.Exec(ask(here.job)) for _ in range(ERRANDS_OF_ONE)]
            for call in calls:
                assert (await call.read()).data == b"up"
            async with refused(*UNAVAILABLE, "h1 runs 4 commands for", "the most for one user"):
                await here.stub.Exec(ask(here.job)).read()
            link = here.controller._hub.link("h1")
            assert link.exec(here.job, 0, ["x"], whose="eve", limit_s=1.0, window_bytes=1 << 20)
            calls[0].cancel()
            await until(lambda: len(link.errands) == ERRANDS_OF_ONE)
            again = here.stub.Exec(ask(here.job))
            assert (await again.read()).data == b"up"
            for call in (*calls, again):
                call.cancel()

    asyncio.run(story())


def test_an_agent_that_sends_more_than_there_is_room_for_is_stopped(lasting):
    async def story():
        small = replace(lasting, limits=replace(lasting.limits, log_buffer_bytes=128 << 10))
        async with a_job_that_runs(small) as here:
            here.fake.on_exec = lambda request: [said(request, b"x" * (60 << 10))] * 50
            call = here.stub.Exec(ask(here.job))
            async with refused(*UNAVAILABLE, "h1 sends more of what a command says than it was asked for"):
                async for _ in call:
                    pass
            await here.fake.until(lambda: len(here.fake.cancelled) == 1)

    asyncio.run(story())
