"""Logs and events over a real unix socket: they come through without a gap, whoever reads slowly."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from hs_controller import doors, gate, service
from hs_controller.journal import Journal
from hs_controller.links import LOGS, LOGS_OF_ONE
from hs_core.errors import RefusedError
from hs_proto.v1 import agent_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import (
    INVALID,
    NOT_FOUND,
    Client,
    Sending,
    channel_to,
    refused,
    refused_as,
    spec,
    started,
    until,
)

# --- logs ---------------------------------------------------------------------------------------------------------------


def data(request: agent_pb2.LogRequest, text: bytes, **more) -> agent_pb2.LogData:
    return agent_pb2.LogData(request_id=request.request_id, data=text, **more)


def test_a_log_comes_through_from_the_agent(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            asked = []

            def answer(request):
                asked.append((request.job_id, request.tail_lines, request.follow, request.ago_s >= 90))
                return [data(request, b"one\n"), data(request, b"two\n"), data(request, b"", end=True)]

            agent.on_log = answer
            call = here.client.stub.Logs(pb.LogsRequest(job_id=job, tail_lines=2, since_s=90))
            assert b"".join([chunk.data async for chunk in call]) == b"one\ntwo\n"
            assert asked == [(job, 2, False, True)]
            async with refused(*INVALID, "since_s: nan: seconds from 0 up were expected"):
                await here.client.stub.Logs(pb.LogsRequest(job_id=job, since_s=float("nan"))).read()
            agent.on_log = lambda request: [data(request, b"", end=True, error="the log was removed")]
            async with refused(*NOT_FOUND, "the log was removed"):
                await here.client.stub.Logs(pb.LogsRequest(job_id=job, tail_lines=2)).read()
            await agent.leave()
            await until(lambda: here.loop.mind.machine.connected == frozenset())
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "h1", "away"):
                await here.client.stub.Logs(pb.LogsRequest(job_id=job)).read()

    asyncio.run(story())


def test_a_follower_that_goes_away_is_cancelled_at_the_agent_and_one_whose_agent_goes_is_told(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            following = here.client.stub.Logs(pb.LogsRequest(job_id=job, tail_lines=-1, follow=True))
            reading = asyncio.create_task(following.read())  # before there is anything to follow
            requests = []
            agent.on_log = lambda request: requests.append(request) or [data(request, b"hello\n")]
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            assert (await asyncio.wait_for(reading, 60)).data == b"hello\n"
            following.cancel()
            await agent.until(lambda: agent.cancelled == {requests[0].request_id})
            second = here.client.stub.Logs(pb.LogsRequest(job_id=job, tail_lines=-1, follow=True))
            assert (await second.read()).data == b"hello\n"
            await agent.leave()
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "h1 went away"):
                await second.read()

    asyncio.run(story())


def test_a_log_is_sent_as_fast_as_it_is_read_and_other_readers_are_not_held_up(lasting):
    async def story():
        small = replace(lasting, limits=replace(lasting.limits, log_buffer_bytes=128 << 10))
        async with started(small) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            sending = Sending(agent, b"x" * (60 << 10), 400)
            slow, quick = (
                aiter(here.client.stub.Logs(pb.LogsRequest(job_id=job, tail_lines=2))) for _ in range(2)
            )
            taken = len((await anext(slow)).data)
            everything = 400 * (60 << 10)
            assert sum([len(chunk.data) async for chunk in quick]) == everything
            assert min(sending.sent.values()) < 400 / 4, "what is kept for the slow one, and under way"
            taken += sum([len(chunk.data) async for chunk in slow])
            assert taken == everything
            assert not agent.cancelled
            await agent.leave()

    asyncio.run(story())


def test_an_agent_that_sends_more_of_a_log_than_there_is_room_for_is_stopped(lasting):
    async def story():
        small = replace(lasting, limits=replace(lasting.limits, log_buffer_bytes=128 << 10))
        async with started(small) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            chunk, chunks, taken = 60 << 10, 400, 0
            agent.on_log = lambda request: [data(request, b"x" * chunk) for _ in range(chunks)]
            call = here.client.stub.Logs(pb.LogsRequest(job_id=job, tail_lines=-1))
            await agent.until(lambda: agent.cancelled)
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "h1 sends more of the log"):
                while (read := await call.read()) is not grpc.aio.EOF:
                    taken += len(read.data)
            assert 0 < taken < chunk * chunks / 4, "what was kept for it, and what was under way"
            await agent.leave()

    asyncio.run(story())


# --- events -------------------------------------------------------------------------------------------------------------


def test_events_come_from_the_backlog_and_then_live_without_a_gap(lasting):
    async def story():
        async with started(lasting) as here:
            await here.client.submit(spec("a"))
            await here.client.submit(spec("b"))
            stub = here.client.stub
            assert [event.seq async for event in stub.Events(pb.EventsRequest(tail=1))] == [3]
            assert [event.seq async for event in stub.Events(pb.EventsRequest(after_seq=0))] == [1, 2, 3]
            following = stub.Events(pb.EventsRequest(after_seq=1, follow=True))
            first = await following.read()
            await here.client.submit(*(spec(f"j{n}") for n in range(20)))
            seen = [first]
            while len([event for event in seen if event.kind == "submitted"]) < 21:
                seen.append(await asyncio.wait_for(following.read(), 60))
            assert [event.seq for event in seen] == list(range(2, 2 + len(seen)))
            following.cancel()
            tail = [event async for event in stub.Events(pb.EventsRequest(tail=3))]
            assert [event.seq for event in tail] == list(
                range(here.loop.onlookers.last_seq - 2, here.loop.onlookers.last_seq + 1)
            )
            of_job = [event.kind async for event in stub.Events(pb.EventsRequest(job_id=2))]
            assert of_job == ["submitted"]

    asyncio.run(story())


def test_however_many_events_are_asked_for_a_watcher_has_one_page_of_them_in_memory(lasting, monkeypatch):
    monkeypatch.setattr(service, "EVENTS_PAGE", 5)
    events, read = Journal.events, list[int]()

    def counted(journal, **asked):
        found = events(journal, **asked)
        read.append(len(found))
        return found

    async def story():
        async with started(lasting) as here:
            await here.client.submit(*(spec(f"j{n}") for n in range(30)))
            await here.client.stub.Cancel(pb.JobsRequest(key="c", job_ids=range(1, 11)))
            monkeypatch.setattr(Journal, "events", counted)
            last = here.loop.onlookers.last_seq
            for tail in (23, last, last + 1, 100_000):
                told = [e.seq async for e in here.client.stub.Events(pb.EventsRequest(tail=tail))]
                assert told == list(range(max(1, last - tail + 1), last + 1))
            of_job = pb.EventsRequest(tail=1, job_id=7)
            assert [e.kind async for e in here.client.stub.Events(of_job)] == ["cancelled"]
            assert max(read) == 5

    asyncio.run(story())


def test_a_watcher_of_one_job_sees_its_events_only(lasting):
    async def story():
        async with started(lasting) as here:
            await here.client.submit(spec("a"))
            await here.client.submit(spec("b"))
            following = here.client.stub.Events(pb.EventsRequest(job_id=2, follow=True))
            assert (await following.read()).kind == "submitted"
            await here.client.stub.Pause(pb.JobsRequest(key="p1", job_ids=[1]))
            await here.client.stub.Pause(pb.JobsRequest(key="p2", job_ids=[2]))
            event = await asyncio.wait_for(following.read(), 60)
            assert (event.kind, event.job_id) == ("paused", 2)
            following.cancel()

    asyncio.run(story())


def test_a_watcher_that_falls_behind_is_dropped_with_resync(lasting, monkeypatch):
    monkeypatch.setattr("hs_controller.onlookers.LIVE_EVENTS", 64)

    async def story():
        async with started(lasting) as here:
            await here.client.submit(spec("a"))
            following = here.client.stub.Events(pb.EventsRequest(follow=True, tail=1))
            await following.read()
            for _ in range(150):  # it does not read meanwhile: what is on the wire is all that waits for it
                await here.client.submit(*(spec("x" * 100) for _ in range(50)))
            async with (
                refused("unavailable", grpc.StatusCode.RESOURCE_EXHAUSTED, "resync"),
                asyncio.timeout(60),
            ):
                while await following.read() is not grpc.aio.EOF:
                    pass
            last = here.loop.onlookers.last_seq
            again = here.client.stub.Events(pb.EventsRequest(after_seq=last - 10))
            assert [event.seq async for event in again] == list(range(last - 9, last + 1))

    asyncio.run(story())


def test_open_watchers_have_a_limit_of_which_nobody_has_more_than_half(lasting):
    async def story():
        few = replace(lasting, limits=replace(lasting.limits, watchers=4))
        async with started(few) as here:
            [job] = await here.client.submit()
            calls = [here.client.stub.WatchJob(pb.JobRequest(job_id=job)) for _ in range(2)]
            for call in calls:
                assert (await call.read()).id == job
            you = (await here.client.stub.Info(pb.InfoRequest())).you
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, f"too many watchers of {you}"):
                await here.client.stub.WatchJob(pb.JobRequest(job_id=job)).read()
            calls[0].cancel()
            watchers = here.controller._service._watchers
            await until(lambda: watchers[you] == 1)
            watchers["others"] = 3
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "too many watchers; try again"):
                await here.client.stub.WatchJob(pb.JobRequest(job_id=job)).read()
            del watchers["others"]
            assert (await here.client.stub.WatchJob(pb.JobRequest(job_id=job)).read()).id == job

    asyncio.run(story())


def test_one_user_has_half_of_the_logs_that_an_agent_sends_and_others_read_on(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            agent.on_log = lambda request: [data(request, b"hello\n")]

            def follow():
                return here.client.stub.Logs(pb.LogsRequest(job_id=job, tail_lines=2, follow=True))

            calls = [follow() for _ in range(LOGS_OF_ONE)]
            for call in calls:
                assert (await call.read()).data == b"hello\n"
            async with refused("unavailable", grpc.StatusCode.UNAVAILABLE, "h1 sends 32 logs to", "end some"):
                await follow().read()
            link = here.controller._hub.link("h1")
            more = {"tail_lines": 2, "follow": True, "window_bytes": 1 << 10}
            theirs = [link.log(job, whose="bob", **more) for _ in range(LOGS - LOGS_OF_ONE)]
            with pytest.raises(RefusedError, match="h1 sends 64 logs already; try again later"):
                link.log(job, whose="eve", **more)
            link.cancel(theirs[0])
            assert link.log(job, whose="eve", **more)
            calls[0].cancel()
            await until(lambda: len(link.logs) == LOGS - 1)
            again = follow()
            assert (await again.read()).data == b"hello\n"
            for call in (*calls[1:], again):
                call.cancel()
            await agent.leave()

    asyncio.run(story())


def test_a_stream_tells_nothing_more_once_its_token_is_revoked(lasting):
    async def story():
        async with started(replace(lasting, dev=True, listen=("127.0.0.1", 0))) as here:
            stub = here.client.stub
            await stub.SetUser(pb.SetUserRequest(key="ann", name="ann"))
            made = await stub.CreateToken(pb.CreateTokenRequest(key="token", user="ann"))
            async with channel_to(here.controller.address) as channel:
                shown = (("authorization", f"Bearer {made.token}"),)
                theirs = Client(channel).stub.Events(pb.EventsRequest(follow=True), metadata=shown)
                assert [(await theirs.read()).kind for _ in range(2)] == ["user-set", "token-created"]
                await stub.RevokeToken(pb.RevokeTokenRequest(key="revoke", id=made.view.id))
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await asyncio.wait_for(theirs.read(), 10)
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            await until(lambda: not here.controller._service._watchers)

    asyncio.run(story())


async def the_rest(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def test_streams_in_which_nothing_happens_end_once_their_token_is_revoked(lasting, monkeypatch):
    monkeypatch.setattr(gate, "LOOK_S", 0.05)

    async def story():
        async with started(replace(lasting, dev=True, listen=("127.0.0.1", 0))) as here:
            agent = await here.agent().join()
            stub = here.client.stub
            await stub.SetUser(pb.SetUserRequest(key="ann", name="ann"))
            [job] = await here.client.submit(as_user="ann")
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            agent.on_log = lambda request: [data(request, b"hello\n")]
            made = await stub.CreateToken(pb.CreateTokenRequest(key="token", user="ann"))
            async with channel_to(here.controller.address) as channel:
                theirs, shown = Client(channel).stub, (("authorization", f"Bearer {made.token}"),)
                logs = theirs.Logs(pb.LogsRequest(job_id=job, follow=True, tail_lines=2), metadata=shown)
                watch = theirs.WatchJob(pb.JobRequest(job_id=job), metadata=shown)
                events = theirs.Events(pb.EventsRequest(job_id=job, follow=True), metadata=shown)
                for call in (logs, watch, events):
                    await call.read()
                await stub.RevokeToken(pb.RevokeTokenRequest(key="revoke", id=made.view.id))
                for call in (logs, watch, events):
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await asyncio.wait_for(the_rest(call), 30)
                    refused_as(error, grpc.StatusCode.UNAUTHENTICATED, "revoked")
            await until(lambda: not here.controller._service._watchers)
            await agent.until(lambda: len(agent.cancelled) == 1)
            await agent.leave()

    asyncio.run(story())


def test_a_connection_over_which_nobody_says_who_it_is_is_ended(lasting, monkeypatch):
    """It answers pings, as a client does, and holds a place that others may need."""
    monkeypatch.setattr(doors, "STRANGER_S", 0.5)

    async def story():
        async with started(replace(lasting, dev=True, listen=("127.0.0.1", 0))) as here:
            stub = here.client.stub
            await stub.SetUser(pb.SetUserRequest(key="ann", name="ann"))
            made = await stub.CreateToken(pb.CreateTokenRequest(key="token", user="ann"))
            shown = (("authorization", f"Bearer {made.token}"),)
            address = here.controller.address
            async with channel_to(address) as hers, channel_to(address) as nobodys:
                events = Client(hers).stub.Events(pb.EventsRequest(follow=True), metadata=shown)
                await events.read()
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await Client(nobodys).stub.Info(pb.InfoRequest())
                refused_as(error, grpc.StatusCode.UNAUTHENTICATED, "say who you are")
                reader, writer = await asyncio.open_connection(*address.split(":"))
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                await asyncio.wait_for(reader.read(), 20)  # to its end
                writer.close()
                port = next(front for front in here.controller._fronts if isinstance(front, doors.TcpFront))
                await until(lambda: len(port._open) == 1)
                await stub.SetUser(pb.SetUserRequest(key="bob", name="bob"))
                while (await asyncio.wait_for(events.read(), 20)).user != "bob":
                    pass

    asyncio.run(story())
