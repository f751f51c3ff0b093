"""In words: what keeps those from a turn who have none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from hs_core.mechanism.behind_trials import BehindTrials
from hs_core.mechanism.idle_elsewhere import IdleElsewhere
from hs_core.mechanism.placing import Home, is_lost, room_needed, runs_at, why_nowhere
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.words import counted


class Nowhere:
    """Jobs that are alike to servers are looked at once."""

    def __init__(self, hosts: Sequence[HostFacts]) -> None:
        self._hosts = hosts
        self._found: dict[tuple[object, ...], str] = {}

    def why(self, job: JobFacts, *, mixed: bool = False, over: tuple[int, ...] = ()) -> str:
        """Why no servers take it, as it asks or `over` any of these numbers of them; empty if they could."""
        like = *room_needed(job, job.gpu_types), over
        found = self._found.get(like)
        if found is None:
            hosts = self._hosts
            laid = any(not why_nowhere(replace(job, nodes=nodes), hosts, mixed=mixed) for nodes in over)
            found = self._found[like] = "" if laid else why_nowhere(job, hosts, mixed=mixed)
        return found


class Decided(Protocol):
    """Who has a turn and who has not: `Slots`."""

    nowhere: Nowhere

    @property
    def moves_left(self) -> int: ...

    def home(self, job: JobFacts) -> Home: ...

    def has_turn(self, job: JobFacts) -> bool: ...

    def goes(self, job: JobFacts) -> bool: ...

    def reachable(self, job: JobFacts) -> bool: ...

    def outrun(self, job: JobFacts, home: Home) -> bool: ...

    def has_room(self, job: JobFacts, home: Home) -> bool: ...


class Obstacles:
    """Of a decision that is made. `free`: GPUs of each server that nobody has in this quantum; `mixed`, `spreads`: as `Slots.verdict` has it."""

    def __init__(
        self,
        decided: Decided,
        snapshot: Snapshot,
        free: Mapping[HostName, int],
        *,
        mixed: bool,
        spreads: bool,
    ) -> None:
        self._decided, self._snapshot, self._free = decided, snapshot, free
        self._hosts = {host.name: host for host in snapshot.hosts}
        self._mixed, self._spreads = mixed, spreads

    def whys(self, why: Mapping[JobId, str], stays: str) -> dict[JobId, tuple[str, bool]]:
        """And whether it is the policy who says so: nothing else keeps it from a turn. `why`, `stays`: as `Slots.verdict` has it."""
        decided = self._decided
        elsewhere = IdleElsewhere(
            self._snapshot.hosts, self._free, moves_left=decided.moves_left, stays=stays
        )
        trials = BehindTrials(self._snapshot, self._free)
        waiting = [job for job in self._snapshot.jobs if not decided.has_turn(job)]
        found = {job.id: self._obstacle(job) for job in waiting}
        return {
            job.id: (found[job.id], False) if found[job.id] else self._waits(job, why, trials, elsewhere)
            for job in waiting
        }

    def _waits(
        self, job: JobFacts, why: Mapping[JobId, str], trials: BehindTrials, elsewhere: IdleElsewhere
    ) -> tuple[str, bool]:
        """It could have a turn where it lives, or has no home: what the policy says, and what it does not know."""
        decided, home = self._decided, self._decided.home(job)
        if not home:
            measured = trials.say(job, None)
            return measured or why.get(job.id, "waiting for free GPUs"), not measured
        if decided.outrun(job, home):
            return f"its process cannot leave its GPUs on {home[0]}, where another has its turn", True
        said = why.get(job.id, f"waiting for its turn on {home[0]}")
        if not decided.reachable(job) or decided.has_room(job, home):
            return said, True
        measured = trials.say(job, home)
        said, idle = measured or said, elsewhere.say(job, home)
        return f"{said}; {idle}" if idle else said, not measured

    def _obstacle(self, job: JobFacts) -> str:
        """What keeps it from any turn, whoever else has one; empty: nothing."""
        home = self._decided.home(job)
        if job.going is not None and self._decided.goes(job):
            return f"it is on its way to {', '.join(job.going.hosts)}"
        if is_lost(job, self._hosts):
            return f"its server {lost(job, self._hosts)} is not part of the cluster now"
        if not home:
            over = job.spreads if self._spreads else ()
            return self._decided.nowhere.why(job, mixed=self._mixed, over=over)
        if away := [name for name in home if not self._hosts[name].connected]:
            return f"its server {away[0]} is away"
        if not runs_at(job, home, self._hosts):
            short = min((self._hosts[name] for name in home), key=lambda host: (host.gpus, host.name))
            return f"its server {short.name} has only {counted(short.gpus, 'GPU')} in health, it needs {job.per_node}"
        return ""


def lost(job: JobFacts, known: Mapping[HostName, object]) -> HostName:
    """The first server of its home that is not in the snapshot."""
    return next(name for name in job.hosts if name not in known)
