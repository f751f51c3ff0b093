"""A server that was to be empty by now ends what is left there: nothing that could be written is lost by it."""

import pytest

from hs_core.cluster import Settings
from hs_core.events.cluster import HostDrained, HostUndrained, JobsPaused, JobsUnpaused
from hs_core.model import Job, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import Phase
from hs_sim.faults import TIMING
from hs_sim.machines.trouble import Fault, FaultPlan, Kind
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, SimJob, Workload

ANN, JOB, SERVER = UserName("ann"), JobId(1), HostName("v100-0001")


def draining(
    *,
    servers: int = 1,
    steps: int = 3000,
    deadline_s: float = 60.0,
    until_s: float = 300.0,
    state_bytes: int = 0,
    faults: tuple[Fault, ...] = (),
) -> World:
    """With one server there is no other to go to."""
    job = SimJob(id=JOB, user=ANN, arrival_s=1.0, steps=steps, job_class="c", state_bytes=state_bytes)
    experiment = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=servers, gpus_per_server=1),)),
        workload=Workload(name="drained", jobs=(job,), tickets={ANN: 100.0}, rates={("c", "V100"): 10.0}),
        quantum_s=10.0,
        sample_s=5.0,
    )
    world = World(experiment, timing=TIMING, watched=True, faults=FaultPlan(faults=faults))
    world.horizon_s = 1000.0
    clock, tell = world.clock, world.controller.tell
    drained = {"by": ANN, "host": SERVER}
    clock.at(
        120.0, lambda: tell(lambda now_s: HostDrained(now_s=now_s, deadline_s=now_s + deadline_s, **drained))
    )
    clock.at(until_s, lambda: tell(lambda now_s: HostUndrained(now_s=now_s, **drained)))
    return world


@pytest.mark.parametrize("paused", [True, False])
def test_at_the_deadline_a_job_writes_a_checkpoint_before_it_is_ended(*, paused: bool) -> None:
    world = draining()
    tell = world.controller.tell
    if paused:
        world.clock.at(100.0, lambda: tell(lambda now_s: JobsPaused(now_s=now_s, by=ANN, jobs=(JOB,))))
        world.clock.at(400.0, lambda: tell(lambda now_s: JobsUnpaused(now_s=now_s, by=ANN, jobs=(JOB,))))
    world.run()
    job = world.controller.machine.job(JOB)
    assert (job.state, job.past_lost_gpu_s) == (JobState.SUCCEEDED, 0.0)
    (lost,) = [fact for fact in world.controller.machine.story(JOB) if fact.kind == "lost"]
    since = 889 if paused else 1689
    assert lost.text == f"it was lost: {SERVER} was to be empty by now; it goes on from step {since}"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=Kind.CONTROLLER_KILLED, at_s=170.0, for_s=150.0),
        Fault(kind=Kind.PARTITION, at_s=170.0, for_s=150.0, host=SERVER),
    ],
    ids=["controller down", "server away"],
)
def test_so_it_does_where_that_could_not_be_said_until_long_after_the_deadline(fault: Fault) -> None:
    world = draining(faults=(fault,), steps=4500, until_s=500.0)
    world.run()
    job = world.controller.machine.job(JOB)
    assert (job.state, job.epoch, job.past_lost_gpu_s) == (JobState.SUCCEEDED, 1, 0.0)


def test_one_that_cannot_write_any_is_ended_at_once_and_begins_afresh() -> None:
    world = draining()
    world.cannot_checkpoint = frozenset({JOB})
    world.run()
    job = world.controller.machine.job(JOB)
    assert (job.state, job.epoch) == (JobState.SUCCEEDED, 1)
    assert job.past_lost_gpu_s == pytest.approx(179, abs=2)


def test_one_that_writes_its_checkpoint_to_move_when_the_deadline_comes_moves() -> None:
    """Writing takes half a minute."""
    world = draining(servers=2, deadline_s=5.0, state_bytes=30 << 30)
    world.run()
    job = world.controller.machine.job(JOB)
    assert (job.state, job.migrations, job.past_lost_gpu_s) == (JobState.SUCCEEDED, 1, 0.0)
    assert [fact.kind for fact in world.controller.machine.story(JOB) if fact.kind in ("left", "lost")] == [
        "left"
    ]


def test_it_has_as_long_for_that_where_the_controller_comes_back_long_after_the_deadline() -> None:
    away = Fault(kind=Kind.CONTROLLER_KILLED, at_s=125.0, for_s=150.0)
    world = draining(deadline_s=10.0, state_bytes=10 << 30, faults=(away,))
    world.run()
    job = world.controller.machine.job(JOB)
    assert (job.state, job.epoch, job.past_lost_gpu_s) == (JobState.SUCCEEDED, 1, 0.0)


def is_frozen(row: Job) -> bool:
    return [report.phase for report in row.reports.values()] == [Phase.FROZEN] * row.nodes


@pytest.mark.parametrize("others", [4, 8])
def test_a_gang_over_servers_that_is_frozen_amid_a_step_leaves_a_drained_one_in_the_next_quantum(
    others: int,
) -> None:
    """All jobs take longer to stop than they are given for it, so each turn ends with the freezer."""
    gangs = [
        SimJob(id=n, user=ANN, arrival_s=1.0, steps=10**6, job_class="c", gpus=2, nodes=2) for n in (1, 2)
    ]
    ones = [
        SimJob(id=n + 3, user=ANN, arrival_s=5.0, steps=10**6, job_class="c", gpus=2) for n in range(others)
    ]
    experiment = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=4, gpus_per_server=2),)),
        workload=Workload(
            name="frozen", jobs=(*gangs, *ones), tickets={ANN: 100.0}, rates={("c", "V100"): 10.0}
        ),
        costs=Costs(suspend_s=35.0),
        until_s=2000.0,
    )
    world = World(experiment, settings=Settings(move_deadline_s=600.0))
    left_s: list[float] = []

    def drain_one_that_is_frozen() -> None:
        rows = map(world.controller.machine.job, map(JobId, (1, 2)))
        row = next(filter(is_frozen, rows), None)
        if row is None:
            world.clock.after(1.0, drain_one_that_is_frozen)
            return
        host = row.hosts[0]
        world.controller.tell(lambda now_s: HostDrained(now_s=now_s, by=ANN, host=host))
        wait_until_it_has_left(row.id, host, world.clock.now_s)

    def wait_until_it_has_left(job: JobId, host: HostName, since_s: float) -> None:
        if host in world.controller.machine.job(job).hosts:
            world.clock.after(1.0, wait_until_it_has_left, job, host, since_s)
        else:
            left_s.append(world.clock.now_s - since_s)

    world.clock.at(600.0, drain_one_that_is_frozen)
    world.run()
    assert left_s
    assert left_s[0] <= 60.0 + 30.0 + 35.0 + 10.0, "the edge, until others are frozen, until it stands"
