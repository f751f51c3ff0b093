"""Servers that obey another controller than this one, or were told of jobs that this one does not know."""

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


AHEAD = "host n1 V100:2 7:0=running gpu_s=9"


def test_a_server_with_jobs_of_numbers_that_nobody_was_given_is_told_nothing_and_named() -> None:
    """The state of this controller is older than what others were told: that server would end all that this one does not know."""
    here = world("user ann")
    here.do(AHEAD)
    assert N1 not in here.wanted
    kinds = [(fact.kind, fact.host) for fact in here.outcome.facts]
    assert kinds == [("host-joined", N1), ("orders-refused", N1)]
    assert (
        "it has job 7, of which this one knows nothing, as its state is older"
        in here.machine.cannot_start(N1)
    )
    here.play("submit ann some gpus=1\nreport n1 7:0=running gpu_s=19\n@40\ntick")
    assert N1 not in here.wanted
    assert here.machine.job(JobId(1)).hosts == ()
    assert "of which this one knows nothing" in here.machine.why(JobId(1), 40.0).text


def test_it_is_told_nothing_either_once_such_numbers_were_given_to_others() -> None:
    here = world("user ann\nhost n2 V100:1")
    here.do(AHEAD)
    here.play("submit ann some gpus=1 count=9\nleave n1")
    assert here.machine.find(JobId(7)) is not None
    here.do(AHEAD)
    assert N1 not in here.wanted, "it has another one of that number"
    here.do("leave n1")
    here.do("host n1 V100:2")
    assert N1 in here.wanted, "its jobs have ended"
    assert here.machine.cannot_start(N1) == ""


def test_what_this_controller_believes_to_be_there_stays_there_meanwhile() -> None:
    """It has moved, perhaps, as far as nobody here knows: nothing of it begins elsewhere."""
    here = world("user ann\nhost n1 V100:2\nhost n2 V100:2\nsubmit ann some gpus=2\nreport n1 1:0=running")
    here.do("restart")
    here.do("host n2 V100:2")
    here.do(AHEAD)
    here.play("@40\ntick\n@80\ntick")
    assert here.machine.job(JobId(1)).hosts == (N1,)
    assert here.machine.job(JobId(1)).epoch == 0


def test_one_that_was_removed_from_the_cluster_is_known_anew() -> None:
    here = world("user ann")
    here.play(f"{AHEAD}\nleave n1\nremove n1 force")
    here.do("host n1 V100:2")
    assert N1 in here.wanted


def test_jobs_that_have_ended_there_say_nothing() -> None:
    here = world("user ann")
    here.do("host n1 V100:2 7:0=exited code=0")
    assert N1 in here.wanted
