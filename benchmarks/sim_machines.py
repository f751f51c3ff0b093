"""Messages per second of depth *machines* on one core.

A message is an event that a machine handles, or an order that it gives. Goal: 30,000.
"""

import time

from hs_core.names import UserName
from hs_sim.machines import World
from hs_sim.model import ClusterSpec, Experiment, Pool, SimJob, Workload

RUNS = 3


def experiment(servers: int, jobs: int, hours: float) -> Experiment:
    users = [UserName(f"user{n}") for n in range(8)]
    return Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=servers, gpus_per_server=4),)),
        workload=Workload(
            name="benchmark",
            jobs=tuple(
                SimJob(
                    id=n,
                    user=users[n % 8],
                    arrival_s=0.5 * n,
                    steps=10**9,
                    job_class="c",
                    gpus=(1, 1, 2, 4)[n % 4],
                )
                for n in range(1, jobs + 1)
            ),
            tickets=dict.fromkeys(users, 100.0),
            rates={("c", "V100"): 10.0},
        ),
        until_s=3600.0 * hours,
    )


def main() -> None:
    print(f"CPU time, best of {RUNS}; a message is an event that a machine handles or an order that it gives")
    for servers, jobs, hours in ((1, 8, 10.0), (10, 60, 1.0), (50, 300, 0.25)):
        best = 0.0
        world = None
        for _ in range(RUNS):
            world = World(experiment(servers, jobs, hours))
            began_s = time.process_time()
            world.run()
            best = max(best, world.messages / (time.process_time() - began_s))
        assert world is not None
        print(
            f"{servers:>4} servers, {jobs:>4} jobs, {hours:g} h: {best:9,.0f} messages/s "
            f"({world.messages:,} messages, {world.controller.handled:,} of them to the controller)"
        )


if __name__ == "__main__":
    main()
