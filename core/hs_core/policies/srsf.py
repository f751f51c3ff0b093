"""Shortest remaining service first (Tiresias, NSDI'19, 3.1: remaining time x GPUs); preemptive; Tiresias with known durations, FFT's baseline.

A class that was not measured on any model that its job may have goes first, jobs whose number of steps is not known go last (`Lengths.rank`).
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def _times(seconds: float | None, gang: int) -> float | None:
    return None if seconds is None else seconds * gang


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths = Seats(snapshot), Lengths(snapshot)
    order = sorted(
        snapshot.jobs,
        key=lambda job: (*lengths.rank(job, _times(lengths.left_s(job), job.gang)), by_arrival(job)),
    )
    seats.serve(order)
    why = {job.id: lengths.why(job) or "jobs with less GPU-time left run first" for job in order}
    return seats.verdict({}, why, order)


SRSF = Policy(name="srsf", needs=Needs(every_quantum=True, lengths=True), decide=decide)
