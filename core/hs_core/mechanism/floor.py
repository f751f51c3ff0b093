"""The servers of a decision, whatever lives there: by pool, and what fits where."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.placing import fits, models_of, takes_new
from hs_core.names import HostName
from hs_core.newest import Newest
from hs_core.policy import HostFacts, JobFacts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Key = tuple[int, int, int, tuple[str, ...], frozenset[HostName]]
"""Of a job, what decides which pools could take it."""


class Shape(NamedTuple):
    """What decides where a job fits."""

    per_node: int
    nodes: int
    memory_bytes: int
    models: tuple[str, ...]
    barred: frozenset[HostName] = frozenset()


def shape_of(job: JobFacts) -> Shape:
    return Shape(job.per_node, job.nodes, job.gpu_memory_bytes, job.gpu_types, job.barred)


@dataclass(frozen=True, slots=True)
class _Rack:
    """Servers that are alike in all that a job can ask for."""

    model: str
    gpus: int
    memory_bytes: int
    takes_new: bool
    expected: bool


def _rack(host: HostFacts) -> _Rack:
    return _Rack(host.model, host.gpus, host.gpu_memory_bytes, takes_new(host), _is_expected(host))


def _is_expected(host: HostFacts) -> bool:
    """It will take new jobs once it has been heard of."""
    return host.expected and host.accepts and host.starts


class Servers:
    """Those of one model, by name, as arrays."""

    def __init__(self, hosts: Iterable[HostFacts]) -> None:
        there = list(hosts)
        self.names: list[HostName] = [host.name for host in there]
        self.index = {name: at for at, name in enumerate(self.names)}
        self.gpus: Ints = np.array([host.gpus for host in there], dtype=np.int64)
        self.memory: Ints = np.array([host.gpu_memory_bytes for host in there], dtype=np.int64)
        self.accepts: Bools = np.array([takes_new(host) for host in there], dtype=bool)
        self.width: Ints = np.maximum(self.gpus, 1)
        self._fits: dict[Shape, Bools] = {}

    def fits(self, shape: Shape) -> Bools:
        found = self._fits.get(shape)
        if found is None:
            found = (shape.per_node <= self.gpus) & (shape.memory_bytes <= self.memory) & self.accepts
            found[[self.index[name] for name in shape.barred if name in self.index]] = False
            self._fits[shape] = found
        return found


class Floor:
    """The servers, whatever lives there."""

    def __init__(self, hosts: Sequence[HostFacts]) -> None:
        self.hosts = {host.name: host for host in sorted(hosts, key=lambda host: host.name)}
        self.racks: dict[_Rack, int] = {}
        for host in self.hosts.values():
            rack = _rack(host)
            self.racks[rack] = self.racks.get(rack, 0) + 1
        self.calm = {name: host for name, host in self.hosts.items() if takes_new(host)}
        self.closed = tuple([host for host in self.hosts.values() if host.name not in self.calm])
        self.models = tuple(models_of(self.hosts.values()))  # newest first
        self._open = dict.fromkeys(self.models, 0)  # GPUs of those that take new jobs
        for host in self.calm.values():
            self._open[host.model] += host.gpus
        self.away = any(not host.connected for host in self.hosts.values())
        self.drained = any(not host.accepts for host in self.hosts.values())
        self._fitting: dict[tuple[str, Shape], tuple[HostFacts, ...]] = {}
        self._names_fitting: dict[tuple[str, Shape], frozenset[HostName]] = {}
        self.servers = {
            model: Servers(host for host in self.hosts.values() if host.model == model)
            for model in self.models
        }
        self._usable: dict[_Key, tuple[str, ...]] = {}
        self._wanted: dict[_Key, tuple[str, ...]] | None = None  # None: the same
        if any(map(_is_expected, self.closed)):
            self._wanted = {}

    def pools(self, asked: Callable[[HostName], int]) -> list[tuple[str, int]]:
        """(model, GPUs that jobs can have), newest first. `asked`: GPUs that the jobs of a server ask for.

        One that takes no new jobs (drained, away, unable to start any) has as many as those that live there ask for. Were the others counted, users
        with many jobs would be entitled to GPUs that nobody can have, and be paid with those of users with few. Of one that is expected all count: it
        is back in a moment, and trades would be taken back for it.
        """
        sizes = dict(self._open)
        for host in self.closed:
            sizes[host.model] += host.gpus if _is_expected(host) else min(host.gpus, asked(host.name))
        return list(sizes.items())

    def usable(self, job: JobFacts) -> tuple[str, ...]:
        """Pools that could take the job, newest first."""
        return self._kept(self._usable, job, awaited=False)

    def wanted(self, job: JobFacts) -> tuple[str, ...]:
        """Pools that it is demand for: also those that could take it once all servers are there that are expected."""
        return self.usable(job) if self._wanted is None else self._kept(self._wanted, job, awaited=True)

    def _kept(self, known: dict[_Key, tuple[str, ...]], job: JobFacts, *, awaited: bool) -> tuple[str, ...]:
        key = (job.gang, job.nodes, job.gpu_memory_bytes, job.gpu_types, job.barred)
        found = known.get(key)
        if found is None:
            found = known[key] = self._find(shape_of(job), awaited=awaited)
        return found

    def _find(self, shape: Shape, *, awaited: bool) -> tuple[str, ...]:
        servers: dict[str, int] = {}
        barred = Counter(_rack(self.hosts[name]) for name in shape.barred if name in self.hosts)
        for rack, count in self.racks.items():
            fits = shape.per_node <= rack.gpus and shape.memory_bytes <= rack.memory_bytes
            takes = rack.takes_new or (awaited and rack.expected)
            if takes and fits and (not shape.models or rack.model in shape.models):
                servers[rack.model] = servers.get(rack.model, 0) + count - barred[rack]
        return tuple(model for model in self.models if servers.get(model, 0) >= shape.nodes)

    def fitting(self, job: JobFacts, model: str) -> tuple[HostFacts, ...]:
        """Servers of the pool that take new jobs and could take it, or its part of it, by name."""
        key = (model, shape_of(job))
        found = self._fitting.get(key)
        if found is None:
            there = (host for host in self.calm.values() if host.model == model)
            found = self._fitting[key] = tuple(host for host in there if fits(job, host))
        return found

    def names_fitting(self, job: JobFacts, model: str) -> frozenset[HostName]:
        """The same by their names."""
        key = (model, shape_of(job))
        found = self._names_fitting.get(key)
        if found is None:
            found = self._names_fitting[key] = frozenset([host.name for host in self.fitting(job, model)])
        return found

    def usable_from(self, job: JobFacts, own: str) -> tuple[str, ...]:
        """The same with the pool where it lives."""
        return self._with(self.usable(job), own)

    def wanted_from(self, job: JobFacts, own: str) -> tuple[str, ...]:
        """The same of what it is demand for."""
        return self._with(self.wanted(job), own)

    def _with(self, models: tuple[str, ...], own: str) -> tuple[str, ...]:
        return models if own in models else tuple(m for m in self.models if m in models or m == own)


floor: Newest[tuple[HostFacts, ...], Floor] = Newest(Floor)
"""Taken again only for other servers than the last."""
