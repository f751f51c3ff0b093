"""Tesserae (arXiv 2025) over finish-time fairness: its placement and its fewest migrations (3.2, 3.3), whoever will end latest first.

Late means the ratio of the time until a job ends if it runs from now on, to what it takes on one of N parts of the cluster (Themis' rho; N: jobs here).

Made of, and departing from the paper, as `mechanism.tesserae_over` says.
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.placing import by_arrival, settled_homes
from hs_core.mechanism.tesserae_over import Ordered, tesserae_over
from hs_core.mechanism.weights import pools
from hs_core.policy import JobFacts, Snapshot


def order(snapshot: Snapshot) -> Ordered:
    lengths = Lengths(snapshot)
    gpus = sum(gpus for _, gpus in pools(snapshot, settled_homes(snapshot)))

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

    jobs = sorted(snapshot.jobs, key=rank)
    why = {
        job.id: lengths.why(job)
        or f"others would end later against a fair share; its ratio is {late[job.id] or 0.0:.2f}"
        for job in jobs
    }
    return jobs, why


TESSERAE_FTF = tesserae_over(order, "tesserae-ftf", lengths=True)
