"""Which GPUs of a server jobs are bound to, where GPUs of one model are not equally fast; elsewhere nobody needs to know.

A job goes by the slowest of its GPUs. It keeps those that it has until a turn names others, or somebody else computes on one of them. To go to GPUs that
a turn names costs what it costs a host: a checkpoint written, a start, the checkpoint read. To get out of another's way costs nothing here.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from hs_core.names import HostName
from hs_sim.cluster import slowed_servers
from hs_sim.model import Costs, Experiment
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.turns import Turns

Bound = dict[int, tuple[int, ...]]
"""By server, the GPUs (by number) of one job."""


class Gpus:
    def __init__(self, fleet: Fleet, turns: Turns, moving: Container[int], experiment: Experiment) -> None:
        """`moving`: jobs that write a checkpoint, on the GPUs that they have, to go to another server."""
        self._fleet = fleet
        self._moving = moving
        self._turns = turns
        self._costs: Costs = experiment.costs
        self._times = Slowdowns(fleet, experiment)
        self.any = self._times.any
        self._bound: dict[int, Bound] = {}
        self.changes = 0  # to GPUs that a turn named, of processes that had others there

    def known(self) -> Mapping[tuple[str, HostName], tuple[float, ...]]:
        return self._times

    def seat(self, running: Iterable[int]) -> list[tuple[int, float, float]]:
        """(job, how many times as long its mini-batches take, seconds lost) of those for whom something is another now."""
        jobs = sorted(running)
        used: dict[int, set[int]] = {}
        placed: dict[int, Bound] = {}
        for wish in (self._named, self._kept):
            for job in jobs:
                if job in placed:
                    continue
                found = wish(job)
                if found is not None and all(
                    used.get(row, set()).isdisjoint(gpus) for row, gpus in found.items()
                ):
                    placed[job] = found
                    _use(used, found)
        for job in jobs:
            if job not in placed:
                placed[job] = found = self._any(job, used)
                _use(used, found)
        return [change for job in jobs if (change := self._take(job, placed[job])) is not None]

    def _named(self, job: int) -> Bound | None:
        """By the turns of all its servers."""
        found = self._turns.seats.get(job) if job not in self._moving else None
        return found if found is not None and found.keys() == set(self._fleet.home[job]) else None

    def _kept(self, job: int) -> Bound | None:
        found = self._bound.get(job)
        return found if found is not None and found.keys() == set(self._fleet.home[job]) else None

    def _any(self, job: int, used: Mapping[int, set[int]]) -> Bound:
        """Those of the lowest number that nobody computes on; guests have their partners'."""
        each = int(self._fleet.per_node[job])
        found: Bound = {}
        for row in self._fleet.home[job]:
            taken = used.get(row, set())
            free = [gpu for gpu in range(int(self._fleet.servers.gpus[row])) if gpu not in taken]
            shared = [gpu for gpu in range(int(self._fleet.servers.gpus[row])) if gpu in taken]
            found[row] = tuple([*free, *shared][:each])
        return found

    def _take(self, job: int, there: Bound) -> tuple[int, float, float] | None:
        fleet, had = self._fleet, self._kept(job)
        lost_s = 0.0
        if had is not None and had != there and there == self._named(job) and fleet.started[job]:
            read_s = float(fleet.state_bytes[job]) / self._costs.checkpoint_bytes_per_s
            lost_s = self._costs.suspend_s + 2 * read_s + self._costs.start_s
            self.changes += 1
        if had != there:
            self._bound[job] = there
            fleet.bind(job, tuple(there[row] for row in fleet.home[job]))
        times = max(self._times.of(job, row, gpu) for row, gpus in there.items() for gpu in gpus)
        if lost_s or times != float(fleet.slowed[job]):
            return job, times, lost_s
        return None


def _use(used: dict[int, set[int]], found: Bound) -> None:
    for row, gpus in found.items():
        used.setdefault(row, set()).update(gpus)


class Slowdowns(Mapping[tuple[str, HostName], tuple[float, ...]]):
    """As `Snapshot.slowdowns`: made when it is asked for, as every job may be a class of its own."""

    def __init__(self, fleet: Fleet, experiment: Experiment) -> None:
        self._fleet = fleet
        self._said: dict[HostName, Mapping[str, tuple[float, ...]]] = {}
        for name, _, said in slowed_servers(experiment.cluster):
            if said:
                self._said[name] = said
        self._made: dict[tuple[str, HostName], tuple[float, ...] | None] = {}

    @property
    def any(self) -> bool:
        return bool(self._said)

    def of(self, job: int, row: int, gpu: int) -> float:
        times = self._find(self._fleet.job_class[job], self._fleet.servers.names[row])
        return 1.0 if times is None else times[gpu]

    def _find(self, job_class: str, host: HostName) -> tuple[float, ...] | None:
        key = (job_class, host)
        if key not in self._made:
            said = self._said.get(host, {})
            self._made[key] = next(
                (t for pattern, t in said.items() if fnmatchcase(job_class, pattern)), None
            )
        return self._made[key]

    def __getitem__(self, key: tuple[str, HostName]) -> tuple[float, ...]:
        found = self._find(*key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[tuple[str, HostName]]:
        keys = ((name, host) for name in self._fleet.classes.of_workload for host in self._said)
        return (key for key in keys if self._find(*key) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
