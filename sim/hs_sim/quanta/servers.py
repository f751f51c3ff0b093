"""Servers as rows, in the order of the cluster, and what lies on them."""

from dataclasses import replace

import numpy as np

from hs_core.datasets import after_use
from hs_core.model import Dataset
from hs_core.names import HostName
from hs_core.policy import HostFacts
from hs_sim.cluster import servers
from hs_sim.model import ClusterSpec
from hs_sim.quanta.rows import Ints


class Servers:
    def __init__(self, cluster: ClusterSpec) -> None:
        named = list(servers(cluster))
        self.names: list[HostName] = [name for name, _ in named]
        self.row_of: dict[HostName, int] = {name: row for row, name in enumerate(self.names)}
        self.models = list(dict.fromkeys(pool.model for _, pool in named))
        self.gpus: Ints = np.array([pool.gpus_per_server for _, pool in named], dtype=np.int64)
        self.model: Ints = np.array([self.models.index(pool.model) for _, pool in named], dtype=np.int64)
        facts = (
            HostFacts(
                name=name,
                model=pool.model,
                gpus=pool.gpus_per_server,
                gpu_memory_bytes=pool.gpu_memory_bytes,
            )
            for name, pool in named
        )
        self.facts = tuple(sorted(facts, key=lambda host: host.name))
        self._cache_bytes = cluster.dataset_cache_bytes
        self._datasets: list[tuple[Dataset, ...]] = [() for _ in named]
        self._called: dict[tuple[int, ...], tuple[HostName, ...]] = {(): ()}

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, names: tuple[HostName, ...]) -> tuple[int, ...]:
        return tuple([self.row_of[name] for name in names])

    def called(self, home: tuple[int, ...]) -> tuple[HostName, ...]:
        """The names of these rows."""
        found = self._called.get(home)
        if found is None:
            found = self._called[home] = tuple(self.names[row] for row in home)
        return found

    def read(self, home: tuple[int, ...], data: Dataset) -> float:
        """Bytes of it that have to be fetched to some of these, on all of which it lies from now on."""
        missing = 0.0
        for row in home:
            before = self._datasets[row]
            if all(one.name != data.name for one in before):
                missing = float(data.bytes)
            self._datasets[row] = after_use(before, data, self._cache_bytes)
            if {one.name for one in self._datasets[row]} != {one.name for one in before}:
                self._lies(row)
        return missing

    def _lies(self, row: int) -> None:
        """Other data sets than before."""
        name, names = self.names[row], frozenset(data.name for data in self._datasets[row])
        self.facts = tuple(
            replace(host, datasets=names) if host.name == name else host for host in self.facts
        )
