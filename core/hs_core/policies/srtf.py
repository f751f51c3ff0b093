"""Shortest remaining time first; preemptive: what is left is taken at the fastest GPU model that the job may have.

A class that was not measured on any model that its job may have goes first, jobs whose number of steps is not known go last (`Lengths.rank`).
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths = Seats(snapshot), Lengths(snapshot)
    order = sorted(snapshot.jobs, key=lambda job: (*lengths.rank(job, lengths.left_s(job)), by_arrival(job)))
    seats.serve(order)
    why = {job.id: lengths.why(job) or "jobs with less time left run first" for job in order}
    return seats.verdict({}, why, order)


SRTF = Policy(name="srtf", needs=Needs(every_quantum=True, lengths=True), decide=decide)
