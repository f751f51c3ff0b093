"""What policies see of jobs, made column by column: among a hundred thousand jobs most have to be made anew for every decision."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import repeat
from typing import Any

from hs_core.model import spans
from hs_core.names import JobId
from hs_core.policy import JobFacts
from hs_sim.model import SimJob


def _setter(name: str) -> Callable[[JobFacts, Any], None]:
    setter: Callable[[JobFacts, Any], None] = getattr(JobFacts, name).__set__
    return setter


_SETTERS = {field.name: _setter(field.name) for field in fields(JobFacts)}
_DEFAULTS = {field.name: field.default for field in fields(JobFacts) if field.default is not MISSING}


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
        default = _SETTERS.keys() - self._said.keys() - now.keys()
        found: list[JobFacts] = []
        for start in range(0, len(jobs), TOGETHER):
            some = jobs[start : start + TOGETHER]
            made = list(map(JobFacts.__new__, repeat(JobFacts, len(some))))
            for name, said in self._said.items():
                _fill(name, made, map(said.__getitem__, some))
            for name, values in become.items():
                _fill(name, made, values)
            for name in default:
                _fill(name, made, repeat(_DEFAULTS[name]))
            found += made
        return found


def _fill(name: str, made: list[JobFacts], values: Iterable[Any]) -> None:
    """They are nobody's yet: as their own __init__ would."""
    deque(map(_SETTERS[name], made, values), maxlen=0)
