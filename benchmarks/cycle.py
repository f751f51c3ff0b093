"""One scheduling cycle of gandiva-fair, the plan's check included.

Goals: at most 1 s at 10,000 GPUs and 100,000 jobs, 2.3 times as much for twice of all. Garbage is not collected in
the middle of a cycle, as in hs-controller.
"""

import json
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from hs_controller import garbage
from hs_core.dice import Random, roll
from hs_core.names import HostName, JobId, UserName
from hs_core.plan import check
from hs_core.policies import find
from hs_core.policy import HostFacts, JobFacts, Memory, Snapshot, Verdict

MODELS = {"V100": 1.0, "P100": 0.6, "P40": 0.45, "K80": 0.2}
GIB = 2**30
SIZES = ((0.866, 1, 1), (0.023, 2, 1), (0.049, 4, 1), (0.062, 8, 2))  # Philly's mix: (part, GPUs, servers)
CLASSES = 3  # of each user
QUANTA = 5


def servers(count: int) -> tuple[HostFacts, ...]:
    models = list(MODELS)
    return tuple(
        HostFacts(
            name=HostName(f"node{at:05}"),
            model=models[at * len(models) // count],
            gpus=4,
            gpu_memory_bytes=16 * GIB,
        )
        for at in range(count)
    )


def size(dice: Random) -> tuple[int, int]:
    at = dice.random()
    for part, gpus, nodes in SIZES:
        if at < part:
            return gpus, nodes
        at -= part
    return 1, 1


def jobs(dice: Random, count: int, users: int, first: int = 0) -> tuple[JobFacts, ...]:
    made = []
    for at in range(first, first + count):
        gpus, nodes = size(dice)
        user = UserName(f"user{dice.randrange(users):05}")
        made.append(
            JobFacts(
                id=JobId(at),
                user=user,
                gang=gpus,
                nodes=nodes,
                arrival_s=float(at),
                job_class=f"{user}/{dice.randrange(CLASSES)}",
                movable=True,
            )
        )
    return tuple(made)


def rates(dice: Random, users: int) -> dict[tuple[str, str], float]:
    """The slower the class, the more it has of a new GPU."""
    found = {}
    for user in range(users):
        for kind in range(CLASSES):
            power, base = dice.uniform(0.2, 1.2), dice.uniform(0.5, 20.0)
            for model, speed in MODELS.items():
                found[f"user{user:05}/{kind}", model] = base * speed**power
    return found


def world(hosts: int) -> tuple[Snapshot, Random]:
    users, count = hosts * 2 // 5, hosts * 40
    dice = roll(1, hosts)
    asked = Snapshot(
        now_s=1e6,
        quantum_s=60.0,
        quantum=0,
        hosts=servers(hosts),
        jobs=jobs(dice, count, users),
        tickets={UserName(f"user{at:05}"): Fraction(100) for at in range(users)},
        rates=rates(dice, users),
        migrations_left=100,
    )
    return asked, dice


def following(asked: Snapshot, verdict: Verdict, dice: Random) -> Snapshot:
    """A quantum later: one job in a thousand has ended and as many have come."""
    homes, now_s = verdict.plan.homes, asked.now_s + asked.quantum_s
    gone = set(dice.sample(range(len(asked.jobs)), len(asked.jobs) // 1000))
    # As the controller shows them: a job about which nothing is new is the same object.
    left = [
        job
        if job.started and job.hosts == homes.get(job.id)
        else replace(job, hosts=homes.get(job.id, ()), started=job.id in homes, settled_s=0.0)
        for at, job in enumerate(asked.jobs)
        if at not in gone
    ]
    new = jobs(dice, len(gone), len(asked.tickets), first=asked.jobs[-1].id + 1)
    return replace(asked, jobs=(*left, *new), now_s=now_s, quantum=asked.quantum + 1)


def timed(call: Callable[[], Verdict]) -> tuple[float, Verdict]:
    with garbage.later():
        start = time.process_time()
        found = call()
        return time.process_time() - start, found


def cycle(asked: Snapshot, memory: Memory) -> Verdict:
    verdict = find("gandiva-fair").decide(asked, memory)
    check(asked, verdict.plan)
    return verdict


def measure(hosts: int) -> float:
    asked, dice = world(hosts)
    first, verdict = timed(lambda: cycle(asked, {}))
    took = []
    for _ in range(QUANTA):
        asked = following(asked, verdict, dice)
        memory = json.loads(json.dumps(verdict.memory))
        seconds, verdict = timed(lambda asked=asked, memory=memory: cycle(asked, memory))  # type: ignore[misc]
        took.append(seconds)
    moves, gangs = len(verdict.plan.moves), sum(job.nodes > 1 for job in asked.jobs)
    median = sorted(took)[QUANTA // 2]
    print(
        f"{hosts:>6} {4 * hosts:>7} {len(asked.tickets):>6} {len(asked.jobs):>8} {gangs:>6} {median:9.2f} s {first:12.2f} s "
        f"{moves:>6} {len(verdict.trades):>7}",
        flush=True,
    )
    return median


def main() -> None:
    print(
        f"CPU time of one decision and its check, median of {QUANTA} quanta in which 1 job in 1,000 comes and goes"
    )
    print("servers    GPUs  users     jobs  gangs       cycle   all jobs new  moves  trades")
    once, twice = measure(2_500), measure(5_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"twice of all: {twice / once:.2f} times; peak memory of the process {peak:.2f} GiB")


if __name__ == "__main__":
    main()
