"""Verbs about the cluster, for people and for scripts."""

import json
import math
import subprocess
import sys
import threading
import time

import grpc
import pytest
from client_fakes import GPUS

from hs_client.limits import MOST_JOBS
from hs_client.tables import EventColumns, bar
from hs_proto.v1 import controller_pb2 as wire


@pytest.fixture
def busy(fake):
    """Four V100, one of them broken; ann runs a job, bob's is kept beside it."""
    fake.add(id=7, state="running", host="n1", epoch=2)
    fake.add(id=8, user="bob", state="suspended", host="n1", epoch=1)
    uses = [
        wire.GpuUse(gpu_id="GPU-0", running_job=7, user="ann", bound_jobs=[7, 8]),
        wire.GpuUse(gpu_id="GPU-1", bound_jobs=[8]),
    ]
    fake.nodes = [
        wire.NodeView(
            name="n1",
            state="up",
            version="0.1.0",
            gpus=GPUS,
            uses=uses,
            last_report_at=1.7e9,
            memory_bytes=256 << 30,
            memory_available_bytes=70 << 30,
            warnings=["no cgroup"],
        )
    ]
    fake.shares = wire.SharesReply(
        window_s=60,
        policy="gandiva-fair",
        fair=True,
        pools=[
            wire.Pool(gpu_model="V100", gpus=6, healthy=3, busy=2, away=2),
            wire.Pool(gpu_model="K80", gpus=2, healthy=2),
        ],
        shares=[
            wire.ShareView(
                user="ann",
                gpu_model="V100",
                tickets=100,
                demand_gpus=4,
                entitled_gpus=2,
                due_gpus=3,
                received_gpus=1.9,
                received_gpu_s=100,
            ),
            wire.ShareView(
                user="ann",
                gpu_model="K80",
                tickets=100,
                demand_gpus=1,
                base_gpus=0.75,
                entitled_gpus=1,
                due_gpus=0,
                received_gpus=0.95,
            ),
            wire.ShareView(user="bob", gpu_model="V100", tickets=50, entitled_gpus=0),
        ],
    )
    fake.usage = [
        wire.UsageRow(
            user="ann", gpu_model="V100", gpu_s=7200, entitled_gpu_s=5400, lost_gpu_s=0, jobs=3, suspends=40
        )
    ]
    return fake


def test_share_says_when_the_controller_cannot_write_its_journal(hsctl, busy):
    assert "cannot write" not in hsctl("share").out
    busy.shares.read_only = True
    title, _, first, *_ = hsctl("share").out.splitlines()
    assert "the controller cannot write its journal just now" in title
    assert "running jobs go on" in title
    assert first.split()[4:7] == ["-", "-", "-"], "nobody is said to be entitled to nothing"
    title, _, first, *_ = hsctl("share", "--me").out.splitlines()
    assert "the controller cannot write its journal just now" in title
    assert first.split()[4:7] == ["-", "-", "-"]
    ann, _ = json.loads(hsctl("share", "--json").out)
    assert (ann["entitled"]["V100"], ann["base"]["V100"], ann["fairness"]) == (None, None, None)
    assert ann["receiving"]["V100"] == 1.9


@pytest.mark.usefixtures("busy")
def test_share_json_is_one_object_per_user_with_pools_inside(hsctl):
    ann, bob = json.loads(hsctl("share", "--json").out)
    assert list(ann)[:5] == ["user", "tickets", "entitled", "receiving", "fairness"]
    assert ann["entitled"] == {"V100": 2, "K80": 1}
    assert ann["receiving"] == {"V100": 1.9, "K80": 0.95}
    assert ann["due"] == {"V100": 3, "K80": 0}
    assert ann["fairness"] == pytest.approx(0.95), "of what was due in that time"
    assert bob["fairness"] is None


def test_share_shows_a_line_per_user_and_model_with_a_bar(hsctl, busy):
    ran = hsctl("share", "--window", "10m")
    assert busy.last("Shares").window_s == 600
    lines = ran.out.splitlines()
    assert "V100: 2 of 3 busy (1 not usable, 2 away)" in lines[0]
    assert lines[2].split()[:8] == ["ann", "K80", "100", "1", "0.75", "+0.25", "1.00", "0.95"]
    assert len(hsctl("share", "--me", "--no-header").out.splitlines()) == 2


def test_share_says_where_the_policy_does_not_hold_shares_to_tickets(hsctl, busy):
    assert "does not hold" not in hsctl("share").out
    busy.shares.policy, busy.shares.fair = "fifo", False
    assert (
        hsctl("share")
        .out.splitlines()[0]
        .endswith("; fifo does not hold shares to tickets: entitled is what these come to")
    )
    ann, _ = json.loads(hsctl("share", "--json").out)
    assert (ann["fairness"], ann["entitled"]) == (None, {"V100": 2, "K80": 1})


def test_a_bar_marks_the_entitlement():
    assert bar(2, 2, 4) == "█████████|··········"
    assert bar(0, 0, 4) == "·" * 20
    assert len(bar(9, 1, 4)) == 20


def test_watch_jsonl_prints_what_changed(serving, fake):
    fake.add()
    command = [
        sys.executable,
        "-m",
        "hs_client",
        "--controller",
        f"unix:{serving.socket}",
        "queue",
        "--watch",
        "--jsonl",
        "--interval",
        "0.1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert json.loads(watching.stdout.readline())["state"] == "queued"
        fake.change(1, state="running")
        assert json.loads(watching.stdout.readline())["state"] == "running"
        fake.end(1, "failed", code=7)
        ended = json.loads(watching.stdout.readline())
        assert (ended["id"], ended["state"], ended["exit_code"]) == (1, "failed", 7)
        fake.add()
        assert json.loads(watching.stdout.readline())["id"] == 2, "an end is told once"
        watching.send_signal(2)
        assert watching.wait(10) == 130


def test_watch_jsonl_ends_with_its_reader_also_where_nothing_changes(serving, fake):
    fake.add()
    address = f"unix:{serving.socket}"
    command = [sys.executable, "-m", "hs_client", "--controller", address, "queue", "--watch", "--jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert json.loads(watching.stdout.readline())["id"] == 1
            watching.stdout.close()
            assert watching.wait(20) == 141
            assert watching.stderr.read() == ""
        finally:
            watching.kill()


def test_usage_has_contract_names_and_looks_back(hsctl, busy):
    (row,) = json.loads(hsctl("usage", "--since", "7d", "--me", "--json").out)
    assert (row["user"], row["gpu_type"], row["gpu_seconds"], row["gpu_s"]) == ("ann", "V100", 7200, 7200)
    assert (busy.last("Usage").since_s, busy.last("Usage").user) == (7 * 86400, "ann")
    assert hsctl("usage").out.splitlines()[1].split() == ["ann", "V100", "1.500", "2.000", "0.0", "3", "40"]


@pytest.mark.usefixtures("busy")
def test_nodes_json_has_gpus_with_state_and_jobs_with_their_epochs(hsctl):
    (node,) = json.loads(hsctl("nodes", "--json").out)
    assert (node["name"], node["state"], node["version"]) == ("n1", "up", "0.1.0")
    assert [(g["index"], g["uuid"], g["model"], g["state"]) for g in node["gpus"]] == [
        (0, "GPU-0", "V100", "busy"), (1, "GPU-1", "V100", "idle"), (2, "GPU-2", "V100", "idle"), (3, "GPU-3", "V100", "unhealthy"),
    ]  # fmt: skip
    assert node["gpus"][0]["jobs"] == [{"id": 7, "epoch": 2}, {"id": 8, "epoch": 1}]
    assert node["gpus"][1]["jobs"] == [{"id": 8, "epoch": 1}]


@pytest.mark.usefixtures("busy")
def test_gpus_shows_who_runs_and_whose_state_stays(hsctl):
    lines = hsctl("gpus").out.splitlines()
    assert lines[1].split()[:7] == ["n1", "0", "V100", "busy", "ann", "7", "8"]
    assert [row["index"] for row in json.loads(hsctl("gpus", "--me", "--json").out)] == [0]


def test_gpus_of_mine_are_also_those_that_keep_a_suspended_job_of_mine(hsctl, busy):
    busy.info.you = "bob"
    assert [row["index"] for row in json.loads(hsctl("gpus", "--me", "--json").out)] == [0, 1]
    # Also where so many jobs have come since that they are not among those that are listed.
    for number in range(100, 100 + MOST_JOBS):
        busy.add(id=number)
    [gpu, _] = json.loads(hsctl("gpus", "--me", "--json").out)
    assert gpu["jobs"][1] == {"id": 8, "epoch": 1}
    assert [node["name"] for node in json.loads(hsctl("nodes", "--me", "--json").out)] == ["n1"]


def test_of_a_drained_server_no_gpu_is_said_to_be_idle_or_usable(hsctl, busy):
    busy.nodes[0].draining = True
    rows = json.loads(hsctl("gpus", "--json").out)
    assert [row["state"] for row in rows] == ["busy", "drained", "drained", "unhealthy"]
    assert not any(row["drained"] for row in rows), "they are not drained themselves"
    assert hsctl("nodes").out.splitlines()[1].split()[:4] == ["n1", "draining", "V100", "1/1/4"]


@pytest.mark.usefixtures("busy")
def test_gpus_shows_both_jobs_of_one_that_is_shared(hsctl, fake):
    fake.add(id=9, user="bob", state="running", host="n1", epoch=1)
    fake.nodes[0].uses[1].MergeFrom(wire.GpuUse(running_job=7, user="ann", second_job=9, second_user="bob"))
    assert hsctl("gpus").out.splitlines()[2].split()[:7] == ["n1", "1", "V100", "busy", "ann+bob", "7+9", "8"]
    row = json.loads(hsctl("gpus", "--json").out)[1]
    assert [job["id"] for job in row["jobs"]] == [7, 9, 8]
    assert (row["running_job"], row["second_job"], row["second_user"]) == (7, 9, "bob")


def test_nodes_tell_how_much_host_memory_is_left(hsctl, busy):
    assert "70G of 256G" in hsctl("nodes").out
    (node,) = json.loads(hsctl("nodes", "--json").out)
    assert (node["memory_bytes"], node["memory_available_bytes"]) == (256 << 30, 70 << 30)
    busy.nodes[0].memory_bytes = busy.nodes[0].memory_available_bytes = 0  # an agent that cannot say
    (node,) = json.loads(hsctl("nodes", "--json").out)
    assert (node["memory_bytes"], node["memory_available_bytes"]) == (None, None)


@pytest.mark.usefixtures("busy")
def test_nodes_tells_warnings_on_stderr(hsctl):
    ran = hsctl("nodes")
    assert ran.err == "n1: no cgroup\n"
    assert ran.out.splitlines()[1].split()[:4] == ["n1", "up", "V100", "1/3/4"]


def test_ages_go_by_the_controllers_clocks_whatever_this_machines_shows(hsctl, busy):
    busy.now, busy.wall_now = 1.7e9 + 4, 1.7e9 + 60
    busy.nodes[0].certificate_until = busy.wall_now + 3 * 86400 + 1
    assert "  4s ago" in hsctl("nodes").out
    assert "3d 00h left" in hsctl("nodes").out
    assert "certificate" not in hsctl("doctor").out
    busy.wall_now += 2 * 86400
    assert "its certificate ends in 1d 00h" in hsctl("doctor").out
    busy.tokens = [wire.TokenView(id="t1", user="ann", not_after=1.7e9 + 5)]
    assert " valid " in hsctl("token", "list").out
    busy.now += 2
    assert " expired " in hsctl("token", "list").out


def test_of_a_server_that_is_away_nobody_says_what_is_busy(hsctl, busy):
    busy.nodes[0].state = "away"
    assert hsctl("nodes").out.splitlines()[1].split()[:4] == ["n1", "away", "V100", "-/-/4"]
    rows = json.loads(hsctl("gpus", "--json").out)
    assert {row["state"] for row in rows} == {"away"}
    assert rows[0]["running_job"] == 7, "who was there may be there still"


def test_that_there_are_no_events_is_said_beside_the_answer(hsctl, fake):
    fake.events = []
    ran = hsctl("events", "-u", "nobody")
    assert (ran.code, ran.out, ran.err) == (0, "", "no events\n")


def test_events_are_lines_for_people_and_objects_for_scripts(hsctl, fake):
    fake.events = [
        wire.Event(
            seq=5, at=1.7e9, kind="placed", text="on n1", job_id=3, user="ann", host="n1", data={"gpus": "2"}
        )
    ]
    assert "placed" in hsctl("events").out
    assert hsctl("events", "--no-header").out == hsctl("events").out
    assert json.loads(hsctl("events", "--jsonl").out)["data"] == {"gpus": "2"}
    assert json.loads(hsctl("events", "--json").out)[0]["seq"] == 5
    hsctl("events", "-j", "3", "-u", "ann", "-n", "7")
    asked = fake.last("Events")
    assert (asked.job_id, asked.user, asked.tail, asked.HasField("after_seq")) == (3, "ann", 7, False)
    hsctl("events", "--after", "0")
    assert fake.last("Events").HasField("after_seq"), "from the beginning, not the newest"
    refused = hsctl("events", "-n", "7", "--after", "4")
    assert (refused.code, refused.err) == (2, "hsctl: --tail and --after: expected one of them\n")


@pytest.mark.parametrize(
    ("kind", "user", "host"),
    [("gpu-claimed-twice", "ann", "n1"), ("lost", "a.long.name@example.org", "r7"), ("lost", "u" * 64, "h" * 64)],
)  # fmt: skip
def test_texts_of_events_begin_below_one_another_whatever_was_said_of_them(hsctl, fake, kind, user, host):
    today = time.time()
    fake.events = [
        wire.Event(seq=1, at=1.7e9, kind="placed", text="TEXT", job_id=3, user="ann", host="n1"),
        wire.Event(seq=2, at=today, kind=kind, text="TEXT", job_id=100_000, user=user, host=host),
        wire.Event(seq=3, at=today, kind="placed", text="TEXT"),
    ]
    ours, theirs, others = (line.index("TEXT") for line in hsctl("events").out.splitlines())
    assert ours == others
    assert theirs == ours if len(user) < 40 else theirs > ours, "a line that is far too long moves no other"


def test_events_that_come_one_by_one_keep_the_columns_that_they_have_come_to_need():
    columns = EventColumns()
    first = columns.line(wire.Event(seq=1, at=1.7e9, kind="gpu-claimed-twice", text="TEXT", host="n1"))
    second = columns.line(wire.Event(seq=2, at=time.time(), kind="placed", text="TEXT", job_id=3, user="ann"))
    assert first.index("TEXT") == second.index("TEXT")


def test_followed_events_go_on_after_a_restart_without_repeating(serving, fake):
    from hs_client import Client

    fake.end_events = False
    fake.events = [wire.Event(seq=1, kind="a")]
    seen = []
    second = threading.Event()

    def read():
        with Client(f"unix:{serving.socket}") as client:
            for event in client.events(follow=True):
                seen.append(event.seq)
                if event.seq == 2:
                    second.set()
                    return

    reader = threading.Thread(target=read)
    reader.start()
    while not seen:
        reader.join(0.01)
    serving.stop()
    fake.events.append(wire.Event(seq=2, kind="b"))
    serving.start()
    assert second.wait(20)
    reader.join(5)
    assert seen == [1, 2]


def test_who_fell_behind_the_events_reads_on_where_it_was(hsctl, fake):
    fake.events = [wire.Event(seq=1, kind="placed"), wire.Event(seq=2, kind="ended")]

    def drop(context):
        del fake.hooks["Events"]
        context.set_trailing_metadata((("hs-kind", "unavailable"),))
        text = "resync: events after 0 have gone by; ask again from there"
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    fake.hooks["Events"] = drop
    ran = hsctl("events")
    assert (ran.code, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == 2


def test_user_set_changes_only_what_is_named(hsctl, fake):
    ran = hsctl("user", "set", "ann", "--tickets", "200")
    assert ran.out == "ann: 200 tickets, jobs run as ann\n"
    asked = fake.last("SetUser")
    assert (asked.tickets, asked.HasField("run_as"), bool(asked.key)) == (200, False, True)
    assert json.loads(hsctl("user", "set", "ann", "--run-as", "svc", "--json").out)["run_as"] == "svc"


def test_users_are_listed_with_role_jobs_and_what_they_received(hsctl, fake):
    ann = wire.UserView(
        name="ann", tickets=200, admin=True, live_jobs=3, spec_bytes=4096, gpu_s=5400, tokens=2
    )
    fake.users = [ann, wire.UserView(name="bob", tickets=100, run_as="svc", configured=True)]
    header, *lines = hsctl("user", "list").out.splitlines()
    assert header.split()[:3] == ["user", "role", "tickets"]
    assert lines[0].split() == ["ann", "admin", "200", "ann", "3", "4K", "1.500", "2"]
    assert lines[1].split()[:4] == ["bob", "user", "100", "svc"]
    names = ["name", "tickets", "run_as", "admin", "configured", "live_jobs", "spec_bytes", "gpu_s", "tokens"]
    assert [list(row) for row in json.loads(hsctl("user", "list", "--json").out)] == [names, names]
    (mine,) = hsctl("user", "list", "--me", "--jsonl").out.splitlines()
    assert json.loads(mine)["live_jobs"] == 3


def test_a_user_who_is_removed_is_said_with_what_goes_along_and_what_stays(hsctl, fake):
    fake.users = [wire.UserView(name="ann", tokens=2), wire.UserView(name="bob", configured=True)]
    assert hsctl("user", "remove", "ann").out == "ann removed; 2 tokens revoked\n"
    assert fake.last("RemoveUser").key
    ran = hsctl("user", "remove", "bob")
    assert (ran.code, ran.out) == (0, "bob removed\n")
    assert "[users.bob] is still in the controller's configuration" in ran.err
    fake.refusals["RemoveUser"] = ("conflict", "user 'bob' has 1 job under way (7): cancel it")
    ran = hsctl("user", "remove", "bob")
    assert (ran.code, "1 job under way (7)" in ran.err) == (1, True)


def test_deeds_alone_are_asked_for(hsctl, fake):
    hsctl("events", "--deeds")
    assert fake.last("Events").deeds


def test_info_says_where_and_who(hsctl, fake):
    fake.info.admin = True
    ran = hsctl("info")
    assert "you:        ann (admin)" in ran.out
    data = json.loads(hsctl("info", "--json").out)
    assert (data["policy"], data["term"]) == ("gandiva-fair", 3)
    assert data["controller"].startswith("unix:/")


def test_doctor_fails_where_something_is_broken(hsctl, busy):
    ran = hsctl("doctor")
    assert ran.code == 1
    assert "fail  gpu n1/3" in ran.out
    assert "warn  node n1: no cgroup" in ran.out
    busy.nodes = [wire.NodeView(name="n1", state="up", gpus=GPUS[:3])]
    assert hsctl("doctor").code == 0
    busy.nodes = [wire.NodeView(name="n1", state="away", gpus=GPUS[:3])]
    ran = hsctl("doctor")
    assert (ran.code, "start hs-agent there" in ran.out, "`hsctl node remove n1`" in ran.out) == (
        1,
        True,
        True,
    )
    busy.nodes = [wire.NodeView(name="n1", state="up", gpus=GPUS[:3])]
    busy.info.version = "9.0.0"
    assert "warn  version" in hsctl("doctor").out


def test_doctor_names_a_server_whose_agent_is_of_another_version_than_the_controller(hsctl, busy):
    newer = f"{busy.info.version.split('.')[0]}.999.0"
    busy.nodes = [
        wire.NodeView(name="n1", state="up", gpus=GPUS[:3], version=busy.info.version),
        wire.NodeView(name="n2", state="up", gpus=GPUS[:3], version=newer),
        wire.NodeView(name="n3", state="away", gpus=GPUS[:3], draining=True),
    ]
    ran = hsctl("doctor")
    assert ran.code == 0
    assert f"warn  node n2: its agent is of version {newer}, the controller of {busy.info.version}" in ran.out
    assert ran.out.count("its agent is of version") == 1


def test_doctor_does_not_fail_for_a_server_that_was_emptied_to_be_switched_off(hsctl, busy):
    del busy.nodes[0].gpus[3]  # the broken one
    busy.nodes[0].state = "away"
    assert hsctl("doctor").code == 1
    busy.nodes[0].draining = True
    busy.nodes[0].certificate_until = 1.0
    assert hsctl("doctor").code == 0
    busy.nodes[0].needed_by.append(7)
    assert hsctl("doctor").code == 1


def test_numbers_that_json_cannot_say_are_null(hsctl, fake):
    fake.add(steps_per_s=math.nan, entitled_gpus=math.inf)
    (row,) = json.loads(hsctl("queue", "--json").out)
    assert (row["rate"], row["share"]) == (None, None)


def test_doctor_names_an_hsctl_that_knows_other_messages_though_its_version_is_the_same(hsctl, busy):
    busy.info.dialect = "0123456789ab"
    ran = hsctl("doctor")
    assert (
        f"warn  version: the controller is of version {busy.info.version}, messages 0123456789ab;" in ran.out
    )
    assert "install the same version of heteroshare here and there" in ran.out
