"""How long a class of jobs takes on each GPU, as policies are told: measured where it was, else as the hosts' configurations say."""

from collections.abc import Collection, Iterable, Mapping
from statistics import median

from hs_core.model import Gpu, Host
from hs_core.names import GpuId, HostName
from hs_core.speeds import GpuSpeeds

_Table = Mapping[tuple[str, HostName], tuple[float, ...]]


class Slowdowns:
    def __init__(self, measured: GpuSpeeds) -> None:
        self._measured = measured
        self._asked: tuple[int, int, frozenset[str]] | None = None
        self._answer: _Table = {}

    def table(self, classes: Collection[str], hosts: Iterable[Host], hosts_version: int) -> _Table:
        """As `Snapshot.slowdowns`; made again only where something of it may be another."""
        asked = (self._measured.version, hosts_version, frozenset(classes))
        if asked != self._asked:
            self._asked, self._answer = asked, dict(self._make(sorted(asked[2]), tuple(hosts)))
        return self._answer

    def _make(
        self, classes: Iterable[str], hosts: Collection[Host]
    ) -> Iterable[tuple[tuple[str, HostName], tuple[float, ...]]]:
        models = sorted({host.model for host in hosts})
        others = {model: self._of_all(model) for model in models}
        for job_class in classes:
            own = {model: self._measured.slowdowns(job_class, model) for model in models}
            for host in hosts:
                known = own[host.model] or others[host.model]
                times = tuple(_times(gpu, job_class, own[host.model], known) for gpu in host.healthy_gpus)
                if any(value != 1.0 for value in times):
                    yield (job_class, host.name), times

    def _of_all(self, model: str) -> dict[GpuId, float]:
        """Of every GPU the median over the classes that were measured on it: what is taken of a class that was not measured."""
        found: dict[GpuId, list[float]] = {}
        for job_class in sorted(self._measured.classes()):
            for gpu, times in self._measured.slowdowns(job_class, model).items():
                found.setdefault(gpu, []).append(times)
        return {gpu: median(times) for gpu, times in found.items()}


def _times(gpu: Gpu, job_class: str, own: Mapping[GpuId, float], known: Mapping[GpuId, float]) -> float:
    """What was measured of the class itself, what was said, what was measured of others; else 1."""
    if gpu.id in own:
        return own[gpu.id]
    return gpu.slowdown(job_class) if gpu.slowdowns else known.get(gpu.id, 1.0)
