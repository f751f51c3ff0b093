"""PAL (SC'24): who had least runs, and who feels the differences between GPUs of one model most has the even ones, on few servers.

The order is that of `las`, as in the paper, and stands until the next edge of a quantum: with every report another job would be the first, and who comes up would
be put aside before it is there. GPUs are found by `mechanism.pal`. Jobs that may be laid over any number of servers have those on which their slowest GPU
and the network together slow them least; where all GPUs of a model are alike, the fewest that they bear (`mechanism.seats`).
"""

from hs_core.mechanism.attained import attained, least_attained_first, why_attained
from hs_core.mechanism.scored import Scored, Spot, homes_of, seated
from hs_core.mechanism.seats import Seats
from hs_core.names import JobId
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot, spreads=True)
    had = attained(snapshot) | _had_at_the_edge(snapshot, memory)
    order = least_attained_first(snapshot, had)
    seats.serve(order)
    models = seats.models if snapshot.slowdowns else ()
    pools = {model: pool for model in models if (pool := Scored(snapshot, model)).uneven}
    bound = [job for job in order if seats.bound(job)]
    chosen, moves = seats.chosen(), snapshot.migrations_left
    jobs = {job.id: job for job in snapshot.jobs}
    spots: dict[JobId, tuple[Spot, ...]] = {}
    for model, pool in pools.items():
        mine = [job for job in order if chosen.get(job.id) == model]
        found = pool.place(mine, seats, bound, moves)
        homes = homes_of(jobs, found)
        moves -= sum(jobs[job].started and home != jobs[job].hosts for job, home in homes.items())
        spots |= found
    now = {"quantum": snapshot.quantum, "had": {str(job): gpu_s for job, gpu_s in sorted(had.items())}}
    verdict = seats.verdict(now, why_attained(order), order, homes=homes_of(jobs, spots))
    return seated(verdict, snapshot, pools, spots)


def _had_at_the_edge(snapshot: Snapshot, memory: Memory) -> dict[JobId, float]:
    """Of jobs that were here when this quantum was decided about first, or when they came; {} at the edge."""
    if not memory or memory["quantum"] != snapshot.quantum:
        return {}
    had = memory["had"]
    return {job.id: had[name] for job in snapshot.jobs if (name := str(job.id)) in had}


PAL = Policy(name="pal", needs=Needs(every_quantum=True, by_gpu=True, rounds=True), decide=decide)
