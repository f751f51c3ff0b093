"""Servers that obey another controller than this one."""

import pytest
from starts import N1, world

from hs_core.cluster.why.reason import Reason
from hs_core.events.cluster import HostReported
from hs_core.names import JobId


def test_a_server_that_obeys_a_later_controller_is_named_and_who_waits_there_is_told() -> None:
    here = world("user ann\nhost n1 V100:2\nsubmit ann first gpus=1")
    said = HostReported(now_s=1.0, host=N1, reports=(), obeys=9)
    here.handle(said)
    (fact,) = here.outcome.facts
    assert (fact.kind, fact.host) == ("orders-refused", N1)
    assert "has obeyed another controller (of term 9; this one's is 1)" in fact.text
    assert here.machine.cannot_start(N1) in fact.text
    why = here.machine.why(JobId(1), 1.0)
    assert why.reason is Reason.HOST_TROUBLE
    assert "n1 cannot start it (it has obeyed another controller" in why.text
    here.handle(said)
    assert here.outcome.facts == (), "once"
    here.do("report n1")
    assert here.machine.cannot_start(N1) == "", "this one was heard"
    here.handle(said)
    here.do("host n1 V100:2")
    assert here.machine.cannot_start(N1) == "", "it has joined again, and has said nothing of that yet"


@pytest.mark.parametrize("policy", ["fifo", "gandiva-fair", "las"])
def test_nobody_is_sent_to_a_server_that_obeys_a_later_controller(policy: str) -> None:
    """It runs others' jobs, perhaps, under the same numbers."""
    here = world("user ann\nhost n1 V100:2\nhost n2 V100:1", policy)
    here.handle(HostReported(now_s=1.0, host=N1, reports=(), obeys=9))
    here.play("submit ann some gpus=1 count=3\n@40\ntick")
    rows = [here.machine.job(JobId(job)) for job in (1, 2, 3)]
    assert {row.hosts for row in rows} <= {("n2",), ()}
    here.do("report n1")
    here.play("@80\ntick")
    assert any(here.machine.job(row.id).hosts == ("n1",) for row in rows), "it obeys this one by now"


def test_who_finds_no_server_but_one_that_obeys_a_later_controller_is_told() -> None:
    here = world("user ann\nhost n1 V100:2")
    here.handle(HostReported(now_s=1.0, host=N1, reports=(), obeys=9))
    here.do("submit ann some gpus=1")
    assert "n1" in here.machine.why(JobId(1), 1.0).text
    assert "has obeyed another controller" in here.machine.why(JobId(1), 1.0).text
