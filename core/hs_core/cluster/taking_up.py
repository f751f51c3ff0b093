"""Jobs that were submitted since the backup was made that was put back: the servers that have them say what they were told of them, and they go on."""

from collections.abc import Mapping
from dataclasses import replace

from hs_core.cluster import reports, seals, states
from hs_core.cluster.contents import Contents
from hs_core.cluster.states import Happening
from hs_core.events.cluster import HostJoined
from hs_core.model import Host, Job, User, may_run_as
from hs_core.names import HostName, JobId
from hs_core.reports import JobReport
from hs_core.wanted import WantedJob
from hs_core.words import listed


class TakingUp:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._backup = contents.backup
        self._book = contents.book
        self._connected = contents.connected
        self._fact = contents.fact
        self._key = contents.settings.grant_key.encode()

    def joined(self, event: HostJoined) -> None:
        """Before what the host has is held against what it should have. The host is in the book."""
        host, now_s = event.host.name, event.now_s
        said: Mapping[tuple[JobId, int], JobReport] = {(said.job, said.epoch): said for said in event.reports}
        forged: list[JobId] = []
        for told in event.told:
            report = said.get((told.job, told.epoch))
            if report is None or told.cancelled or not self._may_be_taken_up(told):
                continue
            if seals.is_genuine(self._key, told):
                self._take_up(told, report, host, now_s)
            else:
                forged.append(told.job)
        if forged:
            which = f"job {forged[0]}" if len(forged) == 1 else f"jobs {listed(forged)}"
            text = f"{host} has {which}, of which the backup does not know; they are ended: this controller did not seal what it was told of them (another token.secret, or another version)"
            self._fact(now_s, "not-taken-up", text, host=host)

    def _may_be_taken_up(self, told: WantedJob) -> bool:
        return told.job not in self._book.jobs and self._backup.may_take_up(told.job, told.epoch)

    def _take_up(self, told: WantedJob, report: JobReport, host: HostName, now_s: float) -> None:
        if told.user not in self._book.users:
            self._add_user(told)
        row = replace(_as_told(told, self._book.hosts[host], now_s), epoch=self._backup.first_epoch)
        home = self._home(told, report, host)
        if home:
            row = replace(
                row,
                epoch=told.epoch,
                hosts=home,
                gpu_models=self._contents.models_of(home),
                shape=told.shape,
                state=states.after(row, Happening.PLACED),
                settled_s=now_s,
            )
            how = f"goes on where it is, on {', '.join(home)}"
        else:
            row = replace(row, unconfirmed=(host,))
            how = "begins once more, from the newest checkpoint that is still there"
        if told.paused:
            row = replace(row, paused=True, state=states.after(row, Happening.PAUSED))
        self._backup.takes_up(told.job, told.epoch if home else None)
        self._contents.event.meta = True
        self._contents.asking.stale = True
        self._contents.put(row, now_s)
        text = f"{host} has it, of which the backup does not know: {told.user} submitted {told.spec.name!r} since; it {how}"
        self._fact(now_s, "taken-up", text, job=row.id, host=host)

    def _home(self, told: WantedJob, report: JobReport, host: HostName) -> tuple[HostName, ...]:
        """Where it goes on; empty: what goes on there cannot be told from what this server says alone, or nothing does yet."""
        home = tuple(peer.host for peer in told.nodes) or (host,)
        others = [name for name in home if name != host]
        if told.copy >= 0 or told.hold or not may_run_as(told.spec, told.shape):
            return ()
        if not told.servers == len(home) == len(set(home)):
            return ()
        if home[told.node_rank : told.node_rank + 1] != (host,):
            return ()
        if told.source is not None and not (reports.has_process(report) or report.run_s > 0):
            return ()  # it is on its way there
        # Who is here already knew nothing of it.
        if any(name not in self._book.hosts or name in self._connected for name in others):
            return ()
        return home

    def _add_user(self, told: WantedJob) -> None:
        run_as = told.run_as if told.run_as != told.user else ""
        tickets = self._contents.settings.default_tickets
        self._book.users[told.user] = User(name=told.user, tickets=tickets, run_as=run_as)
        self._contents.event.users.add(told.user)


def _as_told(told: WantedJob, host: Host, now_s: float) -> Job:
    """What the seal does not vouch for is held to what can be."""
    spec, left_s = told.spec, told.time_limit_s
    limit_s = spec.max_duration_s
    has_bytes = max((gpu.memory_bytes for gpu in host.gpus), default=0)
    return Job(
        id=told.job,
        user=told.user,
        spec=replace(spec, after=()),  # all that it waited for had ended
        arrival_s=min(told.arrival_s, now_s),
        restarts=min(told.restarts, told.epoch),
        accumulation=told.accumulation if 1 <= told.accumulation <= spec.accumulation_max else 1,
        needs_bytes=min(told.needs_bytes, has_bytes),
        past_run_s=limit_s - left_s if 0.0 < left_s <= limit_s else 0.0,
    )
