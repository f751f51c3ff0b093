"""A process finds its newest checkpoint torn: it goes on from an older one, and the work since is lost."""

import pytest
from fakejob import Ways
from hostsim import HostSim, told_to_leave

from hs_core.events.host import JobProgressed, JobRestored
from hs_core.names import JobId
from hs_core.reports import Phase

ONE = JobId(1)


def test_a_process_that_finds_its_checkpoint_torn_is_told_of_and_what_it_writes_next_counts() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True, rotten=True))
    sim.run(5.0)
    written = sim.machine.report(ONE)
    assert (written.phase, written.checkpoint_generation, written.fallbacks) == (Phase.CHECKPOINTED, 0, 0)
    sim.change(ONE, leave=False, epoch=2)
    sim.send()
    sim.run(5.0)
    torn = sim.machine.report(ONE)
    assert (torn.phase, torn.checkpoint_generation, torn.checkpoint_step) == (Phase.RUNNING, -1, 0)
    assert torn.fallbacks == 1
    assert torn.note == "generation 0: torn; no valid checkpoint: started afresh"
    told = [fact.text for fact in sim.machine.story if fact.kind == "fell-back"]
    assert told == [f"{torn.note}; it goes on from step 0"]
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    again = sim.machine.report(ONE)
    assert again.phase is Phase.CHECKPOINTED
    assert 0 < again.checkpoint_step < written.checkpoint_step
    assert (again.fallback_why, again.began_step) == (torn.note, 0), "though a later one was written since"


def test_work_that_is_done_again_twice_counts_as_lost_twice_and_no_more() -> None:
    sim = told_to_leave(Ways(can_checkpoint=True, rotten=True))
    for _ in range(2):
        sim.run(5.0)
        written = sim.machine.report(ONE)
        assert written.phase is Phase.CHECKPOINTED
        sim.change(ONE, leave=False)
        sim.send()
        sim.run(5.0)
        torn = sim.machine.report(ONE)
        assert (torn.phase, torn.checkpoint_step) == (Phase.RUNNING, 0)
        assert written.gpu_s - 1e-9 <= torn.lost_gpu_s < torn.gpu_s
        sim.run(20.0)
        sim.change(ONE, leave=True)
        sim.send()


def test_work_since_an_older_checkpoint_is_lost_as_a_part_of_what_this_epoch_has_done() -> None:
    """And not of all steps since the job began: these were of earlier epochs, whose GPU-seconds the host does not have."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.tell(JobRestored(now_s=sim.now_s, job=ONE, epoch=1, step=1000, generation=3))
    sim.run(30.0)
    progressed = JobProgressed(
        now_s=sim.now_s, job=ONE, epoch=1, step=1100, steps_per_s=4.0, device_memory_bytes=0
    )
    sim.tell(progressed)
    sim.tell(JobRestored(now_s=sim.now_s, job=ONE, epoch=1, step=1050, generation=2, note="3: torn"))
    report = sim.machine.report(ONE)
    assert report.gpu_s > 20.0
    assert report.lost_gpu_s == pytest.approx(report.gpu_s / 2)
