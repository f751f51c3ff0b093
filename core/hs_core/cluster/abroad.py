"""Jobs that were sent to other servers than they trained on, and have not done a step there: who fails so has not failed, as what it needs may be missing there.

In memory only: a controller that takes office lets each of them try as often once more.
"""

from hs_core.model import Job, Stored
from hs_core.names import HostName, JobId
from hs_core.reports import FOLLOWED, JobReport

MOST_STARTS = 2  # that fail so; then its script is to blame
LONGEST_START_S = 3600.0  # in its turns, until its first step


class Abroad:
    """Mutable."""

    def __init__(self) -> None:
        self._arrived: dict[JobId, int] = {}  # that took up their checkpoints there, and at which step
        self._failed: dict[JobId, dict[HostName, str]] = {}  # on which servers they failed, and how
        self._times: dict[JobId, int] = {}  # so often, since they did a step
        self._from: dict[JobId, int] = {}  # and these began from there, at most

    def arrives(self, row: Job, stored: Stored, step: int) -> None:
        """A process of it stands where its checkpoint ended."""
        if row.id in self._times or not stored.is_at(row.hosts):
            self._arrived[row.id] = step

    def says(self, job: JobId, part: JobReport) -> None:
        """Where its process found less than it was to go on from, it has not arrived, and trains all the same. Who has found more than there was as it failed has
        trained since, on a server that was not heard."""
        if part.checkpoint_step > self._from.get(job, part.checkpoint_step):
            self.forget(job)
        began_step = self._arrived.get(job)
        if began_step is None and job in self._times:
            began_step = part.began_step if part.began_step >= 0 else None
        if began_step is not None and part.step > began_step:
            self.forget(job)

    def fails(self, row: Job, servers: tuple[HostName, ...], how: str) -> None:
        job = row.id
        found = [part.checkpoint_step for part in row.reports.values()]
        known = row.stored.step if row.stored is not None else 0
        self._times[job] = self._times.get(job, 0) + 1
        self._from[job] = max(self._from.get(job, 0), self._arrived.get(job, 0), known, *found)
        self._failed.setdefault(job, {}).update(dict.fromkeys(servers, how))

    def begins_anew(self, job: JobId) -> None:
        """In another incarnation, or somewhere else."""
        self._arrived.pop(job, None)

    def forget(self, job: JobId) -> None:
        """It trains, or is no more."""
        for of in (self._arrived, self._failed, self._times, self._from):
            of.pop(job, None)

    def may_go_to(self, host: HostName) -> set[JobId]:
        """Again, as what was missing there is there now, most likely: those of which nothing else kept them away."""
        there = {job for job, servers in self._failed.items() if host in servers}
        for job in there:
            del self._failed[job][host]
        return there

    def failed(self, job: JobId) -> dict[HostName, str]:
        return self._failed.get(job, {})

    def may_try(self, job: JobId) -> bool:
        """Once more."""
        return self._times.get(job, 0) < MOST_STARTS

    def may_fail(self, row: Job) -> bool:
        """At its start, where it is, and go on from what it has all the same."""
        if row.portions or not self.may_try(row.id):
            return False
        return self._is_there(row) and not any(self._trained(row, part) for part in row.reports.values())

    def _is_there(self, row: Job) -> bool:
        """It was sent: its user did not do that."""
        stored = row.stored
        if row.id in self._arrived:
            return True
        if stored is None:
            return row.origin is not None and not row.origin.copies and not row.origin.is_at(row.hosts)
        if stored.copies or (stored.is_at(row.hosts) and row.id not in self._times):
            return False
        return not stored.is_unknown or row.first_run_s is not None  # else it never stood anywhere

    def _trained(self, row: Job, part: JobReport) -> bool:
        """It did a step there; of one whose steps nobody counts, it has written a checkpoint, or run for long."""
        known = row.stored or row.origin
        wrote = known is not None and not _is_sought(known) and part.checkpoint_generation > known.generation
        stepped = part.step > self._began_at(row, part.began_step, part.checkpoint_step)
        return stepped or wrote or part.run_s > LONGEST_START_S

    def _began_at(self, row: Job, began_step: int, checkpoint_step: int) -> int:
        """Of what is looked for the one that is found may be newer than what is known."""
        stored = row.stored
        if began_step >= 0 or stored is None:
            came_with = row.origin.step if row.origin is not None else 0
            return max(began_step, self._arrived.get(row.id, came_with))
        return max(stored.step, checkpoint_step) if _is_sought(stored) else stored.step

    def suspects(self, row: Job) -> tuple[HostName, ...]:
        """Servers that may lack something: of a gang that on which it ended first, if it was not there before, else all that are new to it."""
        stored = row.stored or row.origin
        new = [name for name in row.hosts if stored is None or name not in stored.hosts]
        first = [name for name in new if _ended_by_itself(row, name)]
        return tuple(first or new)


def _is_sought(stored: Stored) -> bool:
    """What is found may be newer."""
    return stored.in_folder or stored.surpassed


def _ended_by_itself(row: Job, name: HostName) -> bool:
    part = row.reports.get(name)
    ended = part.exit if part is not None else None
    return ended is not None and not ended.ok and ended.why != FOLLOWED
