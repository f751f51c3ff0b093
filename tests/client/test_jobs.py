"""Verbs about jobs, for people and for scripts."""

import contextlib
import json
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from client_fakes import ENDED

from hs_client import quantities, screen, zone
from hs_client.api import LISTED, MOST_JOBS
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

CONTRACT = [
    "id", "user", "name", "state", "reason", "gpus", "gpu_type", "nodes", "gpu_ids", "epoch", "share", "rate", "steps",
    "suspends", "migrations", "lost_gpu_s", "submitted_at", "started_at", "ended_at", "exit_code",
]  # fmt: skip


def test_show_has_each_copy_of_a_forked_job(hsctl, fake):
    copies = [
        wire.CopyView(host="n1", gpu_model="V100", steps=120, portion=600, phase="running"),
        wire.CopyView(host="n2", gpu_model="K80", portion=200),
    ]
    fake.add(name="resnet", state="running", copies=copies)
    shown = hsctl("show", "1").out
    assert (
        "copies:       2, averaged at the round's end: n1 (V100) 120 of 600 steps, running; n2 (K80) 0 of 200 steps"
        in shown
    )


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        ({}, "noise scale 900 (as declared)"),
        ({"noise_scale": 1234.5, "noise_samples": 80}, "noise scale 1234 (measured 80 times)"),
    ],
)
def test_show_says_of_an_elastic_job_how_noisy_its_gradients_are(hsctl, fake, measured, text):
    elastic = common.Elastic(
        gpus_min=1, gpus_max=4, batch=64, batch_max=512, batch_per_gpu_max=64, noise_scale=900
    )
    fake.add(name="resnet", state="running", elastic=elastic, **measured)
    assert text in hsctl("show", "1").out


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


def test_show_tells_story_exit_and_the_logs_tail_of_a_failed_job(hsctl, fake):
    fake.add(state="running", host="n1", started_at=1.7e9 + 1)
    fake.stories[1] = [
        wire.Event(seq=1, at=1.7e9, kind="submitted", text="by ann"),
        wire.Event(seq=2, at=1.7e9 + 1, kind="placed", text="on n1"),
    ]
    fake.end(1, "failed", signal=11, log_tail="Traceback\nValueError: nan\n")
    out = hsctl("show", "1").out
    assert "failed: signal 11" in out
    assert "exit code:    139" in out
    assert "placed        on n1" in out
    assert "  ValueError: nan" in out


def test_the_texts_of_a_jobs_story_begin_below_one_another(hsctl, fake):
    fake.add()
    fake.stories[1] = [
        wire.Event(seq=1, at=1.7e9, kind="submitted", text="TEXT"),
        wire.Event(seq=2, at=time.time(), kind="checkpoint-too-large", text="TEXT"),
    ]
    first, second = (line.index("TEXT") for line in hsctl("show", "1").out.splitlines() if "TEXT" in line)
    assert first == second


def test_show_tells_a_jobs_weight_from_its_users_tickets(hsctl, fake):
    fake.add(state="running", host="n1", tickets=4 / 7, entitled_gpus=0.5714)
    fake.add(state="queued", tickets=4 / 7)
    assert "share:        0.57 GPUs: weight 0.5714 beside the other jobs of n1\n" in hsctl("show", "1").out
    assert "share:" not in hsctl("show", "2").out, "without a home it has no jobs beside it"


def test_show_json_holds_spec_story_and_rates(hsctl, fake):
    fake.add()
    row = json.loads(hsctl("show", "1", "--json").out)
    assert row["spec"]["command"] == ["/bin/true"]
    assert {r["gpu_model"]: r["speedup"] for r in row["rates"]} == {"K80": 1, "V100": 5}
    assert row["story"] == []
    assert list(row)[: len(CONTRACT)] == CONTRACT


def test_why_prints_one_reason_its_evidence_and_the_next_step(hsctl, fake):
    fake.add(reason="waiting-for-turn")
    fake.whys[1] = wire.WhyReply(
        job_id=1, state="suspended", reason="waiting-for-turn", text="4 of 4 GPUs of n1 are in bob's turn",
        next_step="it runs at the next quantum", expected_wait_s=42,
    )  # fmt: skip
    ran = hsctl("why", "1")
    assert ran.out.splitlines() == [
        "job 1 is suspended (waiting-for-turn): 4 of 4 GPUs of n1 are in bob's turn",
        "expected wait: 42s",
        "next: it runs at the next quantum",
    ]
    assert json.loads(hsctl("why", "1", "--json").out)["reason"] == "waiting-for-turn"


def test_why_does_not_say_a_state_twice(hsctl, fake):
    fake.add(state="running")
    fake.whys[1] = wire.WhyReply(job_id=1, state="running", reason="running", text="it runs on n1, on 1 GPU")
    assert hsctl("why", "1").out == "job 1 is running: it runs on n1, on 1 GPU\n"


def test_one_is_said_of_one(hsctl, fake):
    fake.add(state="suspended", suspends=1, resumes=1, suspend_s=1.0, resume_s=0.5)
    assert "1 suspend, 1 resume (mean" in hsctl("show", "1").out


def test_a_wait_that_is_not_known_is_null_for_scripts_and_absent_for_people(hsctl, fake):
    fake.add()
    fake.whys[1] = wire.WhyReply(
        job_id=1, state="queued", reason="paused", text="paused by ann", expected_wait_s=-1
    )
    assert "expected wait" not in hsctl("why", "1").out
    assert json.loads(hsctl("why", "1", "--json").out)["expected_wait_s"] is None


def test_logs_are_bytes_as_they_were_written(hsctl, fake):
    fake.add(state="running")
    fake.logs[1] = [b"one\n", b"two\n", b"three"]
    assert hsctl("logs", "1").out == "one\ntwo\nthree"
    assert hsctl("logs", "--tail", "2", "1").out == "two\nthree"
    assert fake.last("Logs").tail_lines == 2


@contextlib.contextmanager
def zoned(monkeypatch, name):
    with monkeypatch.context() as here:
        here.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def utc(monkeypatch):
    """Where this test is."""
    with zoned(monkeypatch, "UTC"):
        yield


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("90s", 90),
        ("2h", 7200),
        ("1d12h", 36 * 3600),
        ("11:59", 60),
        ("11:58:30", 90),
        ("12:01", 86_340),  # yesterday
        ("2026-05-01T11:00", 3600),
        ("2026-05-01", 12 * 3600),
        ("2026-05-01T11:00:00Z", 3600),
        ("2026-05-01T11:00:00+01:00", 7200),
    ],
)
def test_since_is_how_long_ago_or_when(text, ago_s):
    assert quantities.since(text, datetime(2026, 5, 1, 12, tzinfo=UTC)) == ago_s


def test_show_says_what_a_jobs_age_is_made_of(hsctl, fake):
    at = fake.add(state="running").id
    fake.details[at] = {"ages": wire.Ages(waiting_s=7000.0, running_s=3000.0, paused_s=60.0)}
    assert "age:          2h 47m: waited 1h 56m, ran 50m 00s, paused 1m 00s\n" in hsctl("show", str(at)).out
    ages = json.loads(hsctl("show", "--json", str(at)).out)["ages"]
    assert {name: spent_s for name, spent_s in ages.items() if spent_s} == {
        "waiting_s": 7000.0,
        "running_s": 3000.0,
        "paused_s": 60.0,
    }


@pytest.fixture
def nowhere(monkeypatch):
    """A time zone that nobody knows."""
    with zoned(monkeypatch, "Europe/Berln"):
        yield


@pytest.mark.usefixtures("nowhere")
def test_a_time_of_day_in_a_time_zone_that_nobody_knows_is_refused(hsctl, fake):
    fake.add(state="running")
    for text in ("14:30", "2026-05-01T11:00"):
        refused = hsctl("logs", "--since", text, "1")
        assert refused.code == 2
        assert "TZ = 'Europe/Berln': expected a time zone of this machine, e.g. Europe/Berlin" in refused.err
    assert hsctl("logs", "--since", "90m", "1").code == 0
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert quantities.since("2026-05-01T11:00:00Z", now) == 3600


@pytest.mark.usefixtures("nowhere")
def test_times_in_a_time_zone_that_nobody_knows_are_said_to_be_utc():
    assert screen.clock(1_777_633_200.0).endswith("11:00:00Z")


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("named", ["UTC", ":UTC", "CET-1CEST,M3.5.0,M10.5.0/3", "<+03>-3", ""])
def test_time_zones_that_are_none_of_a_file_are_known_too(monkeypatch, named):
    monkeypatch.setenv("TZ", named)
    assert not zone.unknown()


def test_logs_ask_for_what_was_written_since_and_refuse_what_is_no_time(hsctl, fake):
    fake.add(state="running")
    hsctl("logs", "1")
    assert fake.last("Logs").since_s == 0
    hsctl("logs", "--since", "90s", "--tail", "5", "1")
    assert (fake.last("Logs").since_s, fake.last("Logs").tail_lines) == (90, 5)
    for text in ("90", "", "yesterday", "25:00", "2999-01-01", "0s", "-5m", "2026-02-30"):
        refused = hsctl("logs", "--since", text, "1")
        assert refused.code == 2
        assert "e.g. 30s, 90m, 2h or 7d, or when" in refused.err


def test_of_a_job_over_several_servers_it_is_said_whose_output_it_is_and_how_to_see_the_others(hsctl, fake):
    fake.add(state="running", host="n1", hosts=["n1", "n2", "n3"], nodes=3)
    fake.logs[1] = [b"one\n"]
    first = hsctl("logs", "1")
    assert (first.out, fake.last("Logs").rank) == ("one\n", 0)
    assert "on 3 servers, and this is the first: --rank 1 to 2 for another" in first.err
    assert hsctl("logs", "--rank", "2", "1").err == ""
    assert fake.last("Logs").rank == 2


def said(data=b"", **more):
    return wire.ExecChunk(data=data, **more)


@pytest.mark.parametrize(
    ("end", "code", "err"),
    [
        ({}, 0, ""),
        ({"code": 7}, 7, ""),
        ({"signal": 11}, 139, ""),
        ({"signal": 9, "why": "job 1 has not its turn on n1 just now (frozen)"}, 1, "the command was ended: job 1 has not its turn on n1"),
        ({"signal": 15, "why": "it took longer", "is_late": True}, 124, "the command was ended: it took longer"),
    ],
)  # fmt: skip
def test_exec_hands_on_what_a_command_says_and_exits_as_it_did(hsctl, fake, end, code, err):
    fake.add(state="running")
    fake.execs = [said(b"one\n"), said(), said(b"oops\n", is_error=True), said(b"two"), said(end=common.ExecEnd(**end))]  # fmt: skip
    ran = hsctl("exec", "--rank", "2", "--timeout", "5m", "1", "--", "py-spy", "dump", "--pid", "1")
    assert (ran.code, ran.out) == (code, "one\ntwo")
    assert ran.err.startswith("oops\n")
    assert err in ran.err
    asked = fake.last("Exec")
    assert list(asked.command) == ["py-spy", "dump", "--pid", "1"]
    assert (asked.job_id, asked.rank, asked.limit_s) == (1, 2, 300)


def test_the_words_of_exec_are_the_commands_own(hsctl, fake):
    fake.add(state="running")
    fake.execs = [said(end=common.ExecEnd())]
    hsctl("exec", "1", "ls", "--rank", "--", "-h")
    assert list(fake.last("Exec").command) == ["ls", "--rank", "--", "-h"]
    assert fake.last("Exec").rank == 0
    for words in (("1",), ("1", "--"), ()):
        assert hsctl("exec", *words).code == 2


def test_a_command_beside_a_job_has_an_hour_at_most(hsctl, fake):
    ran = hsctl("exec", "--timeout", "2h", "1", "true")
    assert (ran.code, ran.err) == (2, "hsctl: --timeout '2h': expected an hour at most\n")
    assert not fake.requests["Exec"]


def test_exec_says_it_when_the_controller_stops_telling(hsctl, fake):
    fake.add(state="running")
    fake.execs = [said(b"half")]
    ran = hsctl("exec", "1", "yes")
    assert (ran.code, ran.out) == (6, "half")
    assert "stopped telling of the command, which is ended" in ran.err
    assert hsctl("exec", "99", "true").code == 4


@pytest.mark.parametrize(
    ("verb", "rpc", "state"),
    [("pause", "Pause", "paused"), ("resume", "Unpause", "queued"), ("cancel", "Cancel", "cancelling")],
)
def test_jobs_are_changed_together_with_one_key(hsctl, fake, verb, rpc, state):
    fake.add()
    fake.add()
    ran = hsctl(verb, "1", "2", "--json")
    assert ran.code == 0
    assert {row["state"] for row in json.loads(ran.out)} == {state}
    assert list(fake.last(rpc).job_ids) == [1, 2]
    assert len(fake.last(rpc).key) >= 16


def test_cancel_me_ends_what_is_mine_and_nothing_else(hsctl, fake):
    fake.add()
    fake.add(user="bob")
    assert hsctl("cancel", "--me", "--yes").code == 0
    assert list(fake.last("Cancel").job_ids) == [1]
    assert hsctl("cancel", "--me", stdin="n\n").code == 0
    assert len(fake.requests["Cancel"]) == 1


def test_cancel_me_with_nobody_to_ask_says_so_and_what_answers_beforehand(hsctl, fake):
    fake.add()
    ran = hsctl("cancel", "--me")
    assert (ran.code, fake.requests["Cancel"]) == (2, [])
    assert ran.err.endswith(
        "hsctl: cancel 1 job? Nobody is here to answer: expected -y to cancel them unasked\n"
    )


def test_ctrl_c_at_the_question_cancels_nothing(hsctl, fake, monkeypatch):
    def pressed(_: str) -> str:
        raise KeyboardInterrupt

    fake.add()
    monkeypatch.setattr("click.termui.visible_prompt_func", pressed)
    ran = hsctl("cancel", "--me")
    assert (ran.code, fake.requests["Cancel"]) == (130, [])


def test_closed_standard_input_is_one_without_an_answer(serving, fake):
    fake.add()
    line = f"exec {sys.executable} -m hs_client --controller unix:{serving.socket} cancel --me <&-"
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr.count("Nobody is here to answer")) == (2, 1), ran.stderr


def test_a_list_that_may_not_be_all_says_so(hsctl, fake):
    for _ in range(LISTED - 1):
        fake.add()
    assert hsctl("queue").err == ""
    fake.add()
    assert "the newest 1000 are listed" in hsctl("queue").err
    assert "the newest 1000 are listed" in hsctl("queue", "--json").err
    assert hsctl("queue", "-n", LISTED).err == "", "as many as were asked for"


@pytest.mark.parametrize(("verb", "method"), [("pause", "Pause"), ("resume", "Unpause")])
def test_of_an_array_what_has_ended_or_is_about_to_is_neither_paused_nor_resumed(hsctl, fake, verb, method):
    for index, state in enumerate(("succeeded", "running", "queued", "failed", "cancelling")):
        fake.add(id=10 + index, array_id=10, array_index=index, state=state)
    assert hsctl(verb, "10_all").code == 0
    assert list(fake.last(method).job_ids) == [11, 12]
    hsctl(verb, "10_0")
    assert list(fake.last(method).job_ids) == [10], "who names a task is told that it has ended"


def test_all_of_an_array_are_found_however_many_jobs_came_since(hsctl, fake):
    for index in range(2):
        fake.add(id=10 + index, array_id=10, array_index=index)
    for newer in range(MOST_JOBS - 1):
        fake.add(id=100 + newer)
    assert hsctl("cancel", "10_all").code == 0
    assert list(fake.last("Cancel").job_ids) == [10, 11]


def test_tasks_of_an_array_have_names(hsctl, fake):
    for index in range(3):
        fake.add(id=10 + index, array_id=10, array_index=index)
    assert hsctl("pause", "10_1").code == 0
    assert list(fake.last("Pause").job_ids) == [11]
    assert hsctl("pause", "10_all").code == 0
    assert list(fake.last("Pause").job_ids) == [10, 11, 12]
    assert hsctl("pause", "10_9").code == 4
    assert hsctl("pause", "ten").code == 2
    assert "10 (10_0)" in hsctl("queue").out


def test_jobs_in_a_row_are_named_as_a_sweeps_submit_names_them(hsctl, fake):
    for index, state in enumerate(("succeeded", "running", "queued", "cancelling")):
        fake.add(id=13 + index, state=state)
    fake.add(id=20)
    assert hsctl("pause", "13-16").code == 0
    assert list(fake.last("Pause").job_ids) == [14, 15]
    assert hsctl("cancel", "13-16", "20").code == 0
    assert list(fake.last("Cancel").job_ids) == [13, 14, 15, 16, 20]
    assert hsctl("submit", "--after", "13-14:any", "-d", "16", "true").code == 0
    (spec,) = fake.last("Submit").jobs
    assert [(a.job_id, a.condition) for a in spec.after] == [(13, "any"), (14, "any"), (16, "ok")]


def test_who_names_a_job_by_its_name_is_told_its_number(hsctl, fake):
    for number, name in ((3, "resnet"), (4, "bert"), (7, "resnet")):
        fake.add(id=number, name=name, user="ann")
    ran = hsctl("logs", "resnet")
    assert ran.code == 2
    assert ran.err.endswith("; so named of yours: 7, 3\n")
    assert "so named" not in hsctl("cancel", "gpt").err


@pytest.mark.parametrize("words", ["16-13", "1-1001", "3-"])
def test_a_row_of_jobs_that_is_none_is_refused(hsctl, words):
    ran = hsctl("cancel", words)
    assert ran.code == 2
    assert f"{words!r}: expected" in ran.err


@pytest.mark.parametrize(
    ("state", "how", "code"),
    [("succeeded", {}, 0), ("failed", {"code": 3}, 3), ("failed", {"signal": 9}, 137), ("failed", {"why": "launch failed: x"}, 1),
     ("cancelled", {"signal": 15}, 143), ("cancelled", {}, 1)],
)  # fmt: skip
def test_wait_exits_as_the_job_did(hsctl, fake, state, how, code):
    fake.add()
    fake.end(1, state, **how)
    assert state in ENDED
    ran = hsctl("wait", "1")
    assert ran.code == code
    assert ran.out == ""
    assert state in ran.err


def test_wait_for_several_exits_as_the_first_that_did_not_succeed(hsctl, fake):
    for code in (0, 5, 7):
        view = fake.add()
        fake.end(view.id, "failed" if code else "succeeded", code=code)
    ran = hsctl("wait", "1", "2", "3", "--json")
    assert ran.code == 5
    assert [row["exit_code"] for row in json.loads(ran.out)] == [0, 5, 7]


def test_wait_gives_up_in_time_and_says_that_the_job_goes_on(hsctl, fake):
    fake.add(state="running")
    ran = hsctl("wait", "1", "--timeout", "0.2")
    assert ran.code == 124
    assert "goes on" in ran.err
    assert hsctl("wait", "1", "--timeout", "soon").code == 2


def test_exit_codes_of_a_job_are_the_same_in_the_python_api():
    from hs_client import exit_code

    assert exit_code(wire.JobView(state="failed", exit=common.Exit(signal=9))) == 137
    assert exit_code(wire.JobView(state="succeeded")) == 0


@pytest.mark.parametrize(
    ("typed", "here"),
    [("squeue", "queue"), ("status", "queue"), ("kill", "cancel"), ("users", "user list"), ("sumbit", "submit"), ("PS", "ps")],
)  # fmt: skip
def test_a_verb_of_another_system_is_answered_with_the_one_here(call, typed, here):
    ran = call(typed)
    assert ran.code == 2
    assert f"no such command {typed!r}; did you mean {here!r}?" in ran.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["node", "list"], "it is `hsctl nodes`"),
        (["user", "add"], "it is `hsctl user set`"),
        (["node", "dran"], "did you mean 'drain'?"),
        (["token", "x"], "expected one of create, list, revoke"),
    ],
)
def test_a_verb_that_a_group_has_not_is_answered_with_what_it_has(call, words, text):
    ran = call(*words)
    assert ran.code == 2
    assert f"no such command {words[1]!r}; {text}" in ran.err


def test_help_is_asked_for_in_words_too(call):
    assert call("help").out == call("--help").out != ""
    assert call("help", "queue").out == call("queue", "--help").out != ""
    assert call("help", "node", "drain").out == call("node", "drain", "--help").out
