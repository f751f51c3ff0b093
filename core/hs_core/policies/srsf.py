"""Shortest remaining service first (Tiresias, NSDI'19, 3.1: remaining time x GPUs); preemptive; Tiresias with known durations, FFT's baseline.

A class that was not measured on any model that its job may have goes first, jobs whose number of steps is not known go last (`Lengths.rank`).
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict


def _times(seconds: float | None, gang: int) -> float | None:
    return None if seconds is None else seconds * gang


def order(snapshot: Snapshot) -> list[JobFacts]:
    lengths = Lengths(snapshot)
    return sorted(
        snapshot.jobs,
        key=lambda job: (*lengths.rank(job, _times(lengths.left_s(job), job.gang)), by_arrival(job)),
    )


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths, line = Seats(snapshot), Lengths(snapshot), order(snapshot)
    seats.serve(line)
    why = {job.id: lengths.why(job) or "jobs with less GPU-time left run first" for job in line}
    return seats.verdict({}, why, line)


SRSF = once_a_round(Policy(name="srsf", needs=Needs(every_quantum=True, lengths=True), decide=decide), order)
