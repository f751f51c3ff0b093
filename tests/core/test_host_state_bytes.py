"""How large a job's checkpoints are, as its host says it."""

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.events.host import CheckpointFetched, CheckpointWeighed
from hs_core.names import JobId

ONE = JobId(1)


def saved_one() -> HostSim:
    """Its first checkpoint is durable, and was not weighed yet."""
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True), checkpoint_interval_s=5.0)
    sim.send()
    while sim.machine.report(ONE).checkpoint_generation < 0:
        sim.run(0.5)
    return sim


def weigh(sim: HostSim, size_bytes: int, epoch: int = 1) -> frozenset[JobId]:
    """Whose reports are others for it."""
    weighed = CheckpointWeighed(now_s=sim.now_s, job=ONE, epoch=epoch, size_bytes=size_bytes)
    return sim.machine.handle(weighed).changed


def test_what_was_weighed_is_said_and_kept_over_a_restart_and_into_the_next_incarnation() -> None:
    sim = saved_one()
    assert sim.machine.report(ONE).checkpoint_bytes == 0
    assert weigh(sim, 700) == {ONE}
    assert weigh(sim, 700) == frozenset(), "nothing new"
    assert weigh(sim, 900, epoch=7) == frozenset(), "of another incarnation"
    assert sim.machine.report(ONE).checkpoint_bytes == 700
    sim.kill_agent()
    sim.start_agent()
    assert sim.machine.report(ONE).checkpoint_bytes == 700
    sim.change(ONE, epoch=2)
    sim.send()
    sim.run(30.0)
    report = sim.machine.report(ONE)
    assert (report.epoch, report.checkpoint_bytes) == (2, 700)


@pytest.mark.parametrize("size_bytes", [55, 0])
def test_one_that_another_server_wrote_is_as_large_as_what_came(size_bytes: int) -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, source=sim.source(700, 4), ways=Ways(fetch_s=1e6))
    sim.send()
    sim.run(5.0)
    sim.generations[ONE] = 4
    came = CheckpointFetched(now_s=sim.now_s, job=ONE, epoch=2, generation=4, step=700, size_bytes=size_bytes)
    sim.tell(came)
    assert sim.machine.report(ONE).checkpoint_bytes == size_bytes
