"""A copy of a job on its host: it begins with what was fetched, stops where its portion ends, and leaves its GPUs to others."""

from fakejob import Ways
from hostsim import HostSim

from hs_core.events.host import JobHeld, JobWentOn
from hs_core.names import HostName, JobId
from hs_core.reports import Phase, Tier
from hs_core.wanted import Lend, Peer, Source, SourcePart, Turn

ONE, TWO = JobId(1), JobId(2)
AWAY = Peer(host=HostName("v9"), address="v9:7444")
HERE = Peer(host=HostName("v1"), address="v1:7444")
LAST = 300  # steps of a tenth of a second


def average(*steps: int, generation: int = 5, epoch: int = 1) -> Source:
    parts = tuple(
        SourcePart(peer=AWAY if at else HERE, epoch=epoch, generation=generation - 1, copy=at, steps=each)
        for at, each in enumerate(steps)
    )
    return Source(peer=parts[0].peer, epoch=epoch, generation=generation, step=sum(steps), parts=parts)


def copy(sim: HostSim, **more: object) -> None:
    """Job 1, told to train as copy 1 of 2."""
    sim.job(1, epoch=2, ways=Ways(can_checkpoint=True), source=average(0, 0), **more)
    sim.change(ONE, copy=1, copies=2, last_step=LAST)


def test_a_copy_that_has_done_its_portion_waits_and_its_gpus_are_free() -> None:
    sim = HostSim(1)
    copy(sim)
    sim.turn = Turn(gangs=(ONE,), local=False)
    sim.send()
    sim.run(60.0)
    report = sim.machine.report(ONE)
    assert (report.phase, report.step, report.in_turn) == (Phase.HELD, LAST, False)
    assert report.note == "has done its portion, and waits for the other copies"
    charged = report.gpu_s
    sim.quanta(5)
    assert sim.machine.report(ONE).gpu_s == charged, "nobody pays for waiting"
    assert [what for _, what in sim.log if what.startswith("resume")] == ["resume 1"], (
        "nor is it let go again"
    )


def test_others_run_where_a_copy_waits() -> None:
    sim = HostSim(1)
    copy(sim)
    sim.job(2)
    sim.send()
    sim.quanta(6)
    before = sim.trained(TWO)
    assert sim.machine.report(ONE).step == LAST
    sim.quanta(5)
    assert sim.trained(TWO) - before >= 4.9 * sim.quantum_s


def test_a_copy_that_waits_leaves_when_it_is_told_to() -> None:
    sim = HostSim(1)
    copy(sim)
    sim.send()
    sim.run(60.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    report = sim.machine.report(ONE)
    assert (report.phase, report.checkpoint_step) == (Phase.CHECKPOINTED, LAST)


def test_a_copy_is_not_started_before_it_has_what_all_begin_with() -> None:
    sim = HostSim(1)
    sim.job(1, epoch=2, ways=Ways(can_checkpoint=True))
    sim.change(ONE, copy=1, copies=2, last_step=LAST)
    sim.send()
    sim.quanta(3)
    assert sim.phases() == {1: "waiting"}
    sim.change(ONE, source=average(0, 0))
    sim.send()
    sim.run(30.0)
    assert "launch 1 on 0 from generation 5" in [what for _, what in sim.log]


def test_the_next_epochs_copy_begins_with_the_average_though_the_last_ones_lies_here() -> None:
    sim = HostSim(1)
    copy(sim)
    sim.send()
    sim.run(20.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    left = sim.machine.report(ONE)
    sim.lends = (Lend(job=ONE, epoch=2, generation=left.checkpoint_generation, grant="x", copy=1),)
    sim.change(
        ONE, epoch=3, leave=False, last_step=3000, source=average(900, left.step, generation=9, epoch=2)
    )
    sim.send()
    assert sim.phases() == {1: "waiting"}
    sim.run(10.0)
    words = [what for _, what in sim.log if what.startswith(("fetch", "launch", "forget"))]
    assert words == [
        "fetch 1",
        "launch 1 on 0 from generation 5",
        "fetch 1",
        "launch 1 on 0 from generation 9",
    ]
    sim.lends = ()
    sim.send()
    assert sim.log[-1][1] == "forget 1" or "forget 1" in [what for _, what in sim.log]


def test_an_agent_that_restarts_leaves_a_copy_that_waits_alone() -> None:
    sim = HostSim(1)
    copy(sim)
    sim.send()
    sim.run(60.0)
    sim.kill_agent()
    sim.run(5.0)
    sim.start_agent()
    sim.run(60.0)
    report = sim.machine.report(ONE)
    assert (report.phase, report.step) == (Phase.HELD, LAST)


def test_a_copy_that_was_let_go_once_more_after_its_portion_takes_no_gpu_from_those_that_run_there() -> None:
    """As its processes answer an order that an agent gave without knowing: they went on, and stand."""
    sim = HostSim(1)
    copy(sim)
    sim.job(2)
    sim.send()
    sim.quanta(6)
    assert sim.phases() == {1: "held", 2: "running"}
    told = {"now_s": sim.now_s, "job": ONE, "epoch": 2, "step": LAST}
    heard, before = sim.processes[ONE, 2].heard, sim.trained(TWO)
    sim.tell(JobWentOn(**told))
    sim.tell(JobHeld(**told, tier=Tier.HOLD, order=heard))
    sim.run(10.0)
    assert sim.phases() == {1: "held", 2: "running"}
    assert sim.trained(TWO) - before == 10.0
    assert sim.ordered("resume 1") == ["resume 1"]


def test_a_job_that_is_one_again_before_its_copies_did_anything_fetches_what_they_began_with() -> None:
    """What the copy here has fetched lies in a folder of its own, and goes with it."""
    sim = HostSim(1)
    copy(sim)
    sim.send()
    sim.run(10.0)
    alone = Source(peer=AWAY, epoch=1, generation=4, step=0)
    sim.change(ONE, epoch=3, copy=-1, copies=1, last_step=0, source=alone)
    sim.send()
    sim.run(20.0)
    words = [what for _, what in sim.log if what.startswith(("fetch", "launch"))]
    assert words[2:] == ["fetch 1", "launch 1 on 0 from generation 4"]


def test_a_job_that_comes_back_after_its_copies_did_nothing_goes_on_from_what_it_wrote_here() -> None:
    """That is lent all the while; what its copy here had fetched under a newer number is gone."""
    sim = HostSim(1)
    sim.job(1, epoch=1, ways=Ways(can_checkpoint=True))
    sim.send()
    sim.run(30.0)
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    left = sim.machine.report(ONE)
    wrote = left.checkpoint_generation
    sim.lends = (Lend(job=ONE, epoch=1, generation=wrote, grant="x"),)
    begin = average(left.step, generation=wrote + 1)
    sim.change(ONE, epoch=2, leave=False, copy=1, copies=2, last_step=3000, source=begin)
    sim.send()
    sim.run(10.0)
    sim.generations[ONE] = wrote  # its copy's folder is removed with it
    sim.change(ONE, epoch=3, copy=-1, copies=1, last_step=0, source=None)
    sim.send()
    sim.run(20.0)
    launches = [what for _, what in sim.log if what.startswith("launch")]
    assert launches[-1] == f"launch 1 on 0 from generation {wrote}"


def test_a_job_that_begins_afresh_where_a_copy_of_it_was_takes_nothing_of_that_copys() -> None:
    """Of a copy that was given up, cut off, nobody goes on alone: its files are in a folder of its own, and go with it."""
    sim = HostSim(1)
    copy(sim)
    sim.send()
    sim.run(10.0)
    sim.lends = (Lend(job=ONE, epoch=2, generation=5, grant="x", copy=1),)
    sim.change(ONE, epoch=3, source=average(0, 0, generation=6, epoch=2))
    sim.send()
    sim.run(10.0)
    assert sim.machine.report(ONE).checkpoint_generation == 6
    sim.lends = ()
    sim.change(ONE, epoch=5, copy=-1, copies=1, last_step=0, source=None)
    sim.send()
    sim.run(20.0)
    assert [what for _, what in sim.log if what.startswith("launch")][-1] == "launch 1 on 0"


def test_that_copies_of_a_job_have_no_average_is_known_also_while_it_has_no_process() -> None:
    sim = HostSim(1)
    sim.job(1, ways=Ways(can_checkpoint=True, single=True))
    sim.send()
    sim.run(30.0)
    assert sim.machine.report(ONE).single
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    report = sim.machine.report(ONE)
    assert (report.phase, report.single) == (Phase.CHECKPOINTED, True)
