"""Shortest remaining time first; preemptive: what is left is taken at the fastest GPU model that the job may have.

A class that was not measured on any model that its job may have goes first, jobs whose number of steps is not known go last (`Lengths.rank`).
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict


def order(snapshot: Snapshot) -> list[JobFacts]:
    lengths = Lengths(snapshot)
    return sorted(snapshot.jobs, key=lambda job: (*lengths.rank(job, lengths.left_s(job)), by_arrival(job)))


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths, line = Seats(snapshot), Lengths(snapshot), order(snapshot)
    seats.serve(line)
    why = {job.id: lengths.why(job) or "jobs with less time left run first" for job in line}
    return seats.verdict({}, why, line)


SRTF = once_a_round(Policy(name="srtf", needs=Needs(every_quantum=True, lengths=True), decide=decide), order)
