"""Shortest job first by expected length, without preemption: who runs keeps its GPUs to its end; of those that wait the shortest that fits starts.

A class that was not measured on any model that its job may have goes first, jobs whose number of steps is not known go last (`Lengths.rank`).
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths = Seats(snapshot), Lengths(snapshot)
    order = sorted(snapshot.jobs, key=lambda job: (*lengths.rank(job, lengths.total_s(job)), by_arrival(job)))
    kept = seats.kept(order)
    waiting = [job for job in order if job.id not in kept]
    seats.serve(waiting)
    why = {
        job.id: lengths.why(job) or "shorter jobs start first, and nobody is put aside for it"
        for job in order
    }
    return seats.verdict({}, why, waiting)


SJF = Policy(name="sjf", needs=Needs(preemptive=False, lengths=True), decide=decide)
