"""What a job that moves brings of its turns to its new server: its place among those of the old one (mechanism/stride.py)."""

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.cluster.plain import Wishes, plain_policy
from hs_core.names import HostName, JobId
from hs_core.reports import Phase

ONE, TWO = JobId(1), JobId(2)
N2 = HostName("n2")
LEAVES = Ways(can_checkpoint=True)


def left_after(quanta: float) -> HostSim:
    """Two users' jobs on one GPU; the first is told to leave then."""
    sim = HostSim(1)
    for number, user in ((1, "A"), (2, "B")):
        sim.job(number, user=user, ways=LEAVES)
    sim.send()
    sim.quanta(quanta)
    assert sim.machine.report(ONE).carry is None
    sim.change(ONE, leave=True)
    sim.send()
    sim.run(5.0)
    assert sim.machine.report(ONE).phase is Phase.CHECKPOINTED
    return sim


def test_who_leaves_after_its_turn_owes_and_who_leaves_before_it_is_owed() -> None:
    carried = {
        (carry := left_after(quanta).machine.report(ONE).carry) is not None and carry > 0
        for quanta in (2.5, 3.5)
    }
    assert carried == {True, False}
    assert left_after(4.5).machine.report(TWO).carry is None


def test_who_is_told_to_leave_and_has_no_process_says_what_it_brings() -> None:
    sim = left_after(3.5)
    before = sim.machine.report(ONE).carry
    assert before is not None
    sim.change(ONE, leave=False, hold=True)
    sim.send()
    sim.quanta(3)
    assert sim.machine.report(ONE).carry == before
    sim.change(ONE, leave=True)
    sim.send()
    now = sim.machine.report(ONE).carry
    assert now is not None
    assert now < before, "the other has had turns meanwhile"


@pytest.mark.parametrize(("carry", "first"), [(-1.0, True), (1.0, False)])
def test_who_is_owed_a_turn_has_one_soon_where_it_comes(carry: float, first: bool) -> None:
    """Beside two others on one GPU, both of which have had turns."""
    sim = HostSim(1)
    for number in (2, 3):
        sim.job(number, user=f"U{number}", ways=LEAVES)
    sim.send()
    sim.quanta(6.5)
    sim.job(1, epoch=2, user="A", ways=LEAVES)
    sim.change(ONE, carry=carry)
    sim.send()
    sim.quanta(1.6)
    assert (sim.machine.report(ONE).run_s > 0) == first
    sim.quanta(5)
    assert sim.machine.report(ONE).run_s > 0


def moved(report: str) -> World:
    wishes: Wishes = {}
    at = World(plain_policy(wishes=wishes), Settings(settle_s=0.0), wishes=wishes)
    for line in (
        "host n1 V100:1",
        "host n2 V100:1",
        "user alice",
        "wish 1 n1",
        "submit alice a",
        "report n1 1:0=running step=5 gpu_s=5 can_checkpoint=yes",
        "wish 1 n2",
        "user alice 90",
        f"report n1 1:0=checkpointed step=7 gpu_s=7 checkpoint_step=7 checkpoint_generation=0 can_checkpoint=yes{report}",
    ):
        at.do(line)
    return at


@pytest.mark.parametrize(
    ("said", "brings"),
    [(" carry=-0.5", -0.5), (" carry=0", 0.0), ("", None), (" carry=7", None), (" carry=nan", None)],
)
def test_its_new_server_is_told_what_it_brings_and_no_nonsense(said: str, brings: float | None) -> None:
    (job,) = moved(said).wanted[N2].jobs
    assert (job.job, job.epoch, job.carry) == (ONE, 1, brings)


def test_who_has_left_and_is_given_a_third_home_before_it_has_started_brings_it_there() -> None:
    at = moved(" carry=-0.5")
    for line in ("host n3 V100:1", "wish 1 n3", "user alice 80"):
        at.do(line)
    (job,) = at.wanted[HostName("n3")].jobs
    assert (job.epoch, job.carry) == (2, -0.5)


def test_who_is_started_again_where_it_was_says_no_more_what_it_would_bring() -> None:
    sim = left_after(3.5)
    sim.change(ONE, leave=False)
    sim.send()
    while sim.machine.report(ONE).phase is Phase.CHECKPOINTED:
        sim.run(0.5)
    assert sim.machine.report(ONE).phase is Phase.STARTING
    assert sim.machine.report(ONE).carry is None


def test_who_begins_anew_after_a_failure_brings_nothing() -> None:
    at = moved(" carry=-0.5")
    at.do("report n2 1:1=exited why=lost_with_its_host")
    row = at.machine.find(ONE)
    assert row is not None
    assert (row.epoch, row.carry) == (2, None)
