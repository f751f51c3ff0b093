"""What is left here of a job's checkpoints is kept as long as it is lent, or may be gone on from."""

import pytest
from fakejob import Ways
from hostsim import HostSim, told_to_leave

from hs_core.forms import Shape
from hs_core.names import JobId
from hs_core.reports import Phase

ONE = JobId(1)

ALONE, ONE_OF_TWO = Shape(gpus=1, per_gpu=8), Shape(gpus=2, per_gpu=8, nodes=2)


def test_what_was_fetched_as_one_part_of_two_is_fetched_anew_for_all_of_the_job() -> None:
    """Each part has files of its own."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(fetch_s=1.0))
    sim.change(ONE, epoch=2, source=sim.source(700, 4), shape=ONE_OF_TWO, node_rank=1)
    sim.send()
    sim.run(5.0)
    assert sim.machine.report(ONE).checkpoint_generation == 4
    sim.change(ONE, epoch=3, shape=ALONE, node_rank=0)
    sim.send()
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "fetch 1", "launch 1 on 0 from generation 4"]


def wrote_here_alone(fetch_s: float) -> HostSim:
    """What job 1 wrote is lent."""
    sim = HostSim(1)
    sim.job(1, rendezvous="a:1", ways=Ways(can_checkpoint=True, fetch_s=fetch_s))
    sim.change(ONE, shape=ALONE)
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    assert sim.machine.report(ONE).phase is Phase.CHECKPOINTED
    sim.lend(ONE, epoch=1)
    return sim


def assert_goes_on_from_that(sim: HostSim) -> None:
    sim.lends = ()
    sim.change(ONE, epoch=3, source=None, shape=ALONE, node_rank=0)
    sim.send()
    sim.run(5.0)
    assert sim.ordered("launch")[-1] == "launch 1 on 0 from generation 0"
    assert sim.machine.report(ONE).epoch == 3


@pytest.mark.parametrize("fetch_s", [1e6, 1.0])
def test_what_a_job_wrote_here_alone_is_not_forgotten_over_a_part_of_it_that_did_not_go_on(
    fetch_s: float,
) -> None:
    """It has no process yet, or one that is ended first."""
    sim = wrote_here_alone(fetch_s)
    here = sim.machine.report(ONE)
    source = sim.source(here.checkpoint_step, here.checkpoint_generation)
    sim.change(ONE, leave=False, epoch=2, source=source, shape=ONE_OF_TWO, node_rank=1)
    sim.send()
    sim.run(2.0)
    assert_goes_on_from_that(sim)


def test_what_is_lent_is_still_known_after_a_part_of_the_job_was_to_be_here_and_was_not() -> None:
    sim = wrote_here_alone(fetch_s=1e6)
    sim.change(ONE, leave=False, epoch=2, source=sim.source(700, 0), shape=ONE_OF_TWO, node_rank=1)
    sim.send()
    elsewhere = sim.wanted.pop(ONE)
    sim.send()
    sim.wanted[ONE] = elsewhere
    assert_goes_on_from_that(sim)


def test_what_is_lent_is_kept_until_it_is_no_longer_listed() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True))
    sim.run(5.0)
    sim.lend(ONE)
    del sim.wanted[ONE]
    sim.send()
    sim.send()
    assert sim.phases() == {}
    sim.kill_agent()
    sim.start_agent()
    assert sim.ordered("forget") == []
    sim.lends = ()
    sim.send()
    sim.send()
    assert sim.ordered("forget") == ["forget 1"]


def test_the_incarnation_before_is_kept_where_it_is_lent_while_the_next_one_lives_here() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True))
    sim.run(5.0)
    sim.lend(ONE, epoch=1)
    sim.change(ONE, leave=False, epoch=2)
    sim.send()
    sim.run(5.0)
    assert sim.ordered("forget") == []
    sim.lends = ()
    sim.send()
    assert sim.ordered("forget") == ["forget 1"]
    assert sim.running() == {ONE}


def test_a_host_says_that_it_knows_when_nothing_is_left_of_what_is_not_wanted() -> None:
    sim = HostSim(1)
    job = sim.job(1, ways=Ways(die_s=5.0))
    sim.send()
    sim.run(10.0)
    assert sim.machine.heard == (1, 1)
    del sim.wanted[job]
    sim.send()
    assert sim.machine.heard == (1, 1), "it is being ended"
    sim.run(4.0)
    assert sim.machine.heard == (1, 1)
    sim.run(2.0)
    assert sim.machine.heard == (1, 2)
