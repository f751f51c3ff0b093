"""How far users are from what is due to them in windows of 20 quanta.

Drawn clusters of one model where nothing changes but turns. The law (goal): in a window a user is below what is due
to it by no more than 5 % or one gang's quantum, whichever is more. What a user lacks is counted as parts of what is
allowed, in two ways: with one gang's quantum, and with one for each server where the user has jobs, as each server
rounds turns by itself.

Of the worlds beyond the law it is said in how many somebody lacks more over all quanta, not only in windows, and in
how many of these it would, whatever homes and turns were chosen (`any_homes`). The first of the drawn worlds are run
once more in depth machines, where processes are bound to GPUs.
"""

from math import fsum

from any_homes import Asked, least_lack

from hs_core.dice import roll
from hs_core.names import UserName
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

WORLDS = 240
BOUND_WORLDS = 40
WINDOW = 20
FIRST, LAST = 40, 120  # quanta that are looked at
QUANTUM_S = 60.0
FOREVER = 10**9


def draw(number: int) -> tuple[Experiment, dict[UserName, tuple[int, int]]]:
    """2 to 12 servers of 4 GPUs and 2 to 5 users, each with jobs of one width; of each user how many jobs and how wide."""
    dice = roll(7, number)
    servers = dice.randint(2, 12)
    users: dict[UserName, tuple[int, int]] = {}
    tickets: dict[UserName, float] = {}
    for at in range(dice.randint(2, 5)):
        gang = dice.choice([1, 1, 1, 2, 2, 4])
        user = UserName(f"user{at}")
        users[user] = (dice.randint(1, max(1, 8 * servers // gang)), gang)
        tickets[user] = dice.choice([50.0, 100.0, 100.0, 200.0])
    whose = [(user, gang) for user, (count, gang) in users.items() for _ in range(count)]
    jobs = tuple(
        SimJob(id=at, user=user, arrival_s=0.0, steps=FOREVER, job_class=user, gpus=gang, state_bytes=1 << 20)
        for at, (user, gang) in enumerate(whose, start=1)
    )
    experiment = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=servers, gpus_per_server=4),)),
        workload=Workload(
            name="windows", jobs=jobs, tickets=tickets, rates={(user, "V100"): 10.0 for user in users}
        ),
        until_s=LAST * QUANTUM_S,
    )
    return experiment, users


def of_user(result: Result, user: UserName, first: int, last: int) -> tuple[float, float]:
    """GPUs that it had, and that were due to it, on average over these quanta."""
    had, due = (
        fsum(gpus for sample in result.samples[first:last] for (of, _), gpus in kind(sample).items() if of == user)
        for kind in (lambda sample: sample.gpus, lambda sample: sample.entitled)
    )  # fmt: skip
    return had / (last - first), due / (last - first)


def worst(result: Result, user: UserName, gangs: int) -> float:
    """What the user lacks in its worst window, in what is allowed; `gangs`: GPUs that one turn, or one on each of its servers, has."""
    found = 0.0
    for first in range(FIRST, LAST - WINDOW + 1):
        had, due = of_user(result, user, first, first + WINDOW)
        found = max(found, (due - had) / max(0.05 * due, gangs / WINDOW))
    return round(found, 6)


def in_all(result: Result, user: UserName, gang: int) -> tuple[float, float]:
    """What the user lacks over all quanta that are looked at, in what is allowed; and that, of GPUs."""
    had, due = of_user(result, user, FIRST, LAST)
    allowed = max(0.05 * due, gang / WINDOW)
    return (due - had) / allowed, allowed


def least(result: Result, servers: int, users: dict[UserName, tuple[int, int]]) -> float:
    """What the worst user would lack over all quanta by the best homes and turns, in what is allowed."""
    asked = [
        Asked(count, gang, of_user(result, user, FIRST, LAST)[1], in_all(result, user, gang)[1])
        for user, (count, gang) in users.items()
    ]
    return least_lack(servers, asked)


def spread(values: list[float]) -> str:
    values = sorted(values)
    far = sum(value > 1 for value in values)
    at = {part: values[int(part * (len(values) - 1))] for part in (0.5, 0.9, 1.0)}
    return f"{far:>3} of {len(values)} worlds are beyond it; median {at[0.5]:.2f}, one in ten above {at[0.9]:.2f}, most {at[1.0]:.2f}"


def main() -> None:
    as_said: list[float] = []
    by_server: list[float] = []
    for_long = by_none = 0  # worlds beyond, over all quanta; and by any homes and turns
    off: list[float] = []
    used: list[float] = []
    for number in range(WORLDS):
        experiment, users = draw(number)
        (pool,) = experiment.cluster.pools
        result = run_quanta(experiment)
        as_said.append(max(worst(result, user, gang) for user, (_, gang) in users.items()))
        by_server.append(
            max(worst(result, user, gang * min(pool.servers, count)) for user, (count, gang) in users.items())
        )
        if max(in_all(result, user, gang)[0] for user, (_, gang) in users.items()) > 1:
            for_long += 1
            by_none += least(result, pool.servers, users) > 1
        got = {user: of_user(result, user, FIRST, LAST) for user in users}
        off += [abs(had - due) / due for had, due in got.values()]
        asked = sum(count * gang for count, gang in users.values())
        used.append(fsum(had for had, _ in got.values()) / min(4 * pool.servers, asked))
    print("the worst window of the worst user, in what is allowed")
    print(f"as it is said:             {spread(as_said)}")
    print(f"a gang's quantum a server: {spread(by_server)}")
    print(
        f"{for_long} worlds are beyond it over all quanta, as it is said; in {by_none} of these no homes and turns would do"
    )
    print(
        f"over {LAST - FIRST} quanta users are {100 * fsum(off) / len(off):.1f} % off what is due, on average; {100 * fsum(used) / len(used):.1f} % of the GPUs that could be used are"
    )
    bound()


def bound() -> None:
    """Depth machines."""
    as_said: list[float] = []
    off: list[float] = []
    for number in range(BOUND_WORLDS):
        experiment, users = draw(number)
        result = run_machines(experiment)
        as_said.append(max(worst(result, user, gang) for user, (_, gang) in users.items()))
        got = {user: of_user(result, user, FIRST, LAST) for user in users}
        off += [abs(had - due) / due for had, due in got.values()]
    print(f"processes bound to GPUs:    {spread(as_said)}")
    print(f"over {LAST - FIRST} quanta users are {100 * fsum(off) / len(off):.1f} % off what is due there")


if __name__ == "__main__":
    main()
