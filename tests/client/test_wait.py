"""`wait` exits as the job did."""

import json

import pytest
from client_fakes import ENDED

from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire


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
