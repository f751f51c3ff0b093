"""Tesserae (arXiv 2025) over least attained service: its placement and its fewest migrations (3.2, 3.3), in the order of `las`.

Made of, and departing from the paper, as `mechanism.tesserae_over` says.
"""

from hs_core.mechanism.attained import least_attained_first, why_attained
from hs_core.mechanism.tesserae_over import Ordered, tesserae_over
from hs_core.policy import Snapshot


def order(snapshot: Snapshot) -> Ordered:
    jobs = least_attained_first(snapshot)
    return jobs, why_attained(jobs)


TESSERAE_LAS = tesserae_over(order, "tesserae-las")
