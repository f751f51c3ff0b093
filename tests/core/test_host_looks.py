"""A checkpoint that may lie in a job's folder is looked for before the job begins."""

from dataclasses import replace

import pytest
from fakejob import Ways
from hostsim import HostSim, told_to_leave

from hs_core.events.host import CheckpointFetched, NothingFetched
from hs_core.names import HostName, JobId
from hs_core.wanted import NOBODY, Peer, Source

ONE = JobId(1)


@pytest.mark.parametrize("peer", [NOBODY, Peer(host=HostName("v1"), address="10.0.0.1:7444")])
def test_where_its_checkpoint_is_sought_in_a_folder_what_is_known_here_of_the_incarnation_before_says_nothing(
    peer: Peer,
) -> None:
    """Another server has written there since, perhaps, and let go of that."""
    sim = told_to_leave(Ways(can_checkpoint=True, fetch_s=1.0))
    sim.run(5.0)
    here = sim.machine.report(ONE)
    known = sim.source(here.checkpoint_step, here.checkpoint_generation)
    sim.change(ONE, leave=False, epoch=3, source=replace(known, peer=peer, look=peer != NOBODY))
    sim.send()
    assert sim.machine.report(ONE).checkpoint_generation == -1
    sim.run(5.0)
    assert sim.ordered("fetch", "launch")[-2:] == ["fetch 1", "launch 1 on 0 from generation 0"]


def test_one_of_which_no_checkpoint_was_ever_heard_begins_afresh_once_none_was_found() -> None:
    sim = HostSim(1)
    anything = replace(sim.source(0, 0), peer=NOBODY)
    sim.job(1, epoch=2, source=anything, ways=Ways(fetch_s=1e6))
    sim.send()
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"], "it is waited for"
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=-1, step=0))
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "launch 1 on 0"]
    assert "no checkpoint was found" in [fact.text for fact in sim.machine.story]


@pytest.mark.parametrize("found", [3, -1])
def test_one_that_ran_before_and_of_which_nothing_is_remembered_is_looked_for_in_its_folder(
    found: int,
) -> None:
    """What its agent knew may have been lost: of its checkpoint, which is here or nowhere, the controller says nothing then."""
    sim = HostSim(1)
    sim.job(1, epoch=2, ways=Ways(fetch_s=1e6))
    sim.change(ONE, restarts=1)
    sim.send()
    assert sim.machine.report(ONE).note == "waits for any checkpoint in its folder"
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"], "it is waited for"
    sim.kill_agent()
    sim.start_agent()
    sim.send()
    sim.run(1.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * 2, "asked again by the next agent"
    sim.generations[ONE] = found
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=found, step=max(0, 100 * found)))
    sim.run(5.0)
    began = "launch 1 on 0 from generation 3" if found >= 0 else "launch 1 on 0"
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * 2 + [began]


def test_one_of_which_none_was_found_and_that_has_not_begun_fetches_what_turns_up_elsewhere_even_of_step_0() -> (
    None
):
    sim = HostSim(1)
    sim.job(1, epoch=2, source=replace(sim.source(0, 0), peer=NOBODY), ways=Ways(fetch_s=1e6))
    sim.change(ONE, hold=True)
    sim.send()
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=-1, step=0))
    sim.change(ONE, hold=False, source=sim.source(0, 0))
    sim.send()
    sim.run(5.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1", "fetch 1"]
    sim.generations[ONE] = 0
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=0, step=0))
    sim.run(5.0)
    assert sim.ordered("launch") == ["launch 1 on 0 from generation 0"]


def test_those_of_whom_nothing_was_found_are_told_together_and_begin() -> None:
    sim = HostSim(2)
    for number in (1, 2):
        sim.job(number, epoch=2, ways=Ways(fetch_s=1e6))
        sim.change(JobId(number), restarts=1)
    sim.send()
    sim.tell(NothingFetched(now_s=sim.now_s, jobs=((JobId(1), 2), (JobId(2), 1), (JobId(3), 2))))
    sim.run(5.0)
    assert sim.ordered("launch") == ["launch 1 on 0"], "the other is of another incarnation"
    assert sim.machine.report(JobId(2)).note == "waits for any checkpoint in its folder"
    sim.tell(NothingFetched(now_s=sim.now_s, jobs=((JobId(2), 2),)))
    sim.run(5.0)
    assert sim.ordered("launch") == ["launch 1 on 0", "launch 2 on 1"]


def test_one_whose_last_incarnation_is_remembered_here_is_not_looked_for() -> None:
    sim = HostSim(1)
    sim.job(1)
    sim.send()
    sim.run(5.0)
    sim.change(ONE, epoch=2, restarts=1)
    sim.send()
    sim.run(30.0)
    assert sim.ordered("fetch", "launch") == ["launch 1 on 0"] * 2


@pytest.mark.parametrize("came", [False, True])
def test_one_that_is_to_begin_without_what_it_could_not_fetch_is_looked_for_first(came: bool) -> None:
    """An incarnation before that, a copy perhaps, may have left something here; what was fetched is known to be here."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(fetch_s=1.0 if came else 1e6))
    sim.change(ONE, epoch=2, restarts=1, source=sim.source(700, 4))
    sim.send()
    sim.run(1.5)
    sim.change(ONE, epoch=3, restarts=2, source=None)
    sim.send()
    sim.run(30.0)
    looked = sim.fetches[-1] == Source(peer=NOBODY, epoch=3, generation=0, step=0)
    assert looked != came
