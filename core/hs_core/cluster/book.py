"""The rows and what is looked up in them: one place that changes a row, so that no index can lag behind."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from hs_core.cluster.admission import Dependency, dependency
from hs_core.cluster.state import State
from hs_core.model import Host, HostName, Job, JobId, User, UserName

Key = TypeVar("Key")


class Book:
    """Jobs, users and hosts, with the indices that keep an event's cost away from the number of jobs."""

    def __init__(self, state: State, keep_ended: int) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.users: dict[UserName, User] = dict(state.users)
        self.hosts: dict[HostName, Host] = dict(state.hosts)
        self.live: dict[JobId, Job] = {}  # not ended, by id
        self.at_host: dict[HostName, set[JobId]] = {}  # live ones by home
        self.of_user: dict[UserName, set[JobId]] = {}  # live ones
        self.of_array: dict[JobId, set[JobId]] = {}  # live ones of arrays that have a limit
        self.waiters: dict[JobId, set[JobId]] = {}  # live jobs that wait for the key
        self.blocked: set[JobId] = set()  # live ones with a dependency still open
        self._ended: deque[JobId] = deque()
        self._keep_ended = keep_ended
        rows = [state.jobs[job] for job in sorted(state.jobs)]
        for row in rows:
            self.jobs[row.id] = row
        for row in rows:
            self.put(row)

    def put(self, row: Job) -> None:
        old = self.jobs.get(row.id)
        self.jobs[row.id] = row
        if row.state.ended:
            self._retire(row)
            return
        fresh = row.id not in self.live
        self.live[row.id] = row
        if fresh:
            self._enlist(row)
        if old is not None and old.host is not None and old.host != row.host:
            self.at_host[old.host].discard(row.id)
        if row.host is not None and (fresh or old is None or old.host != row.host):
            self.at_host.setdefault(row.host, set()).add(row.id)

    def _enlist(self, row: Job) -> None:
        self.of_user.setdefault(row.user, set()).add(row.id)
        if row.spec.array_id is not None and row.spec.array_limit:
            self.of_array.setdefault(row.spec.array_id, set()).add(row.id)
        for after in row.spec.after:
            self.waiters.setdefault(after.job, set()).add(row.id)
        self.reconsider(row.id)

    def _retire(self, row: Job) -> None:
        if self.live.pop(row.id, None) is not None:
            _drop(self.of_user, row.user, row.id)
            if row.spec.array_id is not None:
                _drop(self.of_array, row.spec.array_id, row.id)
            if row.host is not None:
                _drop(self.at_host, row.host, row.id)
            for after in row.spec.after:
                _drop(self.waiters, after.job, row.id)
            self.blocked.discard(row.id)
        self._ended.append(row.id)  # rows of ended jobs never change again: once each

    def reconsider(self, job: JobId) -> None:
        """Whether a live job is (still) blocked by another one."""
        row = self.live[job]
        verdicts = {self.dependency(row, i) for i in range(len(row.spec.after))}
        if verdicts <= {Dependency.MET}:
            self.blocked.discard(job)
        else:
            self.blocked.add(job)

    def dependency(self, row: Job, index: int) -> Dependency:
        after = row.spec.after[index]
        other = self.jobs.get(after.job)
        return Dependency.OPEN if other is None else dependency(after.condition, other.state)

    def evict(self, spare: Collection[JobId]) -> list[JobId]:
        """Lets go of the oldest ended jobs beyond the limit, but for these and those that live ones wait for."""
        gone: list[JobId] = []
        kept: list[JobId] = []
        while len(self._ended) + len(kept) > self._keep_ended and self._ended:
            job = self._ended.popleft()
            if job in spare or self.waiters.get(job):
                kept.append(job)
            elif self.jobs.pop(job, None) is not None:
                gone.append(job)
        self._ended.extendleft(reversed(kept))
        return gone

    def recall(self, row: Job) -> None:
        if row.id not in self.jobs:
            self.put(row)

    def at(self, host: HostName) -> list[Job]:
        return [self.live[job] for job in sorted(self.at_host.get(host, ()))]

    def live_rows(self) -> Iterator[Job]:
        return (self.live[job] for job in sorted(self.live))

    def hosts_sorted(self, names: Iterable[HostName] | None = None) -> list[Host]:
        return [self.hosts[name] for name in sorted(self.hosts if names is None else names)]

    def beyond_array_limit(self) -> set[JobId]:
        """Live jobs without a home for which their array has no room now; the lowest ids come first."""
        held: set[JobId] = set()
        for members in self.of_array.values():
            rows = [self.live[job] for job in sorted(members)]
            room = rows[0].spec.array_limit - sum(row.host is not None for row in rows) if rows else 0
            for row in rows:
                if row.host is not None or row.paused or row.id in self.blocked:
                    continue
                if room > 0:
                    room -= 1
                else:
                    held.add(row.id)
        return held


def _drop(index: dict[Key, set[JobId]], key: Key, job: JobId) -> None:
    members = index.get(key)
    if members is not None:
        members.discard(job)
        if not members:
            del index[key]
