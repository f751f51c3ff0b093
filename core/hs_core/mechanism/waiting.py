"""Why a job that does not run does not, in a line for people. Worked out when somebody asks: of most nobody does."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from hs_core.mechanism.loads import Board
from hs_core.mechanism.obstacles import lost
from hs_core.mechanism.placing import Home, why_nowhere
from hs_core.mechanism.world import World
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts
from hs_core.wanted import Turn
from hs_core.words import counted


class Waiting(Mapping[JobId, str]):
    """Of a decision that is made: what it looks at does not change any more."""

    def __init__(self, world: World, board: Board, turns: Mapping[HostName, Turn]) -> None:
        self._world, self._board, self._turns = world, board, turns
        self._nowhere: dict[tuple[Any, ...], str] = {}
        self._loads: dict[HostName, float] = {}

    @cached_property
    def _jobs(self) -> dict[JobId, JobFacts]:
        return {job.id: job for job in self._world.jobs}

    @cached_property
    def _away(self) -> set[HostName]:
        return {name for name, host in self._world.hosts.items() if not host.connected}

    def __iter__(self) -> Iterator[JobId]:
        return (job.id for job in self._world.jobs if not self._runs(job))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, job_id: JobId) -> str:
        job = self._jobs[job_id]
        if self._runs(job):
            raise KeyError(job_id)
        world = self._world
        home = world.homes.get(job_id)
        if home is None:
            return _why_homeless(world, job, self._nowhere)
        part = self._board.per_gpu(job.user, world.model(world.where(job)))
        return _why_odd(world, job, self._away) or _why_waiting(job, part, *self._fullest(home))

    def _fullest(self, home: Home) -> tuple[str, float]:
        """Of its servers the one whose jobs need the most time, in words, and how much that is."""
        for name in home:
            if name not in self._loads:
                self._loads[name] = self._board.time_load(name)
        at = max(home, key=lambda name: (self._loads[name], name))
        where = at if len(home) == 1 else f"{len(home)} servers, of which {at} is the fullest"
        return where, self._loads[at]

    def _runs(self, job: JobFacts) -> bool:
        home = self._world.homes.get(job.id)
        if home is None or job.id not in self._world.snapshot.running:
            return False
        return job.nodes == 1 or job.id in _in_turn(self._turns, home)


def _why_odd(world: World, job: JobFacts, away: set[HostName]) -> str:
    home = world.homes[job.id]
    if job.id in world.unable or not away.isdisjoint(home):
        return _why_unable(world, job, home)
    if job.id in world.going or (job.started and home != job.hosts):
        return f"it is on its way to {', '.join(world.going.get(job.id, home))}"
    return ""


def _in_turn(turns: Mapping[HostName, Turn], home: Home) -> tuple[JobId, ...]:
    turn = turns.get(home[0])
    return turn.gangs if turn is not None else ()


def _why_homeless(world: World, job: JobFacts, nowhere: dict[tuple[Any, ...], str]) -> str:
    if any(name not in world.hosts for name in job.hosts) and (job.started or not job.movable):
        return f"its server {lost(job, world.hosts)} is not part of the cluster now"
    key = (job.gpu_types, job.gpu_memory_bytes, job.gang, job.nodes, job.barred)
    if key not in nowhere:
        nowhere[key] = why_nowhere(job, world.hosts.values()) or "waiting to be placed"
    return nowhere[key]


def _why_unable(world: World, job: JobFacts, home: Home) -> str:
    for name in home:
        if not world.hosts[name].connected:
            return f"its server {name} is away; what runs there goes on"
    short = min((world.hosts[name] for name in home), key=lambda host: (host.gpus, host.name))
    return f"its server {short.name} has only {counted(short.gpus, 'GPU')} in health, it needs {job.per_node}"


def _why_waiting(job: JobFacts, part: float, where: str, load: float) -> str:
    if part <= 0:
        return f"waiting for its turn on {where}: {job.user} has no share of these GPUs now"
    share = 100 * part / load if load > part else 100.0
    return f"waiting for its turn on {where}: its share is {share:.0f}% of the quanta"
