"""What hosts are told, and what the policy is asked: the orders that come of an event."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hs_core.cluster import orders
from hs_core.cluster.cadence import Cadence
from hs_core.cluster.contents import Contents
from hs_core.cluster.last_said import LOCAL
from hs_core.copier import copier, maker
from hs_core.events.cluster import Consult, Direct, GiveUp
from hs_core.model import Job
from hs_core.names import HostName, JobId
from hs_core.reports import Phase
from hs_core.wanted import Lend, Turn, Wanted, WantedJob

_said = maker(Wanted)
_as_said = copier(Wanted)


class Directs:
    def __init__(self, contents: Contents, cadence: Cadence) -> None:
        self._contents = contents
        self._book = contents.book
        self._edges = contents.edges
        self._orders = contents.orders
        self._restless = contents.restless
        self._said = contents.said
        self._sent = contents.sent
        self._settings = contents.settings
        self._cadence = cadence

    def consults(self) -> Iterator[GiveUp | Consult]:
        if self._contents.event.gives_up:
            yield GiveUp()
        if self._contents.event.question is not None:
            yield Consult(question=self._contents.event.question)

    def directs(self, now_s: float) -> Iterator[Direct]:
        doomed = self._contents.doomed(now_s)
        self._wake_gangs(doomed)
        if not self._restless:
            return
        restless = sorted((self._restless & self._contents.connected) - self._contents.unable.ahead.keys())
        self._contents.untold -= self._restless
        self._restless.clear()
        for name in restless:
            jobs = tuple(self._wanted_jobs(name, doomed))
            wanted = self._wanted(name, jobs, now_s)
            last = self._sent.get(name)
            if last is not None and _as_said(wanted, seq=last.seq, edge_in_s=last.edge_in_s) == last:
                continue
            self._contents.seq += 1
            wanted = _as_said(wanted, seq=self._contents.seq)
            self._sent[name] = wanted
            yield Direct(host=name, wanted=wanted)

    def _wake_gangs(self, doomed: frozenset[HostName]) -> None:
        """Gangs over several servers that are to leave and that the freezer holds amid a step: no part of them can save where it stands, nor alone."""
        leaving = self._book.moving | self._contents.evictions.saving if doomed else self._book.moving
        rows = (self._book.live[job] for job in leaving & self._book.spanning)
        waking = frozenset((row.id, row.epoch) for row in rows if self._is_caught(row))
        for job, _ in waking ^ self._said.waking:
            if job in self._book.live:
                self._restless.update(self._book.live[job].hosts)
        self._said.waking = waking

    def _is_caught(self, row: Job) -> bool:
        frozen = any(part.phase is Phase.FROZEN and part.can_checkpoint for part in row.reports.values())
        return frozen and not row.paused and self._contents.connected.issuperset(row.hosts)

    def _wanted_jobs(self, name: HostName, doomed: frozenset[HostName]) -> Iterable[WantedJob]:
        for row in self._book.at(name):
            # 1: it is paused or ending, so nobody compares it
            tickets = self._contents.tickets.get(row.id, 1.0)
            user = self._book.users[row.user]
            evicted = bool(doomed) and not doomed.isdisjoint((name,) if row.portions else row.hosts)
            saves = evicted and row.id in self._contents.evictions.saving
            yield self._orders.wanted_job(
                row, name, user, tickets, evicted=evicted and not saves, saves=saves
            )

    def _wanted(self, name: HostName, jobs: tuple[WantedJob, ...], now_s: float) -> Wanted:
        """Only where a gang over several servers has a part, or the policy wants it so, quanta begin together and turns come one ahead."""
        planned = self._turn(name, self._said.planned_turns, jobs, self._said.waking)
        host = self._book.hosts[name]
        wanted = _said(
            term=self._contents.term,
            seq=0,
            quantum_s=self._settings.quantum_s,
            turn=planned,
            jobs=jobs,
            lends=self._lends(name),
            drained_gpus=host.drained_gpus,
            fence_after_s=self._settings.fence_after_s,
            lease_s=self._settings.lease_s,
        )
        if not self._cadence.is_in_step(name):
            return wanted
        last, spanning = self._sent.get(name), self._book.spanning
        kept = last.turn if last is not None and last.edge_in_s is None else None
        if kept is not None and spanning.isdisjoint(self._said.turns.get(name, LOCAL).gangs):
            # It kept its own cadence until now: what is on there goes on, but for gangs over several servers.
            own = kept.among([gang for gang in kept.gangs if gang not in spanning])
            self._said.turns = {**self._said.turns, name: own}
        assert self._edges.at_s is not None
        return _as_said(
            wanted,
            turn=self._turn_now(name, jobs),
            quantum=self._edges.quantum,
            edge_in_s=max(0.0, self._edges.at_s - now_s),
            next_turn=planned,
        )

    def _lends(self, name: HostName) -> tuple[Lend, ...]:
        """With what it wrote since a backup that was put back, of jobs over several servers that have not begun again."""
        lends = self._orders.lends(name)
        kept = tuple(
            Lend(job=job, epoch=epoch, generation=generation, grant=self._orders.grant(job, row.epoch))
            for job, epoch, generation in self._contents.backup.keeps(name)
            if (row := self._book.live.get(job))
            and (row.stored is None or generation > row.stored.generation)
        )
        return lends + kept if kept else lends

    def _turn_now(self, name: HostName, jobs: Sequence[WantedJob]) -> Turn:
        """Of the quantum that is now, which nobody decides about any more: GPUs of those that are gone since are shared out by the server, as long as it lasts.

        Not beside those for whom GPUs were named, or who share theirs, nor those that are kept for who is on its way there.
        """
        said = self._said.turns.get(name, LOCAL)
        turn = self._turn(name, self._said.turns, jobs, self._said.woken)
        if turn.local or turn.guests or turn.seats or set(said.gangs).issubset(turn.gangs):
            return turn
        rows = (self._book.live.get(job) for job in said.gangs)
        comes = any(row is not None and row.move is not None and name in row.move.to for row in rows)
        return turn if comes else replace(turn, local=True)

    def _turn(
        self,
        name: HostName,
        turns: Mapping[HostName, Turn],
        jobs: Sequence[WantedJob],
        woken: frozenset[tuple[JobId, int]],
    ) -> Turn:
        """Without those that cannot take it any more, nor gangs that have got another home since: they run whole. First those that are `woken` to
        leave: others have their GPUs as soon as they have."""
        turn = turns.get(name, LOCAL)
        first = sorted(job.job for job in jobs if (job.job, job.epoch) in woken) if woken else []
        if first:
            turn = replace(turn, gangs=(*first, *(gang for gang in turn.gangs if gang not in first)))
        if not turn.gangs:
            return turn
        parted = {
            job
            for job in self._book.spanning.intersection(turn.gangs).difference(first)
            if any(job not in turns.get(host, LOCAL).gangs for host in self._book.live[job].hosts)
        }
        return orders.turn_among(turn, [job for job in jobs if job.job not in parted])
