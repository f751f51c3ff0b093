"""`cancel`, `pause` and `resume`, and how people name the jobs that they mean."""

import json
import shlex
import subprocess
import sys

import pytest

from hs_client.limits import MOST_JOBS
from hs_proto.v1 import controller_pb2 as wire


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


def test_who_pauses_what_is_paused_or_resumes_what_is_not_is_told_so(hsctl, fake):
    fake.add(state="running")
    told = [hsctl(verb, "1").out for verb in ("resume", "pause", "pause", "resume")]
    assert told == [
        "job 1 was not paused (running)\n",
        "job 1 paused\n",
        "job 1 was paused already\n",
        "job 1 resumed (queued)\n",
    ]


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
    line = (
        f"exec {shlex.quote(sys.executable)} -m hs_client --controller unix:{serving.socket} cancel --me <&-"
    )
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr.count("Nobody is here to answer")) == (2, 1), ran.stderr


@pytest.mark.parametrize(("verb", "method"), [("pause", "Pause"), ("resume", "Unpause")])
def test_of_an_array_what_has_ended_or_is_about_to_is_neither_paused_nor_resumed(hsctl, fake, verb, method):
    for index, state in enumerate(("succeeded", "running", "queued", "failed", "cancelling")):
        fake.add(id=10 + index, array_id=10, array_index=index, state=state)
    assert hsctl(verb, "10_all").code == 0
    assert list(fake.last(method).job_ids) == [11, 12]
    assert fake.last(method).leave_ended, "more of it may end before the request comes"
    hsctl(verb, "10_0")
    assert list(fake.last(method).job_ids) == [10], "who names a task is told that it has ended"
    assert not fake.last(method).leave_ended


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_what_of_an_array_ended_meanwhile_is_named_as_left(hsctl, fake, monkeypatch, verb):
    for index in range(2):
        fake.add(id=10 + index, array_id=10, array_index=index, state="queued")

    def answer(*_asked):
        fake.change(10, state="succeeded")
        return wire.JobsReply(jobs=[fake.jobs[10], fake.jobs[11]], unchanged=[10])

    monkeypatch.setattr(fake, "_many", answer)
    ran = hsctl(verb, "10_all")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "job 10 is left as it is (succeeded)")


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
    for number, name in ((8, "lr=1 gpt"), (9, "lr=2 gpt"), (10, "not gpt")):
        fake.add(id=number, name=name, user="ann")
    assert hsctl("cancel", "gpt").err.endswith("; so named of yours: 9, 8\n"), "of a sweep"


@pytest.mark.parametrize("words", ["16-13", "1-1001", "3-"])
def test_a_row_of_jobs_that_is_none_is_refused(hsctl, words):
    ran = hsctl("cancel", words)
    assert ran.code == 2
    assert f"{words!r}: expected" in ran.err


def test_all_of_an_array_are_found_however_many_jobs_came_since(hsctl, fake):
    for index in range(2):
        fake.add(id=10 + index, array_id=10, array_index=index)
    for newer in range(MOST_JOBS - 1):
        fake.add(id=100 + newer)
    assert hsctl("cancel", "10_all").code == 0
    assert list(fake.last("Cancel").job_ids) == [10, 11]
