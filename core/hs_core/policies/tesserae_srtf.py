"""Tesserae (arXiv 2025) over shortest remaining time: its placement and its fewest migrations (3.2, 3.3), in the order of `srtf`.

Made of, and departing from the paper, as `mechanism.tesserae_over` says.
"""

from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.tesserae_over import Ordered, tesserae_over
from hs_core.policy import Snapshot


def order(snapshot: Snapshot) -> Ordered:
    lengths = Lengths(snapshot)
    jobs = sorted(snapshot.jobs, key=lambda job: (*lengths.rank(job, lengths.left_s(job)), by_arrival(job)))
    return jobs, {job.id: lengths.why(job) or "jobs with less time left run first" for job in jobs}


TESSERAE_SRTF = tesserae_over(order, "tesserae-srtf", lengths=True)
