"""A backup is put back: jobs that were submitted since it was made go on, where a server shows that it was told of them."""

from dataclasses import replace

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import RESTORED, World, plain_policy
from hs_core.cluster.seals import is_genuine, seal
from hs_core.events.cluster import HostJoined
from hs_core.forms import Shape, Spread
from hs_core.model import Job, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.wanted import Peer, Source, WantedJob

RUNNING = "running step=40 gpu_s=30 run_s=30 checkpoint_step=35 checkpoint_generation=2 can_checkpoint=yes"
N1, N2 = HostName("n1"), HostName("n2")
ONE = JobId(1)


SEALED = Settings(quantum_s=10.0, settle_s=0.0, lease_s=10.0, grant_key="secret")


def since(*lines: str) -> World:
    """These happen after the backup was made; then it is put back."""
    world = World(plain_policy(), SEALED)
    for line in ("host n1 V100:4", "host n2 V100:4", "user ann", "backup", *lines, "restore"):
        world.do(line)
    return world


def told(world: World, host: HostName = N1, job: JobId = ONE) -> WantedJob:
    return next(one for one in world.remembered[host].jobs if one.job == job)


def joins(world: World, line: str, *said: WantedJob) -> list[str]:
    """As which facts the server is heard that shows this."""
    event = world.event("host", line.split()[1:])
    assert isinstance(event, HostJoined)
    return [fact.kind for fact in world.handle(replace(event, told=said)).facts]


def row(world: World, job: JobId = ONE) -> Job:
    return world.machine.job(job)


def test_it_goes_on_as_the_incarnation_that_it_is_under_its_own_number() -> None:
    world = since("@5", "submit ann one gpus=2 max_duration_s=100")
    assert joins(world, f"host n1 V100:4 1:0={RUNNING}", told(world)) == [
        "host-joined",
        "taken-up",
        "running",
    ]
    assert world.outcome.touched.meta, "that it was taken up is kept"
    assert (row(world).epoch, row(world).hosts, row(world).state) == (0, (N1,), JobState.RUNNING)
    assert (row(world).arrival_s, row(world).gpu_s, row(world).step) == (5.0, 30.0, 40)
    assert [(one.job, one.epoch, one.hold, one.cancelled) for one in world.wanted[N1].jobs] == [
        (1, 0, False, False)
    ]
    world.do("submit ann two")
    assert row(world, JobId(2)).spec.name == "two"


def test_of_its_time_limit_it_keeps_what_was_left() -> None:
    world = since("submit ann one max_duration_s=100")
    joins(world, f"host n1 V100:4 1:0={RUNNING}", replace(told(world), time_limit_s=40.0))
    assert world.wanted[N1].jobs[0].time_limit_s == 40.0


@pytest.mark.parametrize(
    "forged",
    [
        {"user": UserName("bob")},
        {"run_as": "root"},
        {"job": JobId(2)},
        {"arrival_s": 1.0},
        {"seal": ""},
        {"seal": "0" * 32},
    ],
)
def test_what_no_controller_said_so_is_not_taken_up(forged: dict[str, object]) -> None:
    world = since("submit ann one", "submit ann two")
    said = replace(told(world), **forged)  # type: ignore[arg-type]
    told_of = joins(world, f"host n1 V100:4 {said.job}:0={RUNNING}", said)
    assert told_of == ["host-joined", "not-taken-up"]
    assert list(world.machine.jobs(ended=True)) == []
    assert world.wanted[N1].jobs == ()


def test_nor_with_another_command() -> None:
    world = since("submit ann one")
    one = told(world)
    said = replace(one, spec=replace(one.spec, command=("sh", "-c", "id")))
    assert joins(world, f"host n1 V100:4 1:0={RUNNING}", said) == ["host-joined", "not-taken-up"]


def test_a_seal_does_not_go_by_the_order_of_the_environment() -> None:
    world = since("submit ann one")
    spec = replace(told(world).spec, env={"A": "1", "B": "2"})
    other = replace(spec, env={"B": "2", "A": "1"})
    sealed = seal(b"k", ONE, user=UserName("ann"), run_as="ann", arrival_s=0.0, spec=spec)
    said = replace(told(world), spec=other, seal=sealed)
    assert is_genuine(b"k", said)
    assert not is_genuine(b"K", said)


@pytest.mark.parametrize(
    "line",
    [
        "host n1 V100:4",  # it has no such job
        f"host n1 V100:4 1:1={RUNNING}",  # another incarnation than it was told of
        f"host n1 V100:4 1:{RESTORED}={RUNNING}",
    ],
)
def test_a_job_is_taken_up_where_it_is_and_nowhere_else(line: str) -> None:
    world = since("submit ann one")
    said = told(world)
    assert "taken-up" not in joins(
        world, line, replace(said, epoch=RESTORED) if str(RESTORED) in line else said
    )


def test_one_that_was_being_ended_is_ended() -> None:
    world = since("submit ann one", "cancel ann 1")
    assert told(world).cancelled
    assert joins(world, f"host n1 V100:4 1:0={RUNNING}", told(world)) == ["host-joined"]


def test_what_the_backup_knew_by_then_is_nobody_elses_to_bring_back() -> None:
    """Jobs of the numbers before it are in it, or had ended."""
    settings = Settings(quantum_s=10.0, settle_s=0.0, lease_s=10.0)
    world = World(plain_policy(), settings)
    for line in ("host n1 V100:4", "user ann", "submit ann one"):
        world.do(line)
    said = told(world)
    for line in ("report n1 1:0=exited code=0", "backup", "restore"):
        world.do(line)
    assert joins(world, f"host n1 V100:4 1:0={RUNNING}", said) == ["host-joined"]
    assert row(world).state is JobState.SUCCEEDED


def test_it_is_taken_up_once_also_over_further_starts() -> None:
    """Who comes late with what it had of it before says nothing new, also when nobody remembers the job."""
    world = since("submit ann one")
    said = told(world)
    joins(world, f"host n1 V100:4 1:0={RUNNING}", said)
    world.do("report n1 1:0=exited code=0")
    state = world.machine.state
    assert state.taken_up == {ONE}
    world.start(replace(state, jobs={}))
    assert "taken-up" not in joins(world, f"host n2 V100:4 1:0={RUNNING}", said)


def test_with_who_waits_for_it_to_be_ended_it_begins_once_more_from_what_it_wrote() -> None:
    """Told alone by the server that it was on its way to, nobody knows whether it has begun there."""
    world = since("submit ann one")
    peer = Peer(host=N2, address="n2:7444")
    source = Source(peer=peer, epoch=0, generation=2, step=35)
    said = replace(told(world), source=source)
    assert "taken-up" in joins(world, "host n1 V100:4 1:0=waiting", said)
    assert (row(world).epoch, row(world).hosts, row(world).unconfirmed) == (RESTORED, (), (N1,))


@pytest.mark.parametrize("mark", [{"hold": True}, {"copy": 0, "copies": 2}])
def test_copies_and_who_had_not_begun_begin_once_more(mark: dict[str, int]) -> None:
    world = since("submit ann one")
    assert "taken-up" in joins(world, f"host n1 V100:4 1:0={RUNNING}", replace(told(world), **mark))  # type: ignore[arg-type]
    world.do("host n2 V100:4")
    assert row(world).epoch == RESTORED
    assert row(world).stored is not None
    assert row(world).stored.step == 35  # type: ignore[union-attr]


def test_a_gang_whose_other_server_is_here_without_its_part_begins_once_more() -> None:
    world = since("submit ann big gpus=4 nodes=2")
    world.do("host n2 V100:4")
    parts = told(world)
    assert [peer.host for peer in parts.nodes] == [N1, N2]
    assert "taken-up" in joins(world, f"host n1 V100:4 1:0={RUNNING} nodes=2 rank=0", parts)
    assert row(world).epoch == RESTORED


@pytest.mark.parametrize(
    "odd",
    [
        {"node_rank": 7},
        {"nodes": (Peer(host=N2, address=""),)},
        {"nodes": (Peer(host=N1, address=""), Peer(host=N1, address=""))},
        {"shape": Shape(gpus=64, per_gpu=1)},
        {"shape": Spread(nodes=3)},
        {"restarts": 1 << 60},
        {"needs_bytes": 1 << 60},
        {"accumulation": 0},
        {"time_limit_s": float("nan")},
        {"time_limit_s": float("-inf")},
        {"carry": float("nan")},
    ],
)
def test_what_a_server_makes_up_besides_breaks_nothing(odd: dict[str, object]) -> None:
    world = since("submit ann one max_duration_s=100")
    joins(world, f"host n1 V100:4 1:0={RUNNING}", replace(told(world), **odd))  # type: ignore[arg-type]
    world.do("host n2 V100:4")
    world.do("report n1")
    world.machine.check()
    assert row(world).restarts == 0
    assert row(world).accumulation == 1
    assert not row(world).state.ended


def test_a_user_whom_the_backup_does_not_know_is_there_with_its_account() -> None:
    world = since("user bob 300", "submit bob one")
    user = world.machine.user(UserName("bob"))
    assert user is None
    joins(world, f"host n1 V100:4 1:0={RUNNING}", told(world))
    user = world.machine.user(UserName("bob"))
    assert user is not None
    assert (user.tickets, user.run_as) == (Settings().default_tickets, "")


def test_nothing_is_taken_up_where_no_backup_was_put_back() -> None:
    world = World(plain_policy(), Settings(quantum_s=10.0, settle_s=0.0))
    for line in ("host n1 V100:4", "user ann", "submit ann one"):
        world.do(line)
    said = replace(told(world), job=JobId(2))
    world.do("restart")
    assert joins(world, f"host n1 V100:4 2:0={RUNNING}", said) == ["host-joined", "orders-refused"]
