"""The page of a whole group that looks at once: served, in pieces that let others run, and once for all who ask the same."""

import asyncio
import json
import uuid

import pytest
from google.protobuf import json_format

from hs_controller.config import Config
from hs_controller.permissions import PERMISSIONS, Role
from hs_controller.web.alike import AGAIN, Alike
from hs_controller.web.bridge import ALIKE, CALLS, CHANGES, json_of
from hs_controller.web.history import MOST
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.browser import opened


def test_the_pages_of_a_whole_group_are_served_behind_one_proxy(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            host, _, port = cluster.controller.web_address.partition(":")
            open_ = [await asyncio.open_connection(host, int(port)) for _ in range(20 * 6)]
            for _, writer in open_:
                writer.write(b"GET /login.js HTTP/1.1\r\nHost: x\r\n\r\n")
            for reader, writer in open_:
                assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200")
                writer.close()

    asyncio.run(story())


def test_an_answer_in_pieces_is_the_message_and_lets_others_run() -> None:
    reply = pb.ListNodesReply()
    for number in range(3_000):
        node = reply.nodes.add(
            name=f"v\N{GREEK SMALL LETTER NU}{number}", state="up", last_report_at=number / 7
        )
        node.gpus.add(index=1, memory_bytes=1 << 40)
    shares = pb.SharesReply(window_s=60.0, shares=[pb.ShareView(user='a"\n', gpu_model="V100")])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def story() -> None:
        beside = asyncio.create_task(others())
        for message in (reply, shares, pb.InfoReply(you="ann"), pb.ListNodesReply()):
            text = await json_of(message)
            assert json.loads(text) == json_format.MessageToDict(
                message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            assert json_format.Parse(text, type(message)()) == message
        beside.cancel()

    asyncio.run(story())
    assert turns > 3


def test_many_who_ask_the_same_at_once_or_soon_after_are_given_one_answer() -> None:
    async def story() -> None:
        alike, made, go_on = Alike(), list[str](), asyncio.Event()

        async def make() -> bytes:
            made.append("")
            await go_on.wait()
            if len(made) == 3:
                raise ValueError("broke")
            return f"{len(made)}".encode()

        question = ("ListNodes", b"")
        first = [asyncio.create_task(alike.answer(question, make)) for _ in range(5)]
        await asyncio.sleep(0.02)
        first[0].cancel()  # who asked first goes away
        go_on.set()
        assert await asyncio.gather(*first[1:]) == [b"1"] * 4
        assert await alike.answer(question, make) == b"1"  # for so long as that took, ten times
        assert await alike.answer(("ListNodes", b"other"), make) == b"2"
        alike.forget()
        for _ in range(2):  # the first is refused, and that is not kept
            if len(made) == 2:
                with pytest.raises(ValueError, match="broke"):
                    await alike.answer(question, make)
            else:
                assert await alike.answer(question, make) == b"4"
        for number in range(50):
            await alike.answer(("Shares", str(number).encode()), make)
        assert len(alike._answers) < 10

    asyncio.run(story())
    assert AGAIN >= 1


def test_what_is_alike_for_all_asks_for_no_more_than_anybody_may_and_who_changes_something_sees_it(
    config: Config,
) -> None:
    assert ALIKE <= CALLS - CHANGES
    for name in ALIKE:
        assert Role.USER in PERMISSIONS[f"/hs.v1.HeteroShare/{name}"]

    async def story() -> None:
        async with opened(config) as cluster:
            await cluster.agent(gpus=2).join()
            for round_ in range(3):
                nodes = (await cluster.post("/api/ListNodes", {}, token=cluster.admin)).json["nodes"]
                assert nodes[0]["drained_gpus"] == ([1] if round_ % 2 else [])
                drain = {
                    "key": uuid.uuid4().hex,
                    "node": nodes[0]["name"],
                    "gpus": [1],
                    "drain": not round_ % 2,
                }
                assert (await cluster.post("/api/SetGpuDrain", drain, token=cluster.admin)).code == 200
            many = "&".join(["user=ann"] * (MOST + 1))
            answer = await cluster.get(f"/history?{many}", token=cluster.admin)
            assert (answer.code, "25 of them; at most 24" in answer.text) == (400, True)

    asyncio.run(story())
