"""Hosts come back with what incarnations that were given up, or of which a backup does not know, did unheard."""

from dataclasses import replace

from hs_core.cluster import reports
from hs_core.cluster.anew import Anew
from hs_core.cluster.contents import Contents
from hs_core.cluster.ends import Ends
from hs_core.cluster.exits import Exits
from hs_core.cluster.given_up import Unheard, accounted, done, heard, heard_of_all
from hs_core.cluster.restored import later, servers, with_later
from hs_core.cluster.states import Happening
from hs_core.forms import Spread
from hs_core.model import Job
from hs_core.names import HostName
from hs_core.reports import Exit, JobReport


class Returns:
    def __init__(self, contents: Contents, ends: Ends, anew: Anew, exits: Exits) -> None:
        self._contents = contents
        self._backup = contents.backup
        self._book = contents.book
        self._fact = contents.fact
        self._put = contents.put
        self._ends = ends
        self._anew = anew
        self._exits = exits

    def written_since(self, host: HostName, report: JobReport, now_s: float, said_s: float | None) -> None:
        """Of an incarnation that was given up: a job that has not begun elsewhere goes on from what it wrote unheard, or has ended as that did."""
        row = self._book.live.get(report.job)
        if row is None:
            return
        row, said = self._said_since(row, host, report)
        if said is None:
            return
        if said.was is not None:
            for model, gpu_s in said.now.now_gpu_s_by_model.items():
                account = self._contents.account(now_s)
                account.report(row.id, said.now.epoch, row.user, model, gpu_s=gpu_s, now_s=now_s)
        at_s = reports.happened_s(report, said_s, now_s, least_s=row.known_until_s)
        if said.ended_well is not None:
            self._ended_unheard(row, host, said, said.ended_well, now_s, at_s=at_s)
            return
        ended = said.ended_badly
        if ended is not None and self._exits.began_before(said.now, ended) is not None:
            self._exits.failed_abroad(said.now, ended, now_s)
            ended = None
        if ended is not None and self._exits.is_crowded_out(said.now, ended):
            row, ended = self._exits.after_crowding(row, said.now, ended), None
        if ended is not None and not self._exits.may_try_again(row, ended):
            self._ended_unheard(row, host, said, ended, now_s, at_s=at_s)
            return
        counted_s, row = row.past_lost_gpu_s, accounted(row, said, goes_on=True)
        if ended is not None:
            row = self._exits.retried(row, ended, now_s, row.past_lost_gpu_s - counted_s)
        if said.newer is not None:
            # What may be laid over any number of servers stays on as many as have its checkpoint.
            shape = said.now.shape if isinstance(said.now.shape, Spread) else row.shape
            row = replace(row, stored=said.newer, shape=shape)
        self._put(row, now_s)
        if said.newer is not None:
            self._contents.asking.stale = True
            but = (
                "with its copy, and nothing newer can be had"
                if said.now.portions
                else "and wrote on meanwhile"
            )
            text = f"{host} is back, {but}: it goes on from step {said.newer.step}"
            data: dict[str, str | int | float] = {"step": said.newer.step}
            self._fact(now_s, "written-since", text, job=row.id, host=host, data=data)

    def _said_since(self, row: Job, host: HostName, report: JobReport) -> tuple[Job, Unheard | None]:
        """And the row, with an incarnation of which a backup that was put back does not know."""
        beyond = self._backup.is_beyond(row, report)
        if servers(row, report) > 1:
            self._backup.says(row, host, report)
            if beyond:
                self._contents.restless.add(host)  # it is to keep what it wrote
            of_all = self._heard_of_all(row, report, beyond=beyond)
            if of_all is not None:
                return of_all
            if beyond and not any(was.epoch == report.epoch for was in row.given_up):
                return row, None
        elif beyond:
            row = with_later(row, {host: self._book.hosts[host].model}, report.epoch)
        return row, self._heard(row, host, report, beyond=beyond)

    def _heard(self, row: Job, host: HostName, report: JobReport, *, beyond: bool = False) -> Unheard | None:
        lacks = row.stored is None or self._contents.reach.out_of_reach(row)
        gpus, last = self._book.gpus.get(host, frozenset()), self._backup.last(row)
        said = heard(row, host, report, gpus, lacks=lacks, last=last, beyond=beyond)
        if not beyond or said is None:
            return said
        if self._contents.policy.needs.copies and len(said.now.hosts) == 1:
            return replace(said, newer=None)  # a copy's, perhaps: that is a part of what the job had
        return _as_laid(row, said)

    def _heard_of_all(
        self, row: Job, report: JobReport, *, beyond: bool
    ) -> tuple[Job, Unheard | None] | None:
        """Of a job over several servers, after a backup was put back: that it ended well everywhere, or what all parts of it have written. None: not all have said so."""
        was, parts = self._backup.whole(row, report.epoch)
        ended = all(part.exit is not None and part.exit.ok for part in parts.values())
        if not parts or row.cancelled_by or any(map(reports.has_process, row.reports.values())):
            return None
        if was is not None:
            return (row, heard_of_all(row, was, parts)) if ended else None
        if not (ended or beyond) or not parts.keys() <= self._book.hosts.keys():
            return None
        models = {name: self._book.hosts[name].model for name in parts}
        if ended:
            return row, heard_of_all(row, later(row, models, report.epoch), parts)
        row = with_later(row, models, report.epoch)
        return row, _as_laid(row, heard_of_all(row, row.given_up[-1], parts))

    def _ended_unheard(
        self, row: Job, host: HostName, said: Unheard, ended: Exit, now_s: float, *, at_s: float
    ) -> None:
        how = "ended well" if ended.ok else "failed"
        self._fact(now_s, "ended-unheard", f"{host} is back, and it had {how} there", job=row.id, host=host)
        self._contents.asking.stale = True
        if row.reports:  # where it was to begin: of another incarnation than the one that ended
            row = self._anew.next_epoch(row)
        happening = Happening.SUCCEEDED if ended.ok else Happening.FAILED
        self._ends.end(done(accounted(row, said, goes_on=False), said), happening, ended, now_s, at_s)

    def await_end(self, host: HostName, report: JobReport, now_s: float) -> None:
        """Of an incarnation that the backup does not know: no other begins before its host has ended it."""
        row = self._book.live.get(report.job)
        if row is None or report.exit is not None or (host in row.hosts and report.epoch == row.epoch):
            return
        self._put(replace(row, unconfirmed=tuple(sorted({*row.unconfirmed, host}))), now_s)

    def over_by_then(self, host: HostName, report: JobReport, now_s: float) -> None:
        """A later incarnation than the backup knows: what it knows of had ended, or was given up, wherever it was. Unless somebody says that it is there."""
        row = self._book.live.get(report.job)
        if row is None or not row.hosts or not self._backup.is_later(row, report):
            return
        if row.epoch >= self._backup.first_epoch:  # it has begun anew since
            return
        for name, part in row.reports.items():
            if name in self._contents.connected and part.exit is None and reports.has_process(part):
                return
        self._anew.lost(row, f"{host} knows of a later incarnation than the backup does", now_s)


def _as_laid(row: Job, said: Unheard) -> Unheard:
    """Without a checkpoint for which it would have to be over another number of servers than it is laid over already."""
    if isinstance(said.now.shape, Spread) and row.hosts and len(row.hosts) != len(said.now.hosts):
        return replace(said, newer=None)
    return said
