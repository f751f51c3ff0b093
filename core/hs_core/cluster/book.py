"""The rows and what is looked up in them: one place that changes a row, so that no index can lag behind."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeVar

from hs_core.cluster.admission import Dependency, dependency
from hs_core.cluster.bulk import Bulk
from hs_core.cluster.state import State
from hs_core.copier import copier
from hs_core.model import AfterCondition, Host, Job, User
from hs_core.names import GpuId, HostName, JobId, UserName

Key = TypeVar("Key")

row_with = copier(Job)


class Book:
    """Jobs, users and hosts, with the indices that keep an event's cost away from the number of jobs."""

    def __init__(self, state: State, keep_ended: int, keep_ended_bytes: int) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.users: dict[UserName, User] = dict(state.users)
        self.hosts: dict[HostName, Host] = dict(state.hosts)
        self.gpus = {host.name: _gpus(host) for host in self.hosts.values()}
        self.draining = {host.name for host in self.hosts.values() if host.drain is not None}
        self.live: dict[JobId, Job] = {}  # not ended, by id
        self.at_host: dict[HostName, set[JobId]] = {}  # live ones that have a part there
        self.unconfirmed: dict[
            HostName, set[JobId]
        ] = {}  # live ones that wait for its word (`Job.unconfirmed`)
        self.lent: dict[HostName, set[JobId]] = {}  # live ones whose checkpoint it keeps (`Job.stored`)
        self.moving: set[JobId] = set()
        self.forked: set[JobId] = set()  # live ones that train as copies
        self.spanning: set[JobId] = set()  # live ones over several servers that have a home
        self.spanned: Counter[HostName] = Counter()  # how many of those have a part there
        self.of_user: dict[UserName, set[JobId]] = {}  # live ones
        self.of_array: dict[JobId, set[JobId]] = {}  # live ones of arrays that have a limit
        self.waiters: dict[
            JobId, dict[JobId, tuple[AfterCondition, ...]]
        ] = {}  # live jobs that wait for the key, and under which conditions
        self._open: dict[JobId, int] = {}  # of a live job: how many it still waits for
        self.blocked: set[JobId] = set()  # live ones with a dependency still open
        self.changed: set[JobId] = set()  # since somebody looked (`Sight`) …
        self.counted: set[JobId] = (
            set()
        )  # … and those that received or did something, and nothing else changed
        self.hosts_version = 0  # grows when a host's row changes
        self._sorted: tuple[Host, ...] | None = None  # what was made of the hosts of that version
        self._models: frozenset[str] | None = None
        self._conditions: dict[
            tuple[AfterCondition, ...], tuple[AfterCondition, ...]
        ] = {}  # each once: those who wait are many
        self._held: dict[JobId, set[JobId]] = {}  # by array: those that have to wait
        self._first: dict[JobId, list[JobId]] = {}  # by array: before those, without a home themselves
        self._recount: set[JobId] = set()  # arrays to be looked at again
        self.bulk = Bulk(keep_ended, keep_ended_bytes)
        rows = [state.jobs[job] for job in sorted(state.jobs)]
        for row in rows:
            self.jobs[row.id] = row
        for row in rows:
            self.put(row)

    def put(self, row: Job, *, counters: bool = False) -> None:
        """`counters`: nothing but what it has received and done is new."""
        listed = self.live.get(row.id)
        self.jobs[row.id] = row
        (self.counted if counters else self.changed).add(row.id)
        if row.spec.array_limit and row.spec.array_id is not None:
            self._recount.add(row.spec.array_id)
        if row.state.ended:
            self._retire(row)
            return
        self.live[row.id] = row
        if counters and listed is not None:
            return  # it is where it was
        if listed is None:
            self._enlist(row)
        self._index(listed, row)

    def _index(self, old: Job | None, new: Job | None) -> None:
        """Where it lives, who has its checkpoint, whether it is on its way; None: it is no longer live."""
        row = new or old
        assert row is not None
        homes, were = new.hosts if new else (), old.hosts if old else ()
        if homes != were:
            for host in were:
                _drop(self.at_host, host, row.id)
            for host in homes:
                self.at_host.setdefault(host, set()).add(row.id)
            if old is not None and old.nodes > 1:
                self.spanning.discard(row.id)
                self.spanned.subtract(were)
            if new is not None and new.nodes > 1 and homes:
                self.spanning.add(row.id)
                self.spanned.update(homes)
        keepers = new.stored.hosts if new and new.stored else ()
        kept = old.stored.hosts if old and old.stored else ()
        if keepers != kept:
            for host in kept:
                _drop(self.lent, host, row.id)
            for host in keepers:
                self.lent.setdefault(host, set()).add(row.id)
        awaited, was_awaited = new.unconfirmed if new else (), old.unconfirmed if old else ()
        if awaited != was_awaited:
            for host in was_awaited:
                _drop(self.unconfirmed, host, row.id)
            for host in awaited:
                self.unconfirmed.setdefault(host, set()).add(row.id)
        (self.forked.add if new is not None and new.portions else self.forked.discard)(row.id)
        if new is not None and new.move is not None:
            self.moving.add(row.id)
        else:
            self.moving.discard(row.id)

    def _enlist(self, row: Job) -> None:
        self.of_user.setdefault(row.user, set()).add(row.id)
        self.bulk.need(row)
        if row.spec.array_id is not None and row.spec.array_limit:
            self.of_array.setdefault(row.spec.array_id, set()).add(row.id)
        waits: set[JobId] = set()
        for after in row.spec.after:
            waiters = self.waiters.setdefault(after.job, {})
            conditions = waiters.get(row.id, ())
            if after.condition not in conditions:
                conditions = (*conditions, after.condition)
                waiters[row.id] = self._conditions.setdefault(conditions, conditions)
            if (other := self.jobs.get(after.job)) is not None:
                self.bulk.need(other)
            if other is None or dependency(after.condition, other.state) is not Dependency.MET:
                waits.add(after.job)
        self._open[row.id] = len(waits)
        self.reconsider(row.id)

    def _retire(self, row: Job) -> None:
        self.counted.discard(row.id)
        listed = self.live.pop(row.id, None)
        if listed is not None:
            self._index(listed, None)
            _drop(self.of_user, row.user, row.id)
            if row.spec.array_id is not None:
                _drop(self.of_array, row.spec.array_id, row.id)
            for after in row.spec.after:
                waiters = self.waiters.get(after.job, {})
                waiters.pop(row.id, None)
                if not waiters:
                    self.waiters.pop(after.job, None)
                self._spared(after.job)
            self.blocked.discard(row.id)
            self._open.pop(row.id, None)
        self._spared(row.id)

    def _spared(self, job: JobId) -> None:
        """Where it has ended and no live job waits for it (any more)."""
        row = self.jobs.get(job)
        if row is not None and row.state.ended and job not in self.waiters:
            self.bulk.spare(row)

    def reconsider(self, job: JobId) -> None:
        """Whether a live job is (still) blocked by another one."""
        row = self.live[job]
        self.changed.add(job)
        if row.spec.array_id is not None:
            self._recount.add(row.spec.array_id)
        (self.blocked.add if self._open[job] else self.blocked.discard)(job)

    def met(self, waiter: JobId) -> None:
        """One that it waited for has ended as it was to. Counted: of two arrays one may wait for the whole of the other."""
        self._open[waiter] -= 1
        if not self._open[waiter]:
            self.reconsider(waiter)

    def dependency(self, row: Job, index: int) -> Dependency:
        after = row.spec.after[index]
        other = self.jobs.get(after.job)
        return Dependency.OPEN if other is None else dependency(after.condition, other.state)

    def evict(self, spare: Collection[JobId]) -> list[JobId]:
        """Lets go of the oldest ended jobs beyond the limits, but for these and those that live ones wait for."""
        gone = self.bulk.evict(spare)
        for job in gone:
            del self.jobs[job]
        return gone

    def recall(self, row: Job) -> None:
        if row.id not in self.jobs:
            self.put(row)

    def at(self, host: HostName) -> list[Job]:
        return [self.live[job] for job in sorted(self.at_host.get(host, ()))]

    def hosts_sorted(self) -> tuple[Host, ...]:
        """The same object until a host's row changes: there are thousands, and they are looked through many times a second."""
        if self._sorted is None:
            self._sorted = tuple(self.hosts[name] for name in sorted(self.hosts))
        return self._sorted

    def models(self) -> frozenset[str]:
        """Of all hosts, whether they are connected or not."""
        if self._models is None:
            self._models = frozenset(host.model for host in self.hosts.values())
        return self._models

    def put_host(self, host: Host) -> None:
        self.hosts[host.name] = host
        self.gpus[host.name] = _gpus(host)
        (self.draining.discard if host.drain is None else self.draining.add)(host.name)
        self.host_changed(host.name)

    def drop_host(self, name: HostName) -> None:
        del self.hosts[name], self.gpus[name]
        self.draining.discard(name)
        self.host_changed(name)

    def host_changed(self, name: HostName) -> None:
        self.hosts_version += 1
        self._sorted = self._models = None
        self.touch(name)

    def touch(self, host: HostName) -> None:
        """What is shown of the jobs there depends on more than their rows."""
        self.changed |= self.at_host.get(host, set()) | self.lent.get(host, set())

    def beyond_array_limit(self, job: JobId) -> bool:
        """A live job without a home for which its array has no room now; the lowest ids come first."""
        self.recount()
        array = self.live[job].spec.array_id
        return array is not None and job in self._held.get(array, ())

    def makes_room_in_array(self, over: Job) -> bool:
        """Of the array of one that has ended more are live than may be under way at once: one of them may have its place."""
        spec = over.spec
        if not spec.array_limit or spec.array_id is None:
            return False
        return len(self.of_array.get(spec.array_id, ())) >= spec.array_limit

    def first_of_array(self, job: JobId) -> Sequence[JobId]:
        """Those without a home either for whom its array has room, where it has none for this one."""
        array = self.live[job].spec.array_id
        return self._first.get(array, ()) if array is not None and self.beyond_array_limit(job) else ()

    def recount(self) -> None:
        """Brings `changed` up to date with what arrays hold back."""
        while self._recount:
            self._count(self._recount.pop())

    def _count(self, array: JobId) -> None:
        rows = [self.live[job] for job in sorted(self.of_array.get(array, ()))]
        room = rows[0].spec.array_limit - sum(row.host is not None for row in rows) if rows else 0
        held: set[JobId] = set()
        first: list[JobId] = []
        for row in rows:
            if row.host is not None or row.paused or row.id in self.blocked:
                continue
            if room > 0:
                room -= 1
                first.append(row.id)
            else:
                held.add(row.id)
        before = self._held.pop(array, set())
        self._first.pop(array, None)
        if held:
            self._held[array], self._first[array] = held, first
        self.changed |= held ^ before


def _gpus(host: Host) -> frozenset[GpuId]:
    return frozenset(gpu.id for gpu in host.gpus)


def _drop(index: dict[Key, set[JobId]], key: Key, job: JobId) -> None:
    members = index.get(key)
    if members is not None:
        members.discard(job)
        if not members:
            del index[key]
