"""Tesserae's migration.

Goals: 20 times as fast as the literal algorithm at 64 nodes with the same optimum; 4,096 nodes in at most 60 ms.
"""

import time

import numpy as np
from literal import migration_cost

from hs_core.mechanism.tesserae.migrate import Ints, by_name, least_moves

GPUS = 4
REPEATS = 5
LITERAL_UP_TO = 64


def plans(nodes: int, changed: float, packed: float, seed: int) -> tuple[Ints, Ints]:
    """Nodes full of gangs of 1, 2, 4 and 8; then `changed` of the jobs are replaced or trade places, and all nodes and GPUs are renamed."""
    dice = np.random.default_rng(seed)
    old = np.full((nodes, GPUS, 2), -1)
    job = node = 0
    while node < nodes:
        gang = int(dice.choice([1, 2, 4, 8], p=[0.45, 0.3, 0.2, 0.05]))
        if gang == 2 * GPUS and node + 1 < nodes:
            old[node : node + 2, :, 0] = job
            job, node = job + 1, node + 2
            continue
        gang = min(gang, GPUS)
        old[node, :, 0] = job + np.arange(GPUS) // gang
        job, node = job + GPUS // gang, node + 1
    sizes = np.bincount(old[..., 0].ravel(), minlength=job)
    guests = np.flatnonzero((dice.random(job) < packed) & (sizes <= GPUS))
    guest_of = np.full(job + 1, -1)
    guest_of[guests] = job + np.arange(len(guests))
    old[..., 1] = guest_of[old[..., 0]]
    # Jobs of equal gang trade places, others go and new ones come.
    names = np.arange(job + len(guests) + 1)
    names[-1] = -1
    total = len(names) - 1
    gangs = np.bincount(old[old >= 0], minlength=total)
    for gang in np.unique(gangs):
        traded = np.flatnonzero((gangs == gang) & (dice.random(total) < changed))
        names[traded] = dice.permutation(traded)
    gone = dice.random(total) < changed / 2
    names[:-1][gone] = total + np.flatnonzero(gone)
    new = names[old][dice.permutation(nodes)]
    order = np.argsort(dice.random((nodes, GPUS)), axis=1)
    return old, np.take_along_axis(new, order[..., None], axis=1)


def main() -> None:
    least_moves(*plans(8, 0.1, 0.3, 0))  # imports
    print(f"CPU time, nodes of {GPUS} GPUs, median of {REPEATS}")
    for changed, packed in ((0.1, 0.0), (0.1, 0.3), (0.5, 0.3), (1.0, 0.5)):
        print(f"{changed:.0%} of the jobs trade places, {packed:.0%} have a second one on their GPUs")
        for nodes in (16, 64, 256, 1024, 4096):
            old, new = plans(nodes, changed, packed, nodes)
            took = []
            for _ in range(REPEATS):
                start_s = time.process_time()
                found = least_moves(old, new)
                took.append(time.process_time() - start_s)
            quick_s = sorted(took)[REPEATS // 2]
            line = f"{nodes:>6} nodes  {quick_s * 1e3:7.2f} ms  {len(found.moved):>5} jobs move, {len(by_name(old, new).moved):>5} by name"
            if nodes <= LITERAL_UP_TO:
                start_s = time.process_time()
                cost = migration_cost(old, new)
                took_s = time.process_time() - start_s
                assert abs(cost - found.cost) < 1e-9
                line += f"  literal {took_s * 1e3:7.1f} ms  {took_s / quick_s:4.0f}x"
            print(line)


if __name__ == "__main__":
    main()
