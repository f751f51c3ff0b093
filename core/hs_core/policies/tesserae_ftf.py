"""Tesserae (arXiv 2025) over finish-time fairness: its placement and its fewest migrations (3.2, 3.3), whoever will end latest first.

Late means the ratio of the time until a job ends if it runs from now on, to what it takes on one of N parts of the cluster (Themis' rho; N: jobs here).

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
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths = Seats(snapshot), Lengths(snapshot)
    gpus = sum(host.gpus for host in snapshot.hosts)

    def rho(job: JobFacts) -> float | None:
        left_s, total_s = lengths.left_s(job), lengths.total_s(job)
        if left_s is None or not total_s or not gpus:
            return None
        alone_s = total_s * max(1.0, job.gang * len(snapshot.jobs) / gpus)
        return (max(0.0, snapshot.now_s - job.arrival_s) + left_s) / alone_s

    late = {job.id: rho(job) for job in snapshot.jobs}

    def rank(job: JobFacts) -> tuple[object, ...]:
        ratio = late[job.id]
        return (*lengths.rank(job, None if ratio is None else -ratio), by_arrival(job))

    order = sorted(snapshot.jobs, key=rank)
    seats.serve(order)
    why = {
        job.id: lengths.why(job)
        or f"others would end later against a fair share; its ratio is {late[job.id] or 0.0:.2f}"
        for job in order
    }
    return seats.verdict(memory, why, order, renamed=True, packs=True, strategies=True)


TESSERAE_FTF = profiled(
    once_a_round(
        Policy(
            name="tesserae-ftf",
            needs=Needs(every_quantum=True, sharing=True, strategies=True, lengths=True),
            decide=decide,
        )
    ),
    batches=0,
)
