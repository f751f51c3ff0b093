"""Tesserae (arXiv 2025) over shortest remaining time: its placement and its fewest migrations (3.2, 3.3), in the order of `srtf`.

Placed afresh each round as tight as can be, the largest gangs first, then servers of a pool renamed so that the fewest jobs migrate.

Departures. Where fewer migrate if every job that can stay stays, and as many GPUs are in use, that is done. Packing (3.2, Algorithm 4), two jobs on
one GPU, is left out: agents give a GPU to one job at a time.
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths = Seats(snapshot), Lengths(snapshot)
    order = sorted(snapshot.jobs, key=lambda job: (*lengths.rank(job, lengths.left_s(job)), by_arrival(job)))
    seats.serve(order)
    why = {job.id: lengths.why(job) or "jobs with less time left run first" for job in order}
    return seats.verdict({}, why, order, renamed=True)


TESSERAE_SRTF = once_a_round(
    Policy(name="tesserae-srtf", needs=Needs(every_quantum=True, lengths=True), decide=decide)
)
