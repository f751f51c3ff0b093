"""Whether any servers could hold a job, empty as they may be: by their GPUs, their memory, and whether others reach them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hs_core.cluster.narrow import is_narrow
from hs_core.model import Host, JobSpec
from hs_core.names import HostName
from hs_core.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why no server can hold a job; `field` names the wish that stands in the way."""

    field: str
    text: str
    of_one_model: bool = False  # it lacks servers of one GPU model only: there are enough of several


@dataclass(frozen=True, slots=True)
class ServerKind:
    """Servers that are alike to any wish."""

    model: str
    memories: tuple[int, ...]  # of the GPUs that count, in bytes
    peers: bool  # it can be a part of a gang over several servers
    memory_bytes: int  # of the server; 0: not known or not asked for, so enough for all
    count: int


def kinds(
    hosts: Iterable[Host], *, healthy_only: bool = False, by_memory: bool = False
) -> tuple[ServerKind, ...]:
    """`by_memory`: for who asks for host memory, of which hardly two servers have the very same."""
    alike: Counter[tuple[str, tuple[int, ...], bool, int]] = Counter()
    for host in hosts:
        gpus = host.healthy_gpus if healthy_only else host.gpus
        if gpus:
            memories = tuple(sorted(gpu.memory_bytes for gpu in gpus))
            alike[host.model, memories, bool(host.peer), host.memory_bytes if by_memory else 0] += 1
    return tuple(ServerKind(*key, count) for key, count in sorted(alike.items()))


def misfit(
    spec: JobSpec, among: Sequence[ServerKind], *, healthy_only: bool = False, mixed: bool = False
) -> Misfit | None:
    """None where some servers could hold it (`mixed`: of several models). Each wish is looked at among the servers that meet the ones before it."""
    fitting = list(among)
    if not fitting:
        what = "a healthy GPU" if healthy_only else "GPUs"
        return Misfit(field="hosts", text=f"needs a server with {what}, and there is none")
    if spec.gpu_types:
        models = sorted({kind.model for kind in fitting})
        fitting = [kind for kind in fitting if kind.model in spec.gpu_types]
        if not fitting:
            wanted = " or ".join(spec.gpu_types)
            alike = [model for model in models if model.casefold() in map(str.casefold, spec.gpu_types)]
            meant = f": did you mean {' or '.join(alike)}?" if alike else ""
            text = f"asks for {wanted}; the servers have {', '.join(models)}{meant}"
            return Misfit(field="gpu_types", text=text)
    if spec.memory_bytes:
        there = fitting
        fitting = [kind for kind in there if not is_narrow(kind.memory_bytes, spec.memory_bytes)]
        if not fitting:
            text = f"asks for {_gib(spec.memory_bytes)} of host memory; the largest server"
            largest = max(kind.memory_bytes for kind in there)
            return Misfit(field="memory_bytes", text=f"{text}{_with_models(spec)} has {_gib(largest)}")
    most = max(memory for kind in fitting for memory in kind.memories)
    if spec.gpu_memory_bytes > most:
        text = f"asks for {_gib(spec.gpu_memory_bytes)} of memory per GPU; the largest GPU"
        return Misfit(field="gpu_memory_bytes", text=f"{text}{_of_models(spec)} has {_gib(most)}")
    sizes = [sum(memory >= spec.gpu_memory_bytes for memory in kind.memories) for kind in fitting]
    if spec.gpus > max(sizes):
        roomy = spec.gpu_memory_bytes or spec.memory_bytes
        such = f"{_of_models(spec)}{' with memory enough' if roomy else ''}"
        where = "one server" if spec.nodes == 1 else f"each of {spec.nodes} servers"
        return Misfit(
            field="gpus",
            text=f"asks for {counted(spec.gpus, 'GPU')} on {where}; the largest{such} has {max(sizes)}",
        )
    if spec.nodes > 1:
        large = [kind for kind, size in zip(fitting, sizes, strict=True) if size >= spec.gpus]
        return _too_few(spec, large, mixed=mixed)
    return None


def could_hold(spec: JobSpec, hosts: Iterable[Host], *, mixed: bool = False) -> bool:
    """Some of these servers could, on GPUs in health."""
    there = kinds(hosts, healthy_only=True, by_memory=spec.memory_bytes > 0)
    return misfit(spec, there, healthy_only=True, mixed=mixed) is None


def _too_few(spec: JobSpec, large: Sequence[ServerKind], *, mixed: bool) -> Misfit | None:
    """Of servers that are large enough each: N, unless `mixed` of one pool, which other servers can reach."""
    by_model: Counter[str] = Counter()
    for kind in large:
        by_model["any model" if mixed else kind.model] += kind.count if kind.peers else 0
    model, most = max(by_model.items(), key=lambda pool: (pool[1], pool[0]))
    if most >= spec.nodes:
        return None
    models = "" if mixed else " of one GPU model"
    memory = f" and {_gib(spec.memory_bytes)} of host memory" if spec.memory_bytes else ""
    asks = f"asks for {spec.nodes} servers{models} with {counted(spec.gpus, 'GPU')}{memory} each"
    of_one_model = not mixed and sum(by_model.values()) >= spec.nodes
    text = f"{asks}; there are at most {most} ({model})"
    unreached = sum(kind.count for kind in large if not kind.peers)
    if unreached:
        text = (
            f"{asks}; {unreached} such servers have no address for other agents, and of the others "
            f"there are at most {most} ({model})"
        )
    return Misfit(field="nodes", text=text, of_one_model=of_one_model)


class Fits:
    """Answers of `misfit`, worked out once for each wish as long as no server changes."""

    def __init__(self) -> None:
        self.mixed = False  # a job's servers may be of several models
        self._version = -1
        self._kinds: dict[tuple[bool, bool], tuple[ServerKind, ...]] = {}
        self._known: dict[tuple[object, ...], Misfit | None] = {}

    def misfit(
        self,
        spec: JobSpec,
        hosts: Mapping[HostName, Host],
        version: int,
        *,
        healthy_only: bool = False,
    ) -> Misfit | None:
        """`version` grows with every change of a server."""
        if version != self._version or len(self._known) > _MOST_WISHES:
            self._version = version
            self._known.clear()
            self._kinds.clear()
        which = healthy_only, spec.memory_bytes > 0
        if which not in self._kinds:
            self._kinds[which] = kinds(hosts.values(), healthy_only=healthy_only, by_memory=which[1])
        wish = (
            spec.gpu_types, spec.gpu_memory_bytes, spec.memory_bytes, spec.gpus, spec.nodes, healthy_only, self.mixed
        )  # fmt: skip
        if wish not in self._known:
            self._known[wish] = misfit(spec, self._kinds[which], healthy_only=healthy_only, mixed=self.mixed)
        return self._known[wish]


_MOST_WISHES = 10_000


def _of_models(spec: JobSpec) -> str:
    return f" of {' or '.join(spec.gpu_types)}" if spec.gpu_types else ""


def _with_models(spec: JobSpec) -> str:
    return f" with {' or '.join(spec.gpu_types)}" if spec.gpu_types else ""


def _gib(count: int) -> str:
    gib = count / (1 << 30)
    return f"{gib:,.0f} GiB" if gib >= 1000 else f"{gib:.4g} GiB"
