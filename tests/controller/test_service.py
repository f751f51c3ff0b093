"""The controller over a real unix socket, with an agent that follows a script."""

import asyncio

import grpc
import pytest

from hs_proto.v1 import agent_pb2, common_pb2
from hs_proto.v1 import controller_pb2 as pb


def kind_of(error: grpc.aio.AioRpcError) -> str:
    return dict(error.trailing_metadata())["hs-kind"]


def test_a_job_is_wanted_reported_and_shown_until_it_ended(config, kit):
    async def story():
        async with kit.started(config) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(kit.spec(gpus=2))
            await agent.until(lambda: agent.wants(job) is not None)
            wanted = agent.wants(job)
            assert (wanted.user, wanted.run_as, wanted.spec.gpus) == ("root", "root", 2)
            await agent.report(job, "running", gpus=2, step=10, gpu_s=4.0, run_s=2.0, steps_per_s=5.0)
            view = await here.client.until(job, lambda view: view.state == "running")
            assert (view.step, view.gpu_s, list(view.gpu_ids)) == (10, 4.0, ["GPU-h1-0", "GPU-h1-1"])
            await agent.report(job, "exited", step=20, gpu_s=8.0, exit=common_pb2.Exit(code=0))
            view = await here.client.until(job, lambda view: view.state == "succeeded")
            assert view.exit.code == 0
            assert view.gpu_s == 8.0
            usage = await here.client.stub.Usage(pb.UsageRequest())
            assert [(row.user, row.gpu_model, row.gpu_s, row.jobs) for row in usage.rows] == [
                ("root", "V100", 8.0, 1)
            ]
            await agent.leave()

    asyncio.run(story())
