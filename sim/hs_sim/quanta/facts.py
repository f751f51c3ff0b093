"""What policies see of jobs, made column by column: among a hundred thousand jobs most have to be made anew for every decision."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, make_dataclass
from functools import lru_cache
from itertools import islice, repeat
from typing import Any

import numpy as np

from hs_core.model import spans
from hs_core.names import JobId
from hs_core.policy import JobFacts
from hs_sim.model import SimJob
from hs_sim.quanta.rows import Bools, Ints

_NAMES = [each.name for each in fields(JobFacts)]
_DEFAULTS = {each.name: each.default for each in fields(JobFacts) if each.default is not MISSING}


@lru_cache(maxsize=64)
def _draft(names: tuple[str, ...]) -> type:
    """Facts that are nobody's yet, made of these fields, in this order; the others are as they are by default.

    Of the same slots as a frozen value, which is filled at several times the cost.
    """
    given = [(name, Any) for name in names]
    others = [(name, Any, field(default=_DEFAULTS[name])) for name in _NAMES if name not in names]
    return make_dataclass("_Draft", [*given, *others], slots=True, eq=False, repr=False)


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

        # Most workloads leave most of it as it is by default.
        for name in _DEFAULTS.keys() & self._said.keys():
            if self._said[name].count(_DEFAULTS[name]) == len(jobs):
                del self._said[name]

    def facts(self, jobs: Sequence[int], now: Mapping[str, Iterable[Any]]) -> list[JobFacts]:
        """Of these. `now`: what has become of them, by field. What is in neither is as it is by default."""
        become = {name: iter(values) for name, values in now.items()}
        names = tuple(name for name in _NAMES if name in become or name in self._said)
        draft = _draft(names)
        found: list[JobFacts] = []
        for start in range(0, len(jobs), TOGETHER):
            some = jobs[start : start + TOGETHER]
            drafts: list[Any] = list(map(draft, *(self._column(name, some, become) for name in names)))
            deque(map(setattr, drafts, repeat("__class__"), repeat(JobFacts)), maxlen=0)
            found += drafts
        return found

    def _column(self, name: str, jobs: Sequence[int], become: Mapping[str, Iterator[Any]]) -> Iterable[Any]:
        if name in become:
            return islice(become[name], len(jobs))
        return map(self._said[name].__getitem__, jobs)


class Facts:
    """Of every job what was made of it last, and made anew where something has changed since. Mutable."""

    def __init__(self, jobs: Sequence[SimJob]) -> None:
        self._columns = Columns(jobs)
        self._made: list[Any] = [None] * len(jobs)
        self._odd: Bools = np.ones(len(jobs), dtype=np.bool_)  # something of them has changed

    def changed(self, jobs: int | Sequence[int] | Ints) -> None:
        self._odd[jobs] = True

    def forget(self, job: int) -> None:
        self._made[job] = None
        self._odd[job] = True

    def of(self, jobs: Ints, now: Callable[[Ints], Mapping[str, Iterable[Any]]]) -> tuple[JobFacts, ...]:
        """`now`: what has become of jobs, by field."""
        anew = jobs[self._odd[jobs]]
        if anew.size:
            made = self._columns.facts(anew.tolist(), now(anew))
            for job, facts in zip(anew.tolist(), made, strict=True):
                self._made[job] = facts
            self._odd[anew] = False
        return tuple(
            self._made if jobs.size == len(self._made) else map(self._made.__getitem__, jobs.tolist())
        )
