"""`queue`: lists of jobs, for people and for scripts."""

import json

from client_fakes import CONTRACT

from hs_client.limits import LISTED
from hs_proto.v1 import controller_pb2 as wire


def test_queue_has_the_columns_people_expect_and_only_them_on_stdout(hsctl, fake):
    fake.add(
        name="resnet",
        state="running",
        host="n1",
        gpu_model="V100",
        gpus=4,
        step=1200,
        gpu_s=7500.0,
        suspends=3,
        migrations=1,
    )
    fake.add(name="bert", user="bob", reason="waiting-for-turn", gpus=2)
    ran = hsctl("queue")
    assert ran.code == 0
    assert ran.err == ""
    header, first, second = ran.out.splitlines()
    assert header.split() == [
        "id",
        "name",
        "user",
        "state",
        "reason",
        "gpus",
        *("gpu", "type", "nodes", "step", "gpu", "time", "switches", "moves"),
    ]
    assert first.split() == [
        *("1", "resnet", "ann", "running", "4", "V100", "n1", "1200", "2h", "05m", "3", "1"),
    ]
    assert second.split() == [
        "2",
        "bert",
        "bob",
        "queued",
        "waiting-for-turn",
        "2",
        "-",
        "-",
        "-",
        "0s",
        "0",
        "0",
    ]


def test_ps_is_queue_and_no_header_leaves_rows(hsctl, fake):
    fake.add()
    assert len(hsctl("ps", "--no-header").out.splitlines()) == 1


def test_queue_json_has_the_contracts_names_first_and_the_protocols_after(hsctl, fake):
    fake.add(state="running", host="n1", gpu_model="V100", gpu_ids=["GPU-0"], entitled_gpus=1.33, step=9, steps_per_s=2.5,
             started_at=1.7e9 + 5, epoch=1)  # fmt: skip
    (row,) = json.loads(hsctl("queue", "--json").out)
    assert list(row)[: len(CONTRACT)] == CONTRACT
    assert {field.name for field in wire.JobView.DESCRIPTOR.fields} <= set(row)
    assert row["nodes"] == ["n1"]
    assert row["gpu_type"] == "V100"
    assert row["steps"] == 9
    assert row["rate"] == 2.5
    assert row["started_at"] == 1.7e9 + 5
    assert row["ended_at"] is None
    assert row["exit_code"] is None


def test_jsonl_is_one_object_a_line(hsctl, fake):
    fake.add()
    fake.add()
    assert [json.loads(line)["id"] for line in hsctl("queue", "--jsonl").out.splitlines()] == [1, 2]


def test_me_asks_for_whom_the_controller_takes_us(hsctl, fake):
    fake.add()
    fake.add(user="bob")
    assert [row["user"] for row in json.loads(hsctl("queue", "--me", "--json").out)] == ["ann"]
    assert [row["user"] for row in json.loads(hsctl("--user", "bob", "queue", "--me", "--json").out)] == [
        "bob"
    ]


def test_ended_jobs_are_listed_when_asked_for(hsctl, fake):
    fake.add()
    fake.end(1, "failed", code=3)
    assert json.loads(hsctl("queue", "--json").out) == []
    assert json.loads(hsctl("queue", "--all", "--json").out)[0]["exit_code"] == 3
    assert json.loads(hsctl("queue", "-s", "failed,cancelled", "--json").out)[0]["state"] == "failed"


def test_an_unknown_state_is_refused_with_a_suggestion(hsctl):
    ran = hsctl("queue", "-s", "runing")
    assert ran.code == 2
    assert "did you mean 'running'?" in ran.err
    assert ran.out == ""


def test_a_jobs_name_cannot_paint_the_terminal(hsctl, fake):
    fake.add(name="x\x1b[2Jy\nz")
    assert "\x1b" not in hsctl("queue").out
    assert len(hsctl("queue").out.splitlines()) == 2


def test_a_list_that_may_not_be_all_says_so(hsctl, fake):
    for _ in range(LISTED - 1):
        fake.add()
    assert hsctl("queue").err == ""
    fake.add()
    assert "the newest 1000 are listed" in hsctl("queue").err
    assert "the newest 1000 are listed" in hsctl("queue", "--json").err
    assert hsctl("queue", "-n", LISTED).err == "", "as many as were asked for"
