"""What a job is to go on from is damaged, or gone, where it lies: the one before is kept there beside it."""

from dataclasses import replace

import pytest
from fakejob import Ways
from hostsim import HostSim, told_to_leave

from hs_core.events.host import CheckpointFetched, FetchFailed, Lack
from hs_core.names import JobId
from hs_core.reports import Phase
from hs_core.wanted import NOBODY, Source

ONE = JobId(1)
WHY = {Lack.DAMAGED: "v9: torn", Lack.GONE: "v9: there is no such thing", Lack.UNREACHED: "v9 is silent"}


def coming(**changes: object) -> HostSim:
    """To an idle GPU, from checkpoint 4 of step 700; fetches are answered by hand."""
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 4), ways=Ways(fetch_s=1e6, can_checkpoint=True))
    if changes:
        sim.change(ONE, **changes)
    sim.send()
    return sim


def fails(sim: HostSim, *lacks: Lack) -> None:
    """Each fetch that was ordered fails so; the next one is waited for."""
    for lack in lacks:
        sim.tell(FetchFailed(now_s=sim.now_s, job=ONE, epoch=2, why=WHY[lack], lack=lack))
        sim.run(61.0)


def comes(sim: HostSim, generation: int, step: int) -> None:
    sim.generations[ONE] = generation
    sim.tell(CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=generation, step=step))


def asked_for(sim: HostSim) -> Source:
    source = sim.fetches[-1]
    assert source is not None
    return source


@pytest.mark.parametrize(("lack", "times"), [(Lack.DAMAGED, 2), (Lack.GONE, 5)])
def test_the_one_before_is_fetched_and_the_job_begins_from_that(lack: Lack, times: int) -> None:
    sim = coming()
    fails(sim, *[lack] * (times - 1))
    assert asked_for(sim) == sim.source(700, 4)
    fails(sim, lack)
    assert asked_for(sim) == sim.source(0, 3)
    waits = sim.machine.report(ONE)
    assert (waits.phase, waits.fallbacks) == (Phase.WAITING, 0)
    assert waits.note == "waits for checkpoint 3 from v9"
    comes(sim, 3, 650)
    report = sim.machine.report(ONE)
    assert (report.checkpoint_generation, report.checkpoint_step, report.fallbacks) == (3, 650, 1)
    assert report.fallback_why == f"checkpoint 4 from v9: {WHY[lack]}"
    told = [fact.text for fact in sim.machine.story if fact.kind == "fell-back"]
    assert told == [f"checkpoint 4 from v9: {WHY[lack]}; it goes on from step 650"]
    sim.run(20.0)
    assert sim.ordered("launch") == ["launch 1 on 0 from generation 3"]
    assert sim.machine.report(ONE).fallbacks == 1, "its process found what was fetched"


def test_it_is_still_the_older_one_where_the_agent_restarts_and_where_the_controller_names_it_by_then() -> (
    None
):
    sim = coming()
    fails(sim, Lack.DAMAGED, Lack.DAMAGED)
    sim.kill_agent()
    sim._heap.clear()
    sim.start_agent()
    assert asked_for(sim) == sim.source(0, 3)
    comes(sim, 3, 650)
    sim.change(ONE, source=sim.source(650, 3))
    sim.send()
    sim.run(20.0)
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * 4 + ["launch 1 on 0 from generation 3"]


def test_a_newer_one_that_the_controller_names_meanwhile_goes_before_it() -> None:
    sim = coming()
    fails(sim, Lack.DAMAGED, Lack.DAMAGED)
    sim.change(ONE, source=sim.source(900, 6))
    sim.send()
    assert asked_for(sim) == sim.source(900, 6)
    comes(sim, 6, 900)
    assert sim.machine.report(ONE).fallbacks == 0


def test_where_the_one_before_is_damaged_as_well_it_is_given_up_and_both_are_named() -> None:
    sim = coming()
    fails(sim, *[Lack.DAMAGED] * 4)
    report = sim.machine.report(ONE)
    assert report.exit is not None
    assert report.exit.why == (
        "cannot fetch checkpoint 3 from v9: v9: torn; tried 2 times (checkpoint 4 from v9: v9: torn)"
    )
    assert sim.ordered("fetch", "launch") == ["fetch 1"] * 4


def test_where_it_is_said_twice_that_none_lies_beside_the_damaged_one_it_is_given_up() -> None:
    sim = coming()
    fails(sim, Lack.DAMAGED, Lack.DAMAGED, Lack.GONE)
    assert sim.machine.report(ONE).exit is None
    fails(sim, Lack.GONE)
    report = sim.machine.report(ONE)
    assert report.exit is not None
    assert report.exit.why == (
        "cannot fetch checkpoint 3 from v9: v9: there is no such thing; tried 2 times (checkpoint 4 from v9: v9: torn)"
    )


def test_tries_count_by_what_went_wrong() -> None:
    """Who could not be reached, and has just come back, may not know yet to whom it lends; what is read wrong once may be read right."""
    sim = coming()
    fails(sim, *[Lack.UNREACHED] * 6, Lack.GONE, Lack.DAMAGED, Lack.UNREACHED, Lack.DAMAGED)
    assert asked_for(sim) == sim.source(700, 4)
    fails(sim, Lack.DAMAGED)
    assert asked_for(sim) == sim.source(0, 3)


@pytest.mark.parametrize("which", ["the first", "of several nodes", "in a folder"])
def test_where_none_is_known_to_lie_beside_it_it_is_given_up(which: str) -> None:
    sim = coming()
    changed = {
        "the first": replace(sim.source(700), generation=0),
        "of several nodes": replace(sim.source(700, 4), nodes=2),
        "in a folder": replace(sim.source(700, 4), peer=NOBODY),
    }
    sim.change(ONE, source=changed[which])
    sim.send()
    fails(sim, Lack.DAMAGED, Lack.DAMAGED)
    report = sim.machine.report(ONE)
    assert report.phase is Phase.EXITED
    assert sim.ordered("fetch")[1:] == ["fetch 1"] * 2


def test_what_an_earlier_incarnation_wrote_here_does_not_go_before_it() -> None:
    sim = told_to_leave(Ways(fetch_s=1e6, can_checkpoint=True))
    sim.run(5.0)
    assert sim.machine.report(ONE).checkpoint_generation == 0
    sim.change(ONE, leave=False, epoch=2, source=sim.source(700, 4))
    sim.send()
    fails(sim, Lack.DAMAGED, Lack.DAMAGED)
    assert asked_for(sim) == sim.source(0, 3)
    assert sim.machine.report(ONE).phase is Phase.WAITING


def test_a_newer_one_that_is_found_in_the_jobs_folder_is_none_that_it_falls_back_to() -> None:
    sim = coming()
    sim.change(ONE, source=replace(sim.source(700, 4), look=True))
    sim.send()
    fails(sim, Lack.DAMAGED, Lack.DAMAGED)
    assert asked_for(sim) == replace(sim.source(0, 3), look=True)
    comes(sim, 4, 700)
    assert sim.machine.report(ONE).fallbacks == 0
