"""A job comes from another host: its checkpoint is fetched, and it starts from that."""

from itertools import pairwise

import pytest
from fakejob import Ways
from hostsim import HostSim, told_to_leave

from hs_core.events.host import Lack
from hs_core.names import JobId
from hs_core.reports import Phase

ONE, TWO = JobId(1), JobId(2)


def test_a_job_that_comes_with_a_checkpoint_elsewhere_starts_from_it() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 4), ways=Ways(fetch_s=5.0))
    sim.send()
    report = sim.machine.report(ONE)
    assert (report.phase, report.note) == (Phase.WAITING, "waits for checkpoint 4 from v9")
    sim.run(4.0)
    assert sim.ordered("launch") == []
    sim.run(2.0)
    assert sim.ordered("launch") == ["launch 1 on 0 from generation 4"]
    assert sim.machine.report(ONE).checkpoint_step == 700
    assert sim.machine.report(ONE).step == 700


def test_a_fetch_that_fails_is_tried_again_with_patience() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=0.0, fetch_fails=7))
    sim.send()
    sim.run(400.0)
    tried = [when for when, what in sim.log if what == "fetch 1"]
    waits = [round(b - a, 3) for a, b in pairwise(tried)]
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert sim.ordered("launch") == ["launch 1 on 0 from generation 0"]


@pytest.mark.parametrize(("lack", "tries"), [(Lack.GONE, 5), (Lack.DAMAGED, 2)])
def test_a_checkpoint_that_is_gone_or_torn_where_it_lies_is_given_up_with_the_reason(
    lack: Lack, tries: int
) -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=0.0, fetch_fails=99, lack=lack))
    sim.send()
    sim.run(400.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * tries
    report = sim.machine.report(ONE)
    assert report.phase is Phase.EXITED
    assert report.exit is not None
    assert "cannot fetch checkpoint 0 from" in report.exit.why
    assert f"v9 does not answer; tried {tries} times" in report.exit.why


def test_what_lies_here_and_is_newer_is_not_fetched() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True))
    sim.run(5.0)
    here = sim.machine.report(ONE)
    sim.change(ONE, leave=False, epoch=2, source=sim.source(here.checkpoint_step, here.checkpoint_generation))
    sim.send()
    sim.run(5.0)
    assert sim.ordered("fetch") == []
    assert sim.ordered("launch")[-1] == "launch 1 on 0 from generation 0"


def test_another_source_is_fetched_from_at_once() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 1), ways=Ways(fetch_s=1e6))
    sim.send()
    sim.change(ONE, source=sim.source(800, 2))
    sim.send()
    assert sim.ordered("fetch") == ["fetch 1", "fetch 1"]


def test_a_fetch_is_ordered_again_by_an_agent_that_restarts() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700), ways=Ways(fetch_s=3.0))
    sim.send()
    sim.run(1.0)
    sim.kill_agent()
    sim._heap.clear()
    sim.start_agent()
    sim.run(4.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "fetch 1", "launch 1 on 0 from generation 0"]


def test_a_job_that_moved_here_is_started_ahead_of_its_turn() -> None:
    sim = HostSim(1)
    sim.job(1, user="A")
    sim.send()
    sim.run(10.0)
    sim.job(2, user="B", epoch=2, source=sim.source(100))
    sim.send()
    sim.run(10.0)
    assert sim.running() == {ONE}
    assert sim.phases()[TWO] == "held"
    sim.run(40.2)
    assert [round(when, 3) for when, what in sim.log if what == "resume 2"] == [60.1]
