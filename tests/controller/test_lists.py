"""Jobs that are listed and looked for: in memory, and in the journal where they have ended."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from hs_controller import pieces, service
from hs_controller.config import Config
from hs_controller.journal import Journal
from hs_core.profile import RateSample
from hs_proto.v1 import common_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import (
    INVALID,
    NOT_FOUND,
    refused,
    spec,
    started,
)


def test_a_job_that_ends_while_jobs_are_listed_is_in_the_list(config, monkeypatch):
    async def story():
        async with started(config) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(spec("short"))
            await agent.until(lambda: agent.wants(job) is not None)
            read = here.loop.store.read

            async def end_meanwhile(question):
                monkeypatch.undo()
                before = await read(question)
                await agent.report(job, "exited", exit=common_pb2.Exit(code=0))
                await here.client.until(job, lambda view: view.state == "succeeded")
                return before

            monkeypatch.setattr(here.loop.store, "read", end_meanwhile)
            listed = await here.client.stub.ListJobs(pb.ListJobsRequest(all=True))
            assert [view.id for view in listed.jobs] == [job]
            assert (await here.client.stub.ListJobs(pb.ListJobsRequest(all=True))).jobs[
                0
            ].state == "succeeded"
            await agent.leave()

    asyncio.run(story())


def test_of_many_jobs_the_newest_are_listed_all_are_counted_and_others_are_found_by_words(config):
    async def story():
        async with started(config) as here:
            stub = here.client.stub
            await stub.SetUser(pb.SetUserRequest(key="ann", name="ann", tickets=1))
            await here.client.submit(spec("Needle"), spec("haystack"), as_user="ann")
            await here.client.submit(*[spec(f"job-{at}") for at in range(40)])

            async def listed(*words: str, **more: object) -> tuple[list[int], pb.JobTotals]:
                reply = await stub.ListJobs(pb.ListJobsRequest(limit=3, words=words, totals=True, **more))
                return [view.id for view in reply.jobs], reply.totals

            ids, totals = await listed()
            assert ids == [42, 41, 40]
            assert (totals.jobs, totals.queued, totals.found) == (42, 42, 42)
            ids, totals = await listed("ann", "need")
            assert (ids, totals.jobs, totals.found) == ([1], 42, 1)
            assert (await listed("job-39", "queued"))[0] == [42]
            assert (await listed("ANN"))[0] == [2, 1]
            reason = (await here.client.view(1)).reason
            assert (await listed(reason, "ann"))[0] == [2, 1]
            assert (await listed("nobody"))[0] == []
            _, totals = await listed(user="ann")
            assert (totals.jobs, totals.found) == (2, 2)
            assert not (await stub.ListJobs(pb.ListJobsRequest())).HasField("totals")
            for bad, why in (
                (pb.ListJobsRequest(words=["a"], all=True), "only jobs that have not ended"),
                (pb.ListJobsRequest(words=["a"], states=["failed"]), "only jobs that have not ended"),
                (pb.ListJobsRequest(words=["a"] * 17), "at most 16"),
            ):
                async with refused(*INVALID, why):
                    await stub.ListJobs(bad)

    asyncio.run(story())


def test_the_tasks_of_an_array_are_listed_alone_those_that_have_ended_too(lasting):
    async def story():
        async with started(lasting) as here:
            tasks = [spec(f"t{index}", array_index=index) for index in range(3)]
            await here.client.submit(spec("before"))
            array = await here.client.submit(*tasks)
            await here.client.submit(spec("since"))
            await here.client.stub.Cancel(pb.JobsRequest(key="k", job_ids=array[:2]))

            async def listed(**asked):
                found = await here.client.stub.ListJobs(pb.ListJobsRequest(array_id=array[0], **asked))
                return [view.id for view in found.jobs]

            assert await listed() == array[2:]
            assert await listed(all=True) == array
            assert await listed(states=["cancelled"]) == array[:2]
            none = await here.client.stub.ListJobs(pb.ListJobsRequest(array_id=(1 << 64) - 1, all=True))
            assert not none.jobs

    asyncio.run(story())


def test_ended_jobs_are_found_in_the_journal_after_a_restart(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            jobs = await here.client.submit(spec("a"), spec("b"), spec("c"))
            await agent.until(lambda: all(agent.wants(job) for job in jobs))
            await agent.report(
                jobs[0], "exited", exit=common_pb2.Exit(code=3, log_tail="Traceback\nValueError: no\n")
            )
            ended = await here.client.until(jobs[0], lambda view: view.state == "failed")
            said = await here.client.stub.Why(pb.JobRequest(job_id=jobs[0]))
            await agent.leave()
        async with started(lasting) as here:
            stub = here.client.stub
            assert here.loop.mind.machine.find(1) is None, "memory holds what has not ended"
            assert [view.id for view in (await stub.ListJobs(pb.ListJobsRequest())).jobs] == [2, 3]
            everything = await stub.ListJobs(pb.ListJobsRequest(all=True))
            assert (everything.jobs[0].id, everything.jobs[0].state) == (1, "failed")
            newest = await stub.ListJobs(pb.ListJobsRequest(all=True, limit=2))
            assert [view.id for view in newest.jobs] == [3, 2]
            failed = await stub.ListJobs(pb.ListJobsRequest(states=["failed"]))
            assert [view.exit.code for view in failed.jobs] == [3]
            detail = await stub.GetJob(pb.JobRequest(job_id=1))
            assert "submitted" in [event.kind for event in detail.story]
            assert not detail.way_rates
            stages = [field.name for field in detail.ages.DESCRIPTOR.fields]
            age_s = detail.view.ended_at - detail.view.submitted_at
            assert sum(getattr(detail.ages, stage) for stage in stages) == pytest.approx(age_s, abs=1e-3)
            assert detail.ages.starting_s > 0, "what its age is made of is in the journal"
            here.loop.mind.machine._rates._profile.add(
                RateSample(
                    job_class=detail.job_class, model="V100", steps_per_s=2.0, now_s=0.0, since_resume_s=60.0
                )
            )
            measured = (await stub.GetJob(pb.JobRequest(job_id=1))).way_rates
            assert [(rate.gpu_model, rate.steps_per_s, rate.nodes) for rate in measured] == [
                ("V100", 2.0, 1)
            ], "also of a class whose jobs have ended"
            why = await stub.Why(pb.JobRequest(job_id=1))
            assert why == said, "as it was told before the restart"
            assert (why.state, why.reason, why.text) == ("failed", "ended:failed", "it failed: exit code 3")
            shown = everything.jobs[0]
            assert (
                (shown.reason, shown.reason_text)
                == (ended.reason, ended.reason_text)
                == (why.reason, why.text)
            )
            log = b"".join([chunk.data async for chunk in stub.Logs(pb.LogsRequest(job_id=1, tail_lines=1))])
            assert log == b"ValueError: no\n", "its host is away: the end of the log came with the exit"
            async with refused("impossible", grpc.StatusCode.FAILED_PRECONDITION, "job 1"):
                await here.client.submit(spec(after=[common_pb2.After(job_id=1, condition="ok")]))
            [waits] = await here.client.submit(spec(after=[common_pb2.After(job_id=1, condition="fail")]))
            assert waits == 4

    asyncio.run(story())


def test_of_ended_jobs_no_more_is_taken_into_memory_than_one_users_jobs_may_take(lasting, monkeypatch):
    most = 256 << 10
    config = replace(lasting, ended_limit=10, limits=replace(lasting.limits, spec_bytes_per_user=most))
    large = spec(env={"TEXT": "x" * (20 << 10)})
    read = list[int]()

    def counted(look):
        def looked_up(journal, *args, **more):
            found = look(journal, *args, **more)
            read.append(len(found))
            return found

        return looked_up

    async def story():
        async with started(config) as here:
            stub, ended = here.client.stub, list[int]()
            for key in "abcd":
                jobs = await here.client.submit(*[large] * 10)
                await stub.Cancel(pb.JobsRequest(key=key, job_ids=jobs))
                ended += jobs
            for look in (Journal.ended_jobs, Journal.ended_among):
                monkeypatch.setattr(Journal, look.__name__, counted(look))
            monkeypatch.setattr(service, "READ_AT_ONCE", 5)
            waiting = spec(after=[common_pb2.After(job_id=job, condition="any") for job in ended])
            for ask in (
                lambda: stub.Cancel(pb.JobsRequest(key="all", job_ids=ended)),
                lambda: here.client.submit(waiting),
                lambda: here.client.submit(waiting, dry_run=True),
            ):
                async with refused(*INVALID, f"more than {most} bytes: name fewer at a time"):
                    await ask()
                assert sum(read) * (20 << 10) < 2 * most
                read.clear()
            few = await stub.Cancel(pb.JobsRequest(key="few", job_ids=ended[:5]))
            assert [(view.id, view.state) for view in few.jobs] == [(job, "cancelled") for job in ended[:5]]
            shown = await stub.ListJobs(pb.ListJobsRequest(all=True, limit=33))
            assert [view.id for view in shown.jobs] == ended[:-34:-1]
            assert max(read) <= 5

    asyncio.run(story())


def test_jobs_that_never_were_are_not_looked_for_in_the_journal(lasting, monkeypatch):
    read, looks = Journal._read, list[Journal]()

    def looked(journal):
        looks.append(journal)
        return read(journal)

    async def story():
        async with started(lasting) as here:
            monkeypatch.setattr(Journal, "_read", looked)
            async with refused(*NOT_FOUND, "there is no job 1"):
                await here.client.stub.Cancel(pb.JobsRequest(key="k", job_ids=range(1, 1001)))
        assert not looks

    asyncio.run(story())


def test_lists_that_are_made_in_pieces_have_every_job_once_while_jobs_end(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_S", 0.0)  # others have their turn after each job

    async def story() -> None:
        async with started(config) as cluster:
            stub = cluster.client.stub
            await cluster.agent(gpus=4).join()
            jobs = await cluster.client.submit(*[spec()] * 12)

            async def end_all() -> None:
                for job in jobs:
                    await stub.Cancel(pb.JobsRequest(key=f"cancel-{job}", job_ids=[job]))

            ending = asyncio.create_task(end_all())
            looks, ended = 0, set[int]()
            while not ending.done():
                shown = (await stub.ListJobs(pb.ListJobsRequest(all=True))).jobs
                assert [view.id for view in shown] == jobs
                now = {view.id for view in shown if view.ended_at}
                assert now >= ended, "who has ended goes on no more"
                looks, ended = looks + 1, now
                for view in (await stub.ListJobs(pb.ListJobsRequest(states=["queued"]))).jobs:
                    assert view.state == "queued"
                assert [node.name for node in (await stub.ListNodes(pb.ListNodesRequest())).nodes] == ["h1"]
            await ending
            assert looks

    asyncio.run(story())
