"""Whatever comes over the wire is answered or refused with a reason; none of it is a mistake of the controller's, and it starts anew over what it kept of it."""

import asyncio
import math
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from hs_proto.v1 import agent_pb2, common_pb2, controller_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import FakeAgent, spec, started

CALLS = [
    method
    for method in controller_pb2.DESCRIPTOR.services_by_name["HeteroShare"].methods
    if method.name != "Backup"  # it writes what it is told to, where it is told to
]
CALLS_OF_A_STORY = 250
DEEPEST = 3
WHOLE = {
    FieldDescriptor.TYPE_INT32: (0, 1, 3, 100, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.TYPE_UINT32: (0, 1, 3, 100, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (0, 1, 3, 100, -1, 10**12, 2**63 - 1, -(2**63)),
    FieldDescriptor.TYPE_UINT64: (0, 1, 3, 100, 10**12, 2**64 - 1),
}
REAL = (0.0, 0.5, 1.0, 100.0, -1.0, 1e300, 5e-324, math.nan, math.inf, -math.inf)
TEXT = (
    "", "x", "a" * 5000, "\x00", "\n", "ü", "../..", "1:2", "-1", "%s", "V100", "h1", "root", "*", "running", "exited", "GPU-h1-0", "fence", "never", "fifo",
)  # fmt: skip
PHASES = (
    "waiting",
    "starting",
    "held",
    "frozen",
    "running",
    "running",
    "suspending",
    "checkpointed",
    "exited",
)


class Odd:
    """Messages with any values that their types allow."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def value(self, field: FieldDescriptor, depth: int) -> Any:
        choose = self.random.choice
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            message = field.message_type._concrete_class()
            self.fill(message, depth + 1)
            return message
        if field.type in WHOLE:
            return choose(WHOLE[field.type])
        if field.type == FieldDescriptor.TYPE_STRING:
            return choose(TEXT)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.random.randbytes(choose((0, 3, 50)))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return choose((True, False))
        assert field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT), field.full_name
        return choose(REAL)

    def fill(self, message: Message, depth: int = 0) -> None:
        """Some of its fields."""
        part = self.random.choice((0.1, 0.4, 0.8))
        for field in message.DESCRIPTOR.fields:
            if depth <= DEEPEST and self.random.random() < part:
                self.set(message, field, depth)

    def set(self, message: Message, field: FieldDescriptor, depth: int = 0) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            getattr(message, field.name)[self.value(key, depth)] = self.value(value, depth)
        elif field.is_repeated:
            getattr(message, field.name).append(self.value(field, depth))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(self.value(field, depth))
        else:
            setattr(message, field.name, self.value(field, depth))

    def request(self, method: Any) -> Message:
        request = method.input_type._concrete_class()
        self.fill(request)
        if method.name == "Submit":  # otherwise hardly any would get in
            asked = spec(gpus=self.random.choice((1, 1, 2, 4)))
            if self.random.random() < 0.6:
                self.set(asked, self.random.choice(asked.DESCRIPTOR.fields))
            del request.jobs[:]
            request.jobs.append(asked)
        return request

    def report(self, agent: FakeAgent) -> agent_pb2.FromAgent:
        """Of what it is to run, most of it sense."""
        message = agent_pb2.FromAgent()
        for wanted in agent.wanted[-1].jobs:
            job = common_pb2.JobReport(
                job_id=wanted.job_id, epoch=wanted.epoch, phase=self.random.choice(PHASES), checkpoint_step=-1, checkpoint_generation=-1,
                step=self.random.randrange(100), gpu_s=self.random.randrange(100), gpus=[gpu.id for gpu in agent.gpus[: wanted.spec.gpus]],
            )  # fmt: skip
            if self.random.random() < 0.3:
                self.set(job, self.random.choice(job.DESCRIPTOR.fields))
            message.report.jobs.append(job)
        if self.random.random() < 0.2:
            self.fill(message)
        return message


async def asked(stub: Any, method: Any, request: Message) -> None:
    """Answered or refused: a mistake of the controller's, or silence, is an error here."""
    call, error = getattr(stub, method.name), None
    try:
        if method.server_streaming:
            stream = call(request, timeout=0.2)
            async for _ in stream:
                break
            stream.cancel()
        else:
            await call(request, timeout=30.0)
    except grpc.aio.AioRpcError as said:
        error = said
    silent = method.server_streaming and error and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    if error is not None and not silent:
        assert "hs-kind" in dict(error.trailing_metadata() or ()), f"{method.name} {request}: {error}"


def left_with_reason(agent: FakeAgent) -> None:
    """If it was shown the door, for what it said."""
    assert agent.error is None or "mistake" not in (agent.error.details() or "")


@pytest.mark.parametrize("seed", range(2))
def test_nonsense_is_refused_and_what_was_kept_of_it_is_read_again(config, seed):
    odd = Odd(seed)

    async def story():
        for _ in range(2):
            async with started(config) as here:
                agent = await here.agent().join()
                for _ in range(CALLS_OF_A_STORY):
                    if odd.random.random() < 0.6:
                        method = odd.random.choice(CALLS)
                        await asked(here.client.stub, method, odd.request(method))
                        continue
                    try:
                        await agent._call.write(odd.report(agent))
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        left_with_reason(agent)
                        agent = await here.agent().join()
                await here.client.stub.Info(pb.InfoRequest())
                left_with_reason(agent)
                await agent.leave()

    asyncio.run(story())
