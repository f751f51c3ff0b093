"""How far users whose jobs have several widths are from what their shares are worth.

Drawn clusters where nothing changes but turns. All users' jobs train equally fast on a model; *speed-up*: of each
model over the next older one. Run once as it is, and once without jobs that change homes together
(`hs_core.mechanism.exchange`). `busy` is the part in use of the GPUs that could be used.
"""

from math import fsum
from typing import Any, NamedTuple
from unittest.mock import patch

from pools import lacks_in

from hs_core.dice import roll
from hs_core.mechanism import exchange
from hs_core.mechanism.mover import Mover
from hs_core.names import UserName
from hs_sim.model import ClusterSpec, Experiment, Pool, SimJob, Workload
from hs_sim.quanta import run_quanta

WORLDS = 60
MODELS = ("V100", "P100", "K80")
FIRST, LAST = 80, 200  # quanta that are looked at
LATE = 120  # by then moves should be over
QUANTUM_S = 60.0
FOREVER = 10**9


class Lived(NamedTuple):
    lacks: list[float]  # of each user, as a part of what its shares are worth; 0 where it has more
    busy: float
    moves: int
    late: int  # of these


def draw(number: int, models: int, speedup: float) -> tuple[Experiment, dict[str, float]]:
    """1 or 2 servers of 4 GPUs of each model, or twice as many of one; 2 to 4 users who ask for a half to twice what is theirs; what a GPU of each model is worth."""
    dice = roll(77, number)
    several = dice.randint(2, 3)
    servers = [dice.randint(1, 2) for _ in range(several)]
    if models == 1:
        servers = [sum(servers)]
    pools = tuple(
        Pool(model=model, servers=count, gpus_per_server=4)
        for model, count in zip(MODELS, servers, strict=False)
    )
    gpus = 4 * sum(servers)
    worth = {pool.model: speedup**-age for age, pool in enumerate(pools)}
    tickets: dict[UserName, float] = {}
    whose: list[tuple[UserName, int]] = []
    users = dice.randint(2, 4)
    for at in range(users):
        user = UserName(f"user{at}")
        tickets[user] = dice.choice([50.0, 100.0, 100.0, 200.0])
        wants, asked = dice.choice([0.5, 1.0, 1.5, 2.0]) * gpus / users, 0
        while asked < wants:
            width = dice.choice([1, 1, 2, 2, 3, 4])
            whose.append((user, width))
            asked += width
    dice.shuffle(whose)
    jobs = tuple(
        SimJob(id=at, user=user, arrival_s=float(at), steps=FOREVER, job_class=f"wide{width}", gpus=width,
               state_bytes=1 << 20)
        for at, (user, width) in enumerate(whose, start=1)
    )  # fmt: skip
    rates = {(job.job_class, model): 10.0 * one for job in jobs for model, one in worth.items()}
    experiment = Experiment(
        cluster=ClusterSpec(pools=pools),
        workload=Workload(name="mixed", jobs=jobs, tickets=tickets, rates=rates),
        until_s=LAST * QUANTUM_S,
        known_rates=True,
    )
    return experiment, worth


def live(number: int, models: int, speedup: float) -> Lived:
    experiment, worth = draw(number, models, speedup)
    moved: list[int] = []
    move = Mover.move

    def heard(mover: Mover, job: Any, to: Any, reason: Any, text: str) -> None:
        before = len(mover.done)
        move(mover, job, to, reason, text)
        if len(mover.done) > before:  # else nobody was told where it lives
            moved.append(mover.world.snapshot.quantum)

    with patch.object(Mover, "move", heard):
        samples = run_quanta(experiment).samples[FIRST:LAST]
    lacks = lacks_in(samples, experiment.workload.tickets, worth)
    used = fsum(gpus for each in samples for gpus in each.gpus.values()) / len(samples)
    asked = sum(job.gpus for job in experiment.workload.jobs)
    there = sum(4 * pool.servers for pool in experiment.cluster.pools)
    return Lived(lacks, used / min(asked, there), len(moved), sum(quantum > LATE for quantum in moved))


def line(models: int, speedup: float) -> str:
    worlds = [live(number, models, speedup) for number in range(WORLDS)]
    users = [lack for world in worlds for lack in world.lacks]
    most = [max(world.lacks) for world in worlds]
    far = [sum(lack > part for lack in most) for part in (0.05, 0.1, 0.2)]
    return (
        f"{100 * fsum(users) / len(users):.1f} % on average, of each world's worst {100 * fsum(most) / WORLDS:.1f} %; a user lacks 5, 10, 20 % in {far[0]}, {far[1]}, {far[2]} of "
        f"{WORLDS} worlds; busy {fsum(world.busy for world in worlds) / WORLDS:.3f}; {fsum(world.moves for world in worlds) / WORLDS:.1f} moves a world, {fsum(world.late for world in worlds) / WORLDS:.2f} late ones"
    )


def main() -> None:
    print("what users lack of what their shares are worth")
    for models, speedup in ((1, 1.0), (3, 1.0), (3, 1.6), (3, 2.4)):
        words = f"speed-up {speedup:g}" if models > 1 else "one model"
        print(f"{words}, together:   {line(models, speedup)}")
        with patch.object(exchange, "is_small", lambda _: False):
            print(f"{words}, job by job: {line(models, speedup)}", flush=True)


if __name__ == "__main__":
    main()
