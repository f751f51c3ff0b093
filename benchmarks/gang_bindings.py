"""What gangs over parts of several servers lose because processes are bound to GPUs.

The controller does not know of these bindings. Drawn clusters of one model where nothing changes but turns, in both
depths of the simulator. *quanta* counts GPUs; *machines* binds processes to them, and a start takes a sixth of a
quantum there. Where they differ by more than a few percent there are two causes: bindings cost turns, or a message
came a moment earlier or later and jobs came to live otherwise. What homes cost is the same in both on average.
"""

from dataclasses import dataclass
from math import fsum

from hs_core.dice import roll
from hs_core.names import UserName
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

WORLDS = 60
FIRST, LAST = 40, 120  # quanta that are looked at
QUANTUM_S = 60.0
RATE = 10.0
FOREVER = 10**9


@dataclass(frozen=True, slots=True)
class Wish:
    """Of a user: so many jobs alike."""

    jobs: int
    nodes: int
    gpus: int  # of each of the nodes


def draw(number: int) -> tuple[Experiment, dict[UserName, Wish]]:
    """2 to 4 servers of 4 GPUs and 2 to 4 users, half of them with gangs over 2 or 3 servers."""
    dice = roll(11, number)
    servers = dice.randint(2, 4)
    wishes: dict[UserName, Wish] = {}
    tickets: dict[UserName, float] = {}
    for at in range(dice.randint(2, 4)):
        nodes, gpus = dice.choice([1, 1, 2, 2, min(3, servers)]), dice.choice([1, 1, 2, 2, 3, 4])
        user = UserName(f"user{at}")
        wishes[user] = Wish(dice.randint(1, max(1, 5 * servers // (gpus * nodes))), nodes, gpus)
        tickets[user] = dice.choice([50.0, 100.0, 100.0, 200.0])
    whose = [(user, wish) for user, wish in wishes.items() for _ in range(wish.jobs)]
    jobs = tuple(
        SimJob(
            id=at,
            user=user,
            arrival_s=float(at),
            steps=FOREVER,
            job_class=user,
            gpus=wish.gpus,
            nodes=wish.nodes,
            state_bytes=1 << 28,
        )
        for at, (user, wish) in enumerate(whose, start=1)
    )
    experiment = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=servers, gpus_per_server=4),)),
        workload=Workload(
            name="parts", jobs=jobs, tickets=tickets, rates={(user, "V100"): RATE for user in wishes}
        ),
        costs=Costs(start_s=10.0),
        until_s=LAST * QUANTUM_S,
        seed=number,
    )
    return experiment, wishes


def had(result: Result, user: UserName) -> float:
    """GPUs, on average over the quanta that are looked at."""
    samples = result.samples[FIRST:LAST]
    return fsum(gpus for s in samples for (of, _), gpus in s.gpus.items() if of == user) / len(samples)


def trained(result: Result, user: UserName, wish: Wish) -> float:
    """GPUs that its steps come to."""
    samples = result.samples[FIRST:LAST]
    rate = fsum(s.steps_per_s.get(user, 0.0) for s in samples) / len(samples)
    return rate / RATE * wish.gpus * wish.nodes


def main() -> None:
    counted = bound = worked = 0.0
    apart: list[float] = []
    for number in range(WORLDS):
        experiment, wishes = draw(number)
        quanta, machines = run_quanta(experiment), run_machines(experiment)
        gpus = {user: (had(quanta, user), had(machines, user)) for user in wishes}
        counted += fsum(one for one, _ in gpus.values())
        bound += fsum(other for _, other in gpus.values())
        worked += fsum(trained(machines, user, wish) for user, wish in wishes.items())
        apart.append(max(abs(one - other) / max(1.0, one) for one, other in gpus.values()))
    apart.sort()
    far = sum(part > 0.05 for part in apart)
    print(f"{WORLDS} clusters, quanta {FIRST} to {LAST}: GPUs in use, on average")
    print(f"counted (depth quanta):  {counted / WORLDS:6.2f}")
    print(
        f"bound (depth machines):  {bound / WORLDS:6.2f}, of which their jobs trained on {worked / WORLDS:.2f}"
    )
    print(
        f"a user has more than 5 % of its GPUs more or less by it in {far} of {WORLDS}; median {100 * apart[WORLDS // 2]:.1f} %, one in ten above {100 * apart[WORLDS * 9 // 10]:.0f} %, most {100 * apart[-1]:.0f} %"
    )


if __name__ == "__main__":
    main()
