"""`show` and `why`: all that is known of a job, and why it is where it is."""

import json
import re
import subprocess
import time

import pytest
from client_fakes import CONTRACT

from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire


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


def test_a_command_of_several_lines_is_shown_so_that_a_shell_takes_it(hsctl, fake):
    script = "echo 'a' > x\\n\necho \"b\"\t\x1b[31m ü\n"
    words = ["/bin/sh", "-ec", script, "two words"]
    fake.add()
    spec = fake.specs[1]
    spec.command[:] = words
    spec.env["SEEDS"] = "1\n2"
    fake.details[1] = {"job_class": f"ann/{script}"}
    shown = hsctl("show", "1", "--env").out
    assert "\N{REPLACEMENT CHARACTER}" not in shown
    (command,) = re.findall(r"^command: +(.*)$", shown, re.MULTILINE)
    told = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    assert told.stdout.decode().split("\0")[:-1] == words
    assert r"class:        ann/echo 'a'" in shown
    assert r"  SEEDS=$'1\n2'" in shown


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
