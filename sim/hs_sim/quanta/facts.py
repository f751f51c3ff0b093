"""What policies see of jobs, made column by column: among a hundred thousand jobs most have to be made anew for every decision."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, make_dataclass
from itertools import islice, repeat
from typing import Any

from hs_core.model import spans
from hs_core.names import JobId
from hs_core.policy import JobFacts
from hs_sim.model import SimJob

_NAMES = [field.name for field in fields(JobFacts)]
_DEFAULTS = {field.name: field.default for field in fields(JobFacts) if field.default is not MISSING}
_Draft = make_dataclass("_Draft", _NAMES, slots=True, eq=False, repr=False)
"""Facts that are nobody's yet, with the same slots: a frozen value's are filled one by one, from outside, at several times the cost."""


TOGETHER = 4096  # jobs whose facts are made at once: so many stay in the cache, column by column


class Columns:
    """What users said of their jobs, as `JobFacts` has it: by field a list over all jobs of the workload."""

    def __init__(self, jobs: Sequence[SimJob]) -> None:
        self._said: dict[str, list[Any]] = {
            "id": [JobId(job.id) for job in jobs],
            "user": [job.user for job in jobs],
            "gang": [job.gang for job in jobs],
            "arrival_s": [job.arrival_s for job in jobs],
            "priority": [job.priority for job in jobs],
            "gpu_types": [job.gpu_types for job in jobs],
            "gpu_memory_bytes": [job.gpu_memory_bytes for job in jobs],
            "fixed_bytes": [job.gpu_memory_fixed_bytes for job in jobs],
            "accumulation_max": [job.accumulation_max for job in jobs],
            "migrate": [job.migrate for job in jobs],
            "state_bytes": [job.state_bytes for job in jobs],
            "sliceable": [job.sliceable for job in jobs],
            "dataset": [job.dataset for job in jobs],
            "strategies": [job.strategies for job in jobs],
            "spans": [spans(job.spec()) if job.elastic is not None else False for job in jobs],
        }

    def facts(self, jobs: Sequence[int], now: Mapping[str, Iterable[Any]]) -> list[JobFacts]:
        """Of these. `now`: what has become of them, by field. What is in neither is as it is by default."""
        become = {name: iter(values) for name, values in now.items()}
        found: list[JobFacts] = []
        for start in range(0, len(jobs), TOGETHER):
            some = jobs[start : start + TOGETHER]
            columns = [self._column(name, some, become) for name in _NAMES]
            drafts: list[Any] = list(map(_Draft, *columns))
            deque(map(setattr, drafts, repeat("__class__"), repeat(JobFacts)), maxlen=0)
            found += drafts
        return found

    def _column(self, name: str, jobs: Sequence[int], become: Mapping[str, Iterator[Any]]) -> Iterable[Any]:
        if name in become:
            return islice(become[name], len(jobs))
        said = self._said.get(name)
        return repeat(_DEFAULTS[name], len(jobs)) if said is None else map(said.__getitem__, jobs)
