"""Classes of jobs: which are measured together."""

from hs_core.forms import Form
from hs_core.job_class import class_over, job_class
from hs_core.model import Job
from hs_core.names import JobId
from hs_core.strategy import class_as


class Classes:
    def __init__(self) -> None:
        self._known: dict[JobId, tuple[Form | None, str]] = {}  # and the form of which it is

    def of(self, row: Job) -> str:
        """In the strategy that it has, where it declares any."""
        known = self._known.get(row.id)
        if known is not None and known[0] is row.shape:
            return known[1]
        found = job_class(row.user, row.spec)
        if row.nodes != row.spec.nodes and row.spec.elastic is None:  # whose rates are told by their shape
            found = class_over(found, row.spec.nodes, row.nodes)
        found = class_as(found, row.strategy)
        self._known[row.id] = (row.shape, found)
        return found

    def forget(self, job: JobId) -> None:
        self._known.pop(job, None)
