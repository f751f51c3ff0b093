"""`exec`: a command beside a job."""

import pytest

from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire


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
