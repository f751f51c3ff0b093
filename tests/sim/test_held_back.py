"""Jobs of a server that are held back until all have come, as in `make demo`: wherever their processes are bound by then, users have their shares soon after."""

from dataclasses import dataclass, field

import pytest

from hs_core.dice import Random
from hs_core.events.cluster import JobsPaused, JobsUnpaused
from hs_core.names import JobId, UserName
from hs_sim.machines.timing import Timing
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, SimJob, Workload

QUANTUM_S, SAMPLE_S = 2.0, 0.5
PERIOD_S = 12 * QUANTUM_S  # after which the exact schedule repeats
TEAMS = {UserName("A"): (1, 1050), UserName("B"): (2, 600), UserName("C"): (4, 335)}  # GPUs, steps
WHO = UserName("root")


def demo(seed: int) -> Experiment:
    """Four jobs of each user, that come within 45 s in any order. The seeds below are some after which a user was a tenth off its share while hosts went by passes alone, or left gangs astride blocks."""
    dice = Random(seed)
    times = sorted(dice.uniform(0, 45) for _ in range(4 * len(TEAMS)))
    users = [user for user in TEAMS for _ in range(4)]
    dice.shuffle(users)
    jobs = tuple(
        SimJob(id=number, user=user, arrival_s=at_s, steps=TEAMS[user][1], job_class="c",
               gpus=TEAMS[user][0], gpu_memory_bytes=1 << 30)
        for number, (at_s, user) in enumerate(zip(times, users, strict=True), start=1)
    )  # fmt: skip
    pool = Pool(model="V100", servers=1, gpus_per_server=4, gpu_memory_bytes=16 << 30)
    return Experiment(
        cluster=ClusterSpec(pools=(pool,)),
        workload=Workload(name="demo", jobs=jobs, tickets=dict.fromkeys(TEAMS, 100.0), rates={("c", "V100"): 20.0}),
        costs=Costs(suspend_s=0.04, resume_s=0.012, start_s=6.0),
        quantum_s=QUANTUM_S,
        sample_s=SAMPLE_S,
    )  # fmt: skip


@dataclass(slots=True)
class Muster:
    """`world.watch`: pauses each once it trains and lets all go together; notes what users have received."""

    paused: set[JobId] = field(default_factory=set)
    over_s: float | None = None
    first_end_s: float | None = None
    received: dict[float, dict[UserName, float]] = field(default_factory=dict)  # GPU-seconds, by time

    def __call__(self, world: World) -> None:
        now_s, jobs = world.clock.now_s, world.truth.jobs.values()
        self.received[now_s] = {
            user: sum(sum(job.gpu_s.values()) for job in jobs if job.sim.user == user) for user in TEAMS
        }
        if self.first_end_s is None and any(job.ended_s is not None for job in jobs):
            self.first_end_s = now_s
        if self.over_s is not None:
            return
        rows = [world.controller.machine.find(job.id) for job in jobs if job.id is not None]
        up = {row.id for row in rows if row is not None and row.step > 0}
        if new := tuple(sorted(up - self.paused)):
            world.controller.tell(
                lambda now_s: JobsPaused(now_s=now_s, by=WHO, jobs=new), answered=lambda _: None
            )
            self.paused |= up
        if len(self.paused) == len(jobs):
            everybody = tuple(sorted(self.paused))
            world.controller.tell(
                lambda now_s: JobsUnpaused(now_s=now_s, by=WHO, jobs=everybody), answered=lambda _: None
            )
            self.over_s = now_s

    def judged(self) -> dict[UserName, float]:
        """GPUs of each user, over the whole periods before the first end; one is left out after all were let go."""
        assert self.over_s is not None
        assert self.first_end_s is not None
        to_s = self.first_end_s - SAMPLE_S
        periods = int((to_s - self.over_s) / PERIOD_S) - 1
        from_s = to_s - periods * PERIOD_S
        return {
            user: (self.received[to_s][user] - self.received[from_s][user]) / (to_s - from_s)
            for user in TEAMS
        }


@pytest.mark.parametrize("seed", [19, 75, 87, 147, 163, 191, 258, 471, 530, 648])
def test_who_was_held_back_until_all_had_come_has_its_share_wherever_processes_were_bound_meanwhile(
    seed: int,
) -> None:
    world = World(demo(seed), timing=Timing(progress_s=1.0))
    world.watch = muster = Muster()
    world.horizon_s = 1_000.0
    world.run()
    assert muster.judged() == pytest.approx(dict.fromkeys(TEAMS, 4 / 3), rel=0.10)
