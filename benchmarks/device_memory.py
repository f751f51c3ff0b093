"""What users lose because jobs do not fit beside one another into GPUs.

Drawn servers, in depth *machines*, once with the jobs' memory and once without. The stride decides whose turn it is.
Memory decides who has to be parked for it, and where a job may be started ahead of its turn. Shares should not depend
on that.
"""

from dataclasses import dataclass, field, replace
from math import fsum

from hs_core.dice import roll
from hs_core.names import UserName
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Experiment, Pool, Result, SimJob, Workload

WORLDS = 60
FIRST, LAST = 40, 120  # quanta that are looked at
QUANTUM_S = 60.0
RATE = 10.0
GIB = 1 << 30
FAR = 0.15  # GPUs


@dataclass(frozen=True, slots=True)
class Wish:
    """Of a user: so many jobs alike, each of which holds so much of each of its GPUs."""

    jobs: int
    gpus: int
    memory_bytes: int
    state_bytes: int


def draw(number: int) -> Experiment:
    """A server of 2, 4 or 8 GPUs of 16 GiB, 2 or 3 users."""
    dice = roll(13, number)
    gpus = dice.choice([2, 4, 4, 8])
    wishes: dict[UserName, Wish] = {}
    tickets: dict[UserName, float] = {}
    for at in range(dice.randint(2, 3)):
        user, gang = UserName(f"user{at}"), dice.choice([size for size in (1, 1, 2, 4) if size <= gpus])
        memory_bytes = dice.choice([1, 3, 5, 7, 9, 12, 15]) * GIB
        state_bytes = min(memory_bytes, dice.choice([GIB // 4, GIB, 4 * GIB]))
        wishes[user] = Wish(dice.randint(1, max(2, 3 * gpus // gang)), gang, memory_bytes, state_bytes)
        tickets[user] = dice.choice([50.0, 100.0, 100.0, 200.0])
    whose = [(user, wish) for user, wish in wishes.items() for _ in range(wish.jobs)]
    dice.shuffle(whose)
    jobs = tuple(
        SimJob(
            id=at,
            user=user,
            arrival_s=float(at),
            steps=10**9,
            job_class=user,
            gpus=wish.gpus,
            gpu_memory_bytes=wish.memory_bytes,
            state_bytes=wish.state_bytes,
        )
        for at, (user, wish) in enumerate(whose, start=1)
    )
    pool = Pool(
        model="V100",
        servers=1,
        gpus_per_server=gpus,
        gpu_memory_bytes=16 * GIB,
        memory_bytes=dice.choice([0, 0, 64, 128]) * GIB,
    )
    return Experiment(
        cluster=ClusterSpec(pools=(pool,)),
        workload=Workload(
            name="memory", jobs=jobs, tickets=tickets, rates={(user, "V100"): RATE for user in wishes}
        ),
        until_s=LAST * QUANTUM_S,
        seed=number,
        known_rates=True,
    )


def roomy(experiment: Experiment) -> Experiment:
    """The same jobs, which need no memory."""
    jobs = tuple(replace(job, gpu_memory_bytes=0) for job in experiment.workload.jobs)
    return replace(experiment, workload=replace(experiment.workload, jobs=jobs))


def had(result: Result, user: UserName) -> float:
    """GPUs, on average over the quanta that are looked at."""
    samples = result.samples[FIRST:LAST]
    return fsum(gpus for s in samples for (of, _), gpus in s.gpus.items() if of == user) / len(samples)


def trained(result: Result) -> float:
    """GPUs that all steps come to."""
    width = {job.user: job.gpus for job in result.experiment.workload.jobs}
    samples = result.samples[FIRST:LAST]
    return fsum(rate / RATE * width[user] for s in samples for user, rate in s.steps_per_s.items()) / len(
        samples
    )


def launches(world: World) -> int:
    return sum(job.launches for job in world.truth.jobs.values())


@dataclass(slots=True)
class Sums:
    """Over servers alike."""

    servers: int = 0
    jobs: int = 0
    free: float = 0.0  # GPUs in use by jobs that need no memory
    free_starts: int = 0
    used: float = 0.0
    computed: float = 0.0
    starts: int = 0
    apart: list[float] = field(
        default_factory=list
    )  # of each server, the user whom memory makes most difference

    def add(self, experiment: Experiment) -> None:
        tight, free = World(experiment), World(roomy(experiment))
        crowded, roomier = tight.run(), free.run()
        users = list(experiment.workload.tickets)
        self.servers += 1
        self.jobs += len(experiment.workload.jobs)
        self.free += fsum(had(roomier, user) for user in users)
        self.free_starts += launches(free)
        self.used += fsum(had(crowded, user) for user in users)
        self.computed += trained(crowded)
        self.starts += launches(tight)
        self.apart.append(max(abs(had(crowded, user) - had(roomier, user)) for user in users))

    def say(self, what: str) -> None:
        count = self.servers
        self.apart.sort()
        far = sum(gpus > FAR for gpus in self.apart)
        print(f"{count} servers {what}, {self.jobs} jobs:")
        print(f"  GPUs in use where jobs need no memory {self.free / count:.2f}, {self.free_starts} starts")
        print(
            f"  with their memory                     {self.used / count:.2f}, of which they trained on {self.computed / count:.2f}; {self.starts} starts"
        )
        print(
            f"  the user of a server whom that makes most difference: {fsum(self.apart) / count:.3f} GPUs on average, more than {FAR} in {far} of {count}, most {self.apart[-1]:.2f}"
        )


def main() -> None:
    ample, scarce = Sums(), Sums()
    for number in range(WORLDS):
        experiment = draw(number)
        (scarce if experiment.cluster.pools[0].memory_bytes else ample).add(experiment)
    print(f"Quanta {FIRST} to {LAST}, on average")
    ample.say("whose host memory holds all that is parked")
    scarce.say(
        "of 64 and 128 GiB, half of it for what is parked: else a checkpoint is written, and the next turn costs a start"
    )


if __name__ == "__main__":
    main()
