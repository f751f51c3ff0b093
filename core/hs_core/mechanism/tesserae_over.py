"""A Tesserae policy (arXiv 2025) over any ordering of jobs.

Placed afresh each round as tight as can be, the largest gangs first, then servers of a pool renamed so that the fewest jobs migrate.
Then who waits joins a placed job of the same gang on its GPUs, where both together get more done (Algorithm 4).

Departures. Where fewer migrate if every job that can stay stays, and as many GPUs are in use, that is done. Pairs that were together stay so where that still pays.
How much two jobs slow each other is measured while they share, and assumed before (`sharing.UNMEASURED`); jobs whose memory is not known are joined only where
their classes were seen together. What is measured of parallelism strategies
is measured by jobs in their rounds (`layouts`), not offline. Speeds on GPU models are measured by runs where an administrator asks for them (`mechanism.profiling`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.profiling import profiled
from hs_core.mechanism.seats import Seats
from hs_core.names import JobId
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict

# Jobs as they come, and for people why who waits does.
Ordered = tuple[Sequence[JobFacts], Mapping[JobId, str]]


def tesserae_over(order: Callable[[Snapshot], Ordered], name: str, *, lengths: bool = False) -> Policy:
    """The policy of that name. `lengths`: the order goes by how long jobs are."""
    needs = Needs(every_quantum=True, sharing=True, strategies=True, lengths=lengths)
    return profiled(
        once_a_round(Policy(name=name, needs=needs, decide=partial(_decide, order=order))), batches=0
    )


def _decide(snapshot: Snapshot, memory: Memory, *, order: Callable[[Snapshot], Ordered]) -> Verdict:
    seats = Seats(snapshot)
    jobs, why = order(snapshot)
    seats.serve(jobs)
    return seats.verdict(memory, why, jobs, renamed=True, packs=True, strategies=True)
