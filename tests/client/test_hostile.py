"""Whatever names, reasons and texts hold that others have chosen: it stays text on the terminal of who reads it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from hs_client.line import Line
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

HOSTILE = "\x1b]0;x\x07\x9b2J\u202e\r\n\u2028"  # a terminal's title, its screen, the other way round, lines
VERBS = [
    *("queue", "queue --all", "show 1", "show 1 --env", "show 2", "why 1", "why 2", "pause 1", "resume 1"),
    *("cancel 1", "wait 2", "attach 2", "logs 2", "exec 1 -- true", "submit true", "submit --dry-run true"),
    *("share", "usage", "gpus", "nodes", "trades --all", "events", "events --deeds", "info", "doctor"),
    *("top --once", "user list", "user set ann --tickets 3", "user remove ann", "policy show"),
    *("policy set fifo", "policy check fifo", "node drain v1", "node undrain v1", "gpu drain v1 1"),
    *("node enroll v1", "node remove v1", "token list", "token create", "token revoke x"),
    *("queue --json", "show 1 --json", "nodes --jsonl", "events --jsonl"),
]


def hostile(message: Message) -> Any:
    """All text in it, but for the words by which it is told what goes on."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "state":
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            texts = getattr(message, field.name)
            texts.update({key: value + HOSTILE for key, value in texts.items() if isinstance(value, str)})
        elif field.message_type is not None and field.is_repeated:
            for one in getattr(message, field.name):
                hostile(one)
        elif field.message_type is not None:
            if message.HasField(field.name):
                hostile(getattr(message, field.name))
        elif field.type == field.TYPE_STRING and field.is_repeated:
            getattr(message, field.name)[:] = [text + HOSTILE for text in getattr(message, field.name)]
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, getattr(message, field.name) + HOSTILE)
    return message


@pytest.fixture
def poisoned(fake, hsctl, monkeypatch, tmp_path):
    """hsctl, which is told hostile text wherever there may be any."""
    monkeypatch.chdir(tmp_path)
    gpu = common.Gpu(id="G", index=0, model="V100", memory_bytes=1 << 30, why_unhealthy="ECC")
    node = {"name": "v1", "state": "up", "version": "1", "gpus": [gpu], "drained_gpus": [0], "draining": True}
    node |= {"drain_reason": "fans", "warnings": ["hot"], "uses": [wire.GpuUse(gpu_id="G", running_job=1)]}
    fake.nodes = [wire.NodeView(**node)]
    share = wire.ShareView(user="ann", gpu_model="V100", tickets=1, base_gpus=1, entitled_gpus=1)
    pool = wire.Pool(gpu_model="V100", gpus=4, healthy=3)
    fake.shares = wire.SharesReply(window_s=60, policy="fifo", shares=[share], pools=[pool])
    fake.usage = [wire.UsageRow(user="ann", gpu_model="V100")]
    fake.events = [
        wire.Event(seq=1, at=1.7e9, kind="placed", text="it lives", user="ann", host="v1", data={"by": "x"})
    ]
    fake.trades = [
        wire.TradeView(gives="ann", receives="bob", fast="V100", slow="K80", undone=3, why_undone="it is")
    ]
    fake.users, fake.tokens = [wire.UserView(name="ann")], [wire.TokenView(id="x", user="ann", label="mine")]
    fake.notes = ["it waits"]
    running = {
        "host": "v1",
        "hosts": ["v1"],
        "gpu_ids": ["G"],
        "gpu_model": "V100",
        "note": "slow",
        "tier": "hold",
    }
    fake.add(state="running", reason_text="it runs", moving_to="k1", moving_why="it may", **running)
    fake.add(state="failed", exit=common.Exit(code=3, why="lost", log_tail="a\nb"), **running)
    fake.stories[1] = fake.events
    fake.execs = [wire.ExecChunk(end=common.ExecEnd(why="its turn is over"))]
    call, open_ = Line.call, Line.open

    def opened(self: Line, *words: Any, **more: Any) -> Iterator[Any]:
        yield from map(hostile, open_(self, *words, **more))

    monkeypatch.setattr(Line, "call", lambda self, *words: hostile(call(self, *words)))
    monkeypatch.setattr(Line, "open", opened)
    return hsctl


@pytest.mark.parametrize("words", VERBS)
def test_nothing_that_is_told_gives_orders_to_a_terminal(poisoned, words):
    ran = poisoned(*words.split())
    assert "Traceback" not in ran.err
    assert [line for line in (ran.out + ran.err).split("\n") if not line.isprintable()] == []


def test_nor_does_a_refusal(hsctl, fake):
    fake.refusals["ListJobs"] = ("conflict", f"it is{HOSTILE}")
    ran = hsctl("queue")
    assert ran.code == 1
    assert [line for line in ran.err.split("\n") if not line.isprintable()] == []


def test_what_json_says_is_the_text_all_the_same(hsctl, fake):
    fake.add(name=f"é😀{HOSTILE}\x7f\U000e0001")
    out = hsctl("queue", "--json").out
    assert "é😀" in out
    assert json.loads(out)[0]["name"] == f"é😀{HOSTILE}\x7f\U000e0001"
