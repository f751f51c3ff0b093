"""A backup is put back: what hosts know of jobs is newer than what the controller knows."""

from dataclasses import replace

import pytest

from hs_core.cluster import Settings, State
from hs_core.cluster.harness import World, plain_policy
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import Policy

FIRST = 1_000
RUNNING = "running step=10 gpu_s=10 checkpoint_step=8 checkpoint_generation=3 can_checkpoint=yes"
N1, N2 = HostName("n1"), HostName("n2")


def backup(*lines: str, policy: Policy | None = None) -> World:
    made = World(policy or plain_policy(), Settings(quantum_s=10.0, settle_s=0.0, lease_s=10.0))
    for line in ("host n1 V100:4", "host n2 V100:4", "user ann", *lines):
        made.do(line)
    return made


def put_back(world: World) -> World:
    state: State = world.machine.state
    world.start(replace(state, first_epoch=FIRST, restored=True))
    world.now_s += 1.0
    return world


def epochs(world: World, host: HostName) -> dict[JobId, tuple[int, bool]]:
    """What the host is told: epochs, and whether to hold."""
    return {job.job: (job.epoch, job.hold) for job in world.wanted[host].jobs}


def test_who_is_where_it_was_goes_on() -> None:
    world = put_back(backup("submit ann one", f"report n1 1:0={RUNNING}"))
    world.do(f"host n1 V100:4 1:0={RUNNING}")
    assert epochs(world, N1) == {1: (0, False)}
    row = world.machine.find(JobId(1))
    assert row is not None
    assert row.report is not None
    assert row.report.step == 10


def test_who_has_moved_since_begins_once_more_and_not_before_its_host_has_ended_it() -> None:
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    world.do("host n1 V100:4")
    assert epochs(world, N1) == {}, "the other host may have it"
    world.do(f"host n2 V100:4 1:1={RUNNING}")
    assert epochs(world, N1) == {1: (FIRST, True)}
    assert epochs(world, N2) == {}
    world.do("report n2")
    assert epochs(world, N1) == {1: (FIRST, False)}


def test_who_began_anew_where_it_was_is_told_of_a_newer_incarnation() -> None:
    """Of an older one its host would take no notice."""
    world = put_back(backup("submit ann one gpus=4"))
    world.do(f"host n1 V100:4 1:2={RUNNING}")
    world.do("host n2 V100:4")
    [(job, (epoch, _))] = [*epochs(world, N1).items(), *epochs(world, N2).items()]
    assert (job, epoch) == (1, FIRST)


@pytest.mark.parametrize("where", ["n1", "n2"])
def test_who_had_no_home_then_does_not_begin_under_an_epoch_that_it_may_have_had(where: str) -> None:
    world = put_back(backup("submit ann all gpus=4 count=3", policy=find("fifo")))
    waits = world.machine.find(JobId(3))
    assert waits is not None
    assert waits.hosts == ()
    world.do(f"host n1 V100:4 {'3:0=' + RUNNING if where == 'n1' else ''}")
    world.do(f"host n2 V100:4 {'3:0=' + RUNNING if where == 'n2' else ''}")
    late = world.machine.find(JobId(3))
    assert late is not None
    assert (late.epoch, late.unconfirmed) == (FIRST, (where,))


def test_a_host_that_stays_away_is_not_waited_for_for_ever() -> None:
    world = put_back(backup("submit ann one", f"report n1 1:0={RUNNING}"))
    world.do("host n1 V100:4")
    assert epochs(world, N1) == {}
    assert world.wake_s == world.now_s + 10.0
    world.do(f"@{world.now_s + 10.0}")
    world.do("tick")
    assert not world.machine.restored
    assert epochs(world, N1) == {1: (FIRST, False)}


def test_a_controller_that_dies_before_all_hosts_are_there_waits_for_them_anew() -> None:
    world = put_back(backup("submit ann one", "submit ann two"))
    world.do("host n1 V100:4")
    world.start(world.machine.state)
    world.now_s += 5.0
    world.do("host n1 V100:4")
    assert epochs(world, N1) == {}
    world.do("host n2 V100:4")
    assert not world.machine.restored
    assert not world.machine.state.restored


def test_incarnations_are_counted_where_the_epoch_leaps() -> None:
    """HS_RESTART_COUNT is this number."""
    world = put_back(backup("submit ann one gpus=4", f"report n1 1:0={RUNNING}"))
    world.do("host n1 V100:4")
    world.do(f"host n2 V100:4 1:1={RUNNING}")
    world.do("report n2")
    [wanted] = world.wanted[N1].jobs
    assert (wanted.epoch, wanted.restarts) == (FIRST, 1)
    world.do(f"report n1 1:{FIRST}={RUNNING}")
    world.do("leave n1")
    world.do("host n1 V100:4")  # which no longer knows of it
    row = world.machine.find(JobId(1))
    assert row is not None
    assert (row.epoch, row.restarts) == (FIRST + 1, 2)
