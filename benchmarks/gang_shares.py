"""How near gangs over parts of several servers, and the jobs beside them, come to what any schedule could give them.

Drawn clusters of one model where nothing changes but turns (those of `gang_bindings`, depth *quanta*). What a count
of GPUs says is due to users cannot always be had: a gang of two whole servers and five 1-GPU jobs there have eight
GPUs in turns with five. So the user that has the least of what is due to it is compared with the most that it could
have: by a linear program over all sets of jobs that fit at once, wherever these live, each for a part of the time.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from statistics import fmean

import numpy as np
from gang_bindings import FIRST, LAST, Wish, draw, had
from scipy.optimize import linprog

from hs_sim.quanta import run_quanta

WORLDS = range(60, 460)
GPUS = 4  # of a server


def fits(free: tuple[int, ...], gangs: Sequence[tuple[int, int]]) -> bool:
    """Whether all gangs (servers, GPUs on each) run at once on servers with so many free GPUs."""
    if not gangs:
        return True
    (nodes, per_node), *rest = gangs
    tried: set[tuple[int, ...]] = set()
    for servers in combinations(range(len(free)), nodes):
        left = tuple(sorted(gpus - per_node * (at in servers) for at, gpus in enumerate(free)))
        if left[0] >= 0 and left not in tried:
            tried.add(left)
            if fits(left, rest):
                return True
    return False


def at_once(servers: int, wishes: Sequence[Wish]) -> Iterable[tuple[int, ...]]:
    """Of each user how many jobs run, for all that could at once."""
    widest = sorted(
        range(len(wishes)), key=lambda at: (-wishes[at].nodes * wishes[at].gpus, -wishes[at].gpus)
    )
    most = [min(wish.jobs, GPUS * servers // (wish.nodes * wish.gpus)) for wish in wishes]
    for counts in product(*(range(count + 1) for count in most)):
        gangs = [(wishes[at].nodes, wishes[at].gpus) for at in widest for _ in range(counts[at])]
        if sum(nodes * gpus for nodes, gpus in gangs) <= GPUS * servers and fits((GPUS,) * servers, gangs):
            yield counts


def most_for_the_least(servers: int, wishes: Sequence[Wish], due: Sequence[float]) -> float:
    """The part of what is due to each that all could have at least."""
    gpus = np.array([wish.nodes * wish.gpus for wish in wishes], dtype=np.float64)
    sets = np.array(list(at_once(servers, wishes)), dtype=np.float64) * gpus
    worth = np.append(np.zeros(len(sets)), -1.0)
    falls_short = np.hstack([-sets.T, np.array(due)[:, None]])
    whole = np.append(np.ones(len(sets)), 0.0)[None, :]
    found = linprog(
        worth, A_ub=falls_short, b_ub=np.zeros(len(due)), A_eq=whole, b_eq=[1.0],
        bounds=[(0.0, None)] * len(sets) + [(0.0, 1.0)],
    )  # fmt: skip
    assert found.status == 0, found.message
    return float(-found.fun)


def main() -> None:
    least: list[float] = []
    could: list[float] = []
    used: list[float] = []
    lacks: list[float] = []
    for number in WORLDS:
        experiment, wishes = draw(number)
        (pool,) = experiment.cluster.pools
        result = run_quanta(experiment)
        samples = result.samples[FIRST:LAST]
        due = {user: fmean(sample.entitled[user, pool.model] for sample in samples) for user in wishes}
        got = {user: had(result, user) for user in wishes}
        parts = [min(1.0, got[user] / due[user]) for user in wishes]
        least.append(min(parts))
        could.append(most_for_the_least(pool.servers, list(wishes.values()), list(due.values())))
        used.append(sum(got.values()))
        lacks += [1.0 - part for part in parts]
    of_that = sorted(one / other for one, other in zip(least, could, strict=True))
    at = {part: of_that[int(part * (len(of_that) - 1))] for part in (0.0, 0.02, 0.05, 0.1, 0.25, 0.5)}
    print(f"{len(WORLDS)} clusters, quanta {FIRST} to {LAST}: {fmean(used):.2f} GPUs in use, on average")
    print(f"users lack {100 * fmean(lacks):.1f} % of what a count of GPUs says is due to them, on average")
    print(
        f"who has the least of that has {100 * fmean(least):.1f} % of it, and no schedule gives more than {100 * fmean(could):.1f} %"
    )
    print(
        f"of what could be had: {100 * at[0.5]:.0f} % (median), one in four below {100 * at[0.25]:.0f} %, one in ten below {100 * at[0.1]:.0f} %, one in twenty below {100 * at[0.05]:.0f} %, "
        f"one in fifty below {100 * at[0.02]:.0f} %, least {100 * at[0.0]:.0f} %"
    )


if __name__ == "__main__":
    main()
