"""Least attained service (Tiresias, NSDI'19, 3.2), without its queues: the jobs that had the least GPU-time run, every quantum anew."""

from hs_core.mechanism.attained import least_attained_first, why_attained
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.seats import Seats
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot)
    order = least_attained_first(snapshot)
    seats.serve(order)
    return seats.verdict({}, why_attained(order), order)


LAS = once_a_round(Policy(name="las", needs=Needs(every_quantum=True), decide=decide), least_attained_first)
