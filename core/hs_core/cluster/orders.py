"""What a host is told of the rows. Built again only where a row changed."""

import hmac
from collections.abc import Callable, Sequence
from hashlib import sha256

from hs_core.cluster import checkpoints, reports, seals
from hs_core.cluster.book import Book
from hs_core.copier import copier, maker
from hs_core.model import Copied, Job, Stored, User
from hs_core.names import HostName, JobId
from hs_core.wanted import NOBODY, Lend, Peer, Source, SourcePart, Turn, WantedJob

_said = maker(WantedJob)
_as_said = copier(WantedJob)
LEAST_LIMIT_S = 1e-3


class Orders:
    def __init__(self, book: Book, grant_key: str, class_of: Callable[[Job], str]) -> None:
        self._book = book
        self._key = grant_key.encode()
        self._class_of = class_of
        self._wanted: dict[tuple[JobId, HostName], tuple[Job, str, tuple[bool, bool], WantedJob]] = {}

    def forget(self, job: JobId, hosts: Sequence[HostName]) -> None:
        for host in hosts:
            self._wanted.pop((job, host), None)

    def peer_changed(self, host: HostName) -> set[HostName]:
        """Hosts that are told where this one serves its peers."""
        told: set[HostName] = set()
        jobs = self._book.at_host.get(host, set()) | self._book.lent.get(host, set())
        for job in jobs:
            row = self._book.live[job]
            self.forget(job, row.hosts)
            told.update(row.hosts)
        return told

    def grant(self, job: JobId, epoch: int) -> str:
        """What peers must show to have to do with this incarnation."""
        return hmac.new(self._key, f"{job}.{epoch}".encode(), sha256).hexdigest()[:32]

    def wanted_job(
        self, row: Job, host: HostName, user: User, tickets: float, *, evicted: bool, saves: bool = False
    ) -> WantedJob:
        """`evicted`: its server was to be empty by now; `saves`: the same, and it writes a checkpoint first."""
        run_as = user.run_as or row.user
        key = (row.id, host)
        last = self._wanted.get(key)
        if last is not None and last[0] is row and last[1] == run_as and last[2] == (evicted, saves):
            wanted = last[3]
            if wanted.tickets != tickets:
                wanted = _as_said(wanted, tickets=tickets)
                self._wanted[key] = (row, run_as, (evicted, saves), wanted)
            return wanted
        rank = row.hosts.index(host)
        limit_s = row.spec.max_duration_s
        source = self._source(row, rank)
        wanted = _said(
            job=row.id,
            epoch=row.epoch,
            restarts=row.restarts,
            carry=row.carry,
            user=row.user,
            run_as=run_as,
            job_class=self._class_of(row),
            spec=row.spec,
            tickets=tickets,
            paused=row.paused,
            cancelled=bool(row.cancelled_by) or evicted or reports.broken(row),
            # Unheard it may have run for longer than it may: then it is ended as soon as it begins. 0 would be no limit.
            time_limit_s=max(LEAST_LIMIT_S, limit_s - row.past_run_s) if limit_s else 0.0,
            node_rank=rank if row.nodes > 1 else 0,
            nodes=self._peers(row) if row.nodes > 1 else (),
            rendezvous=rendezvous(row),
            hold=bool(row.unconfirmed),
            leave=row.move is not None or saves,
            source=source,
            accumulation=row.accumulation,
            needs_bytes=min(row.needs_bytes, self._has_bytes(host)) if row.needs_bytes else 0,
            shape=row.shape,
            grant=self.grant(row.id, row.epoch) if source or row.nodes > 1 else "",
            copy=rank if row.portions else -1,
            copies=len(row.portions) or 1,
            last_step=row.base_step + row.portions[rank] if row.portions else 0,
            arrival_s=row.arrival_s,
            seal=last[3].seal if last is not None and last[1] == run_as else self._seal(row, run_as),
        )
        self._wanted[key] = (row, run_as, (evicted, saves), wanted)
        return wanted

    def _seal(self, row: Job, run_as: str) -> str:
        return seals.seal(
            self._key, row.id, user=row.user, run_as=run_as, arrival_s=row.arrival_s, spec=row.spec
        )

    def _has_bytes(self, name: HostName) -> int:
        """Of memory each of its GPUs."""
        host = self._book.hosts.get(name)
        return min((gpu.memory_bytes for gpu in host.gpus), default=0) if host is not None else 0

    def _peers(self, row: Job) -> tuple[Peer, ...]:
        hosts = self._book.hosts
        return tuple(Peer(host=name, address=hosts[name].peer if name in hosts else "") for name in row.hosts)

    def _source(self, row: Job, rank: int) -> Source | None:
        """Where this rank's part of its state is; None where a job lives on the one host that has it, and knows it as its newest."""
        stored = row.stored
        if stored is not None and (row.portions or stored.copies):
            return self._average(stored)
        if stored is None or (row.nodes == 1 and stored.is_at(row.hosts) and not stored.surpassed):
            return None
        at = checkpoints.taken(row)[rank]
        return Source(
            peer=self._peer(stored.hosts[at]) if stored.hosts else NOBODY,
            epoch=stored.epoch,
            generation=stored.generation,
            step=stored.step,
            rank=stored.rank(at),
            nodes=stored.nodes,
            look=stored.surpassed and not stored.in_folder,
        )

    def _peer(self, name: HostName) -> Peer:
        return Peer(host=name, address=self._book.hosts[name].peer)

    def _average(self, stored: Stored) -> Source:
        """Where copies begin, or end: of a job that is forked for the first time its own checkpoint is all there is to average."""
        hosts = [self._book.hosts[name] for name in stored.hosts]
        copied = stored.copies or (Copied(copy=-1, generation=stored.generation, steps=0),)
        parts = tuple(
            SourcePart(
                peer=Peer(host=host.name, address=host.peer),
                epoch=stored.epoch,
                generation=part.generation,
                copy=part.copy,
                steps=part.steps,
            )
            for host, part in zip(hosts, copied, strict=True)
        )
        return Source(
            peer=parts[0].peer,
            epoch=stored.epoch,
            generation=stored.generation if stored.copies else stored.generation + 1,
            step=stored.step,
            parts=parts,
        )

    def lends(self, host: HostName) -> tuple[Lend, ...]:
        """Checkpoints that it keeps for jobs that are to go on elsewhere, or nowhere yet."""
        found = []
        for job in sorted(self._book.lent.get(host, ())):
            row = self._book.live[job]
            stored = row.stored
            assert stored is not None
            grant = self.grant(job, row.epoch)
            if row.portions or stored.copies:
                # Also to itself: copies have folders of their own.
                rank = stored.hosts.index(host)
                part = stored.copies[rank] if stored.copies else None
                generation = part.generation if part else stored.generation
                copy = part.copy if part else -1
                lend = Lend(job=job, epoch=stored.epoch, generation=generation, grant=grant, copy=copy)
                found.append(lend)
            elif not row.hosts or not self._lies_there(row, host):
                found.append(Lend(job=job, epoch=stored.epoch, generation=stored.generation, grant=grant))
        return tuple(found)

    def _lies_there(self, row: Job, host: HostName) -> bool:
        """As the part of the node that it is now: whatever else a server has is lent, if only to itself, or to whoever it is placed on next."""
        stored = row.stored
        assert stored is not None
        if host not in row.hosts:
            return False
        takers = [(rank, at) for rank, at in enumerate(checkpoints.taken(row)) if stored.hosts[at] == host]
        if [row.hosts[rank] for rank, _ in takers] != [host]:
            return False  # another node takes up what lies here
        rank, at = takers[0]
        return (stored.rank(at), stored.nodes) == (rank, len(row.hosts))


def rendezvous(row: Job) -> str:
    """What node 0 reserved for this incarnation."""
    if row.nodes < 2 or not row.hosts:
        return ""
    first = row.reports.get(row.hosts[0])
    return first.rendezvous if first is not None else ""


def turn_among(turn: Turn, jobs: Sequence[WantedJob]) -> Turn:
    """The policy's, less what has ended, paused or been cancelled since it was decided."""
    if not turn.gangs:
        return turn
    return turn.among({job.job for job in jobs if not (job.paused or job.cancelled)})
