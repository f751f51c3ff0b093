"""The controller is away for minutes: shares stay on every server, gangs over several keep their turns or stop, and all is reconciled after."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hs_core.cluster import Settings
from hs_core.model import JobSpec, JobState, OnPartition
from hs_core.names import HostName, JobId, UserName
from hs_sim.faults import TIMING
from hs_sim.machines import Fault, FaultPlan, Kind
from hs_sim.machines.laws import Laws
from hs_sim.machines.part import Way
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, SimJob, Workload

QUANTUM_S = 20.0
AWAY_S, BACK_S = 600.0, 900.0
FENCE_S = 60.0
KEEPS, FENCES = (
    1,
    2,
)  # the gangs over both servers: one continues without the controller, one asks to be fenced
HOSTS = (HostName("v100-0001"), HostName("v100-0002"))


def jobs() -> Iterator[SimJob]:
    gang = SimJob(id=KEEPS, user=UserName("g"), arrival_s=0.0, steps=4_000, job_class="c", gpus=4, nodes=2)
    yield gang
    yield replace(gang, id=FENCES, user=UserName("f"))
    for number in range(3, 19):
        user = UserName("a" if number % 2 else "b")
        yield replace(gang, id=number, user=user, gpus=1, nodes=1, arrival_s=0.1 * number, steps=10_000)


def spec(job: SimJob) -> JobSpec:
    fences = OnPartition.FENCE if job.id == FENCES else OnPartition.CONTINUE
    return replace(job.spec(), on_partition=fences, checkpoint_interval_s=30.0)


class Seen:
    """GPU-seconds of every job, sample by sample, and which gangs had their servers."""

    def __init__(self, world: World) -> None:
        self._laws = Laws(world)
        self.gpu_s: dict[float, dict[int, float]] = {}
        self.had: dict[float, dict[int, tuple[bool, ...]]] = {}

    def __call__(self, world: World) -> None:
        self._laws(world)
        now_s = world.clock.now_s
        self.gpu_s[now_s] = {job.sim.id: sum(job.gpu_s.values()) for job in world.truth.jobs.values()}
        self.had[now_s] = {
            gang: tuple(self._has(world, host, gang) for host in HOSTS) for gang in (KEEPS, FENCES)
        }

    @staticmethod
    def _has(world: World, host: HostName, gang: int) -> bool:
        parts = world.agents[host].parts.values()
        return any(part.key[0] == JobId(gang) and part.way is Way.GOING for part in parts)

    def got(self, jobs: range | list[int], first_s: float, last_s: float) -> float:
        first, last = self.gpu_s[first_s], self.gpu_s[last_s]
        return sum(last[job] - first[job] for job in jobs)

    def at_the_end(self) -> None:
        self._laws.at_the_end()


@pytest.fixture(scope="module")
def ran() -> tuple[World, Seen]:
    experiment = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=2, gpus_per_server=4),)),
        workload=Workload(
            name="away",
            jobs=tuple(jobs()),
            tickets={UserName("g"): 100.0, UserName("f"): 100.0, UserName("a"): 100.0, UserName("b"): 200.0},
            rates={("c", "V100"): 10.0},
        ),
        quantum_s=QUANTUM_S,
        costs=Costs(start_s=2.0),
        sample_s=5.0,
    )
    plan = FaultPlan(faults=(Fault(kind=Kind.CONTROLLER_KILLED, at_s=AWAY_S + 1, for_s=BACK_S - AWAY_S),))
    world = World(
        experiment,
        faults=plan,
        specs=spec,
        settings=Settings(fence_after_s=FENCE_S, lease_s=20.0),
        watched=True,
    )
    seen = Seen(world)
    world.watch = seen
    world.horizon_s = 20_000.0
    world.run()
    return world, seen


A, B = [n for n in range(3, 19) if n % 2], [n for n in range(3, 19) if not n % 2]


def test_every_server_goes_on_sharing_by_tickets(ran: tuple[World, Seen]) -> None:
    _, seen = ran
    for first_s, last_s in ((300.0, AWAY_S), (AWAY_S, BACK_S)):
        a, b = seen.got(A, first_s, last_s), seen.got(B, first_s, last_s)
        assert b / a == pytest.approx(2.0, rel=0.1)
    for job in (*A, *B):
        assert seen.got([job], AWAY_S, BACK_S) > 0, f"job {job} got nothing"
    all_jobs = list(range(1, 19))
    assert seen.got(all_jobs, AWAY_S, BACK_S) > 0.95 * 8 * (BACK_S - AWAY_S)


def test_a_gang_that_continues_keeps_its_turns_on_both_servers_at_once(ran: tuple[World, Seen]) -> None:
    _, seen = ran
    before = seen.got([KEEPS], 300.0, AWAY_S)
    assert seen.got([KEEPS], AWAY_S, BACK_S) == pytest.approx(before, rel=0.15)
    alone = [at for at, had in seen.had.items() if AWAY_S < at < BACK_S and len(set(had[KEEPS])) > 1]
    assert not alone, f"only one of its servers gave it its GPUs at {alone}"


def test_a_gang_that_asks_for_it_is_ended_on_both_and_goes_on_when_the_controller_is_back(
    ran: tuple[World, Seen],
) -> None:
    world, seen = ran
    assert seen.got([FENCES], 300.0, AWAY_S) > 0
    assert seen.got([FENCES], AWAY_S + FENCE_S + 15, BACK_S) == 0
    job = world.truth.jobs[FENCES]
    assert (job.last_epoch, job.restarts) == (1, 1)
    redone_s = sum(job.gpu_s.values()) / 8 - job.sim.steps / 10.0
    assert redone_s < QUANTUM_S + 0.1 * job.sim.steps / 10.0, "it went on from its newest checkpoint"


def test_all_is_reconciled_after(ran: tuple[World, Seen]) -> None:
    world, seen = ran
    seen.at_the_end()
    for number, job in world.truth.jobs.items():
        assert job.id is not None
        row = world.controller.machine.find(job.id)
        assert row is not None
        assert row.state is JobState.SUCCEEDED
        assert job.restarts == (number == FENCES), f"job {number}"
        received = sum(job.gpu_s.values())
        assert row.gpu_s == pytest.approx(received, rel=0.02, abs=8 * 5.0 * job.launches)


@pytest.mark.parametrize("woke_s", [58.0, 60.0, 61.2])
def test_words_that_lay_unread_while_an_agent_was_stopped_put_off_nothing(woke_s: float) -> None:
    """It is cut off as it wakes: its job, that asked to be fenced, ends before the controller starts it on the other server."""
    experiment = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=2, gpus_per_server=1),)),
        workload=Workload(
            name="stopped",
            jobs=(SimJob(id=1, user=UserName("a"), arrival_s=0.0, steps=2_000, job_class="c"),),
            tickets={UserName("a"): 100.0},
            rates={("c", "V100"): 10.0},
        ),
        quantum_s=10.0,
        costs=Costs(start_s=2.0),
    )
    faults = (
        Fault(kind=Kind.AGENT_PAUSED, at_s=50.0, for_s=woke_s - 50.0, host=HOSTS[0]),
        Fault(kind=Kind.PARTITION, at_s=woke_s - 0.3, for_s=60.0, host=HOSTS[0]),
    )
    world = World(
        experiment,
        faults=FaultPlan(faults=faults),
        timing=TIMING,
        specs=lambda job: replace(job.spec(), on_partition=OnPartition.FENCE),
        settings=Settings(fence_after_s=12.0, lease_s=3.0),
    )
    world.run()
    (job,) = world.truth.jobs.values()
    assert job.last_home == (HOSTS[1],)
    assert job.ended_s is not None
