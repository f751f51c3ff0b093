"""Tesserae (arXiv 2025) over shortest remaining time: its placement and its fewest migrations (3.2, 3.3), in the order of `srtf`.

Placed afresh each round as tight as can be, the largest gangs first, then servers of a pool renamed so that the fewest jobs migrate.
Then who waits joins a placed job of the same gang on its GPUs, where both together get more done (Algorithm 4).

Departures. Where fewer migrate if every job that can stay stays, and as many GPUs are in use, that is done. Pairs that were together stay so where that still pays.
How much two jobs slow each other is measured while they share, and assumed before (`sharing.UNMEASURED`); jobs whose memory is not known are joined only where
their classes were seen together. What is measured of parallelism strategies
is measured by jobs in their rounds (`layouts`), not offline. Speeds on GPU models are measured by runs where an administrator asks for them (`mechanism.profiling`).
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.profiling import profiled
from hs_core.mechanism.seats import Seats
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths = Seats(snapshot), Lengths(snapshot)
    order = sorted(snapshot.jobs, key=lambda job: (*lengths.rank(job, lengths.left_s(job)), by_arrival(job)))
    seats.serve(order)
    why = {job.id: lengths.why(job) or "jobs with less time left run first" for job in order}
    return seats.verdict(memory, why, order, renamed=True, packs=True, strategies=True)


TESSERAE_SRTF = profiled(
    once_a_round(
        Policy(
            name="tesserae-srtf",
            needs=Needs(every_quantum=True, sharing=True, strategies=True, lengths=True),
            decide=decide,
        )
    ),
    batches=0,
)
