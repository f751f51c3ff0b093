"""Hosts come, report and leave; what they have against what they should have."""

from dataclasses import replace

from hs_core.cluster import reports
from hs_core.cluster.anew import Anew
from hs_core.cluster.contents import Contents
from hs_core.cluster.fences import Fences
from hs_core.cluster.lives import Lives
from hs_core.cluster.returns import Returns
from hs_core.cluster.sources import Sources
from hs_core.cluster.starts import Starts
from hs_core.cluster.taking_up import TakingUp
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import HostDoubled, HostJoined, HostLeft, HostReported
from hs_core.model import Gpu, Host, Job
from hs_core.names import GpuId, HostName, JobId
from hs_core.reports import JobReport, Phase, report_with
from hs_core.words import listed

SEE = "docs/controller.md says what to do"


class Hosts:
    def __init__(
        self,
        contents: Contents,
        *,
        starts: Starts,
        anew: Anew,
        lives: Lives,
        sources: Sources,
        returns: Returns,
        fences: Fences,
        taking_up: TakingUp,
    ) -> None:
        self._contents = contents
        self._absent = contents.absent
        self._asking = contents.asking
        self._backup = contents.backup
        self._book = contents.book
        self._connected = contents.connected
        self._fact = contents.fact
        self._newest_heard = contents.newest_heard
        self._restless = contents.restless
        self._sent = contents.sent
        self._told = contents.told
        self._starts = starts
        self._anew = anew
        self._lives = lives
        self._sources = sources
        self._returns = returns
        self._fences = fences
        self._taking_up = taking_up
        self._clashes: set[tuple[HostName, str, JobId, JobId]] = set()  # GPUs claimed twice, as was said

    def joined(self, event: HostJoined) -> None:
        host, now_s = event.host, event.now_s
        models = sorted({gpu.model for gpu in host.gpus})
        if len(models) != 1:
            raise RefusedError(
                f"host {host.name!r}: it has {models or 'no GPU'}; GPUs of one model were expected"
            )
        old = self._book.hosts.get(host.name)
        anew = old is not None and self._is_set_up_anew(event, old)
        if anew:
            self.forget(host.name, f"{host.name} was set up anew", now_s, comes_back=True)
        if old is not None:
            # Not the agent's to say.
            datasets = () if anew else old.datasets
            host = replace(host, drain=old.drain, drained_gpus=old.drained_gpus, datasets=datasets)
        if anew or host != old:
            self._book.put_host(host)
            self._contents.event.hosts.add(host.name)
        self._connected.add(host.name)
        self._book.touch(host.name)
        self._absent.forget(host.name)
        self._sent.pop(host.name, None)
        self._contents.unable.obeys.pop(host.name, None)
        self._told.forget(host.name)
        self._restless.add(host.name)
        if old is None or old.peer != host.peer:
            self._restless |= self._contents.orders.peer_changed(host.name)
        self._asking.stale = True
        gpus, had = (f"{len(one.gpus)} {one.model}" for one in (host, old or host))
        changed = f"; it had {had}" if had != gpus else ""
        changed += "; it was set up anew, and what lay there is gone" if anew else ""
        self._fact(now_s, "host-joined", f"{host.name} is here with {gpus}{changed}", host=host.name)
        self._taking_up.joined(event)
        if self._is_ahead(event):
            return
        self._reconcile(event, old or host)
        for report in (*event.last_words, *event.reports):
            self._returns.over_by_then(host.name, report, now_s)
            self._returns.written_since(host.name, report, now_s, event.said_s)
        self._check_gpus(host.name, now_s)

    def _is_ahead(self, event: HostJoined) -> bool:
        """It has jobs of numbers that nobody was given: what this controller began with is older than what it was told of, and no backup, of which more would be known.

        As long as this controller lives, also once it has given such numbers to others. What it would say of jobs is as old: that host is told nothing, and
        goes on with what it has. Else it would end all jobs that are not known here.
        """
        name, unable = event.host.name, self._contents.unable
        before, past = unable.ahead.pop(name, frozenset()), self._contents.next_job_id
        jobs = {each.job for each in event.reports if each.exit is None}
        ahead = sorted(job for job in jobs if job >= past or job in before)
        if not ahead:
            return False
        which = f"job {ahead[0]}" if len(ahead) == 1 else f"jobs {listed(ahead)}"
        unable.ahead[name] = frozenset(ahead)
        self._refuses(
            name,
            f"it has {which}, of which this one knows nothing, as its state is older: {SEE}",
            event.now_s,
        )
        return True

    def _refuses(self, name: HostName, why: str, now_s: float) -> None:
        self._asking.stale = True
        self._contents.unable.obeys[name] = why
        text = f"{name} does nothing that this controller wants: {why}"
        self._fact(now_s, "orders-refused", text, host=name)

    def _is_set_up_anew(self, event: HostJoined, old: Host) -> bool:
        """Its state folder is another one. An agent that remembers jobs has them from a controller that knew of that: this one does, unless a backup was put back, and the folder's name was removed."""
        knew = (event.reports or event.last_words) and not self._backup.awaits
        return bool(old.setup and event.host.setup not in ("", old.setup) and not knew)

    def _reconcile(self, event: HostJoined, was: Host) -> None:
        """What the host has against what it should have; the rest follows from the Wanted that it is sent."""
        now_s, told = event.now_s, event.reports
        host = self._book.hosts[event.host.name]
        known = {(report.job, report.epoch): report for report in told}
        ended = {(word.job, word.epoch): word for word in event.last_words if word.exit is not None}
        rebooted, others = was.boot_id != host.boot_id, was.model != host.model
        for row in self._book.at(host.name):
            report = known.get((row.id, row.epoch))
            if report is None and row.cancelled_by:  # nobody looks for what became of it any more
                report = ended.get((row.id, row.epoch))
            if report is not None:
                back = replace(report, in_touch=report.in_touch and not rebooted)
                self._lives.reported(row, host.name, back, now_s, event.said_s)
            elif self._backup.awaits:
                why = f"{host.name} has no part in what the backup knows of it"
                self._lives.lost_at(self._as_it_was_left(row, event), host.name, why, now_s)
            elif host.name in row.reports:
                why = "was rebooted" if rebooted else "no longer knows of it"
                self._lives.lost_at(row, host.name, f"{host.name} {why}", now_s, forgot=True)
            # else the order to start it never arrived: it is repeated
            if others:
                self._at_others(row, host, now_s)
        if self._backup.awaits:
            for report in told:
                self._returns.await_end(host.name, report, now_s)

    def _as_it_was_left(self, row: Job, event: HostJoined) -> Job:
        """A gang with what this server of it says last of the incarnation that the backup knows: of the checkpoints that it had written by then none may be left."""
        host = event.host.name
        words = (word for word in event.last_words if (word.job, word.epoch) == (row.id, row.epoch))
        word, before = next(words, None), row.reports.get(host)
        if word is None or before is None or len(row.hosts) == 1 or row.portions:
            return row
        left = replace(word, phase=Phase.CHECKPOINTED, exit=before.exit)
        part = reports.merge(before, left, self._book.gpus.get(host, frozenset()))
        return replace(row, reports={**row.reports, host: part})

    def _at_others(self, was: Job, host: Host, now_s: float) -> None:
        """Its server has GPUs of another model now, which it may not want: who has no process there is placed anew."""
        row = self._book.live.get(was.id)
        if row is None or row.epoch != was.epoch or host.name not in row.hosts:
            return
        part = row.reports.get(host.name)
        if part is None or part.phase in (Phase.WAITING, Phase.CHECKPOINTED):
            self._lives.lost_at(row, host.name, f"{host.name} has GPUs of another model, {host.model}", now_s)

    def reported(self, event: HostReported) -> None:
        host = self._book.hosts.get(event.host)
        if host is None:
            raise RefusedError(f"host {event.host!r} reports but has not joined", Kind.NOT_FOUND)
        if event.gpus and event.gpus != host.gpus:
            self._gpus_changed(host, event.gpus, event.now_s)
        sent = self._sent.get(event.host)
        if event.heard is not None:
            self._newest_heard[event.host] = event.heard
            if sent is not None and event.heard >= (self._contents.term, sent.seq):
                self._fences.confirmed(event.host, event.now_s)
        self._obeys(event)
        turned = False
        for report in event.reports:
            row = self._book.live.get(report.job)
            if row is not None and row.epoch == report.epoch and event.host in row.hosts:
                before = row.reports.get(event.host)
                turned = turned or (
                    report.phase is Phase.RUNNING
                    and (before is None or before.phase is not Phase.RUNNING or before.gpus != report.gpus)
                )
                heard = report_with(report, in_touch=False) if report.in_touch else report
                self._lives.reported(row, event.host, heard, event.now_s, event.said_s)
                continue
            self._returns.written_since(
                event.host, self._once_it_hears(event.host, report), event.now_s, event.said_s
            )
            if self._told.add(event.host, report.job, report.epoch):
                self._sent.pop(event.host, None)  # what is wanted is said again, without it
                self._restless.add(event.host)
        if turned:
            self._check_gpus(event.host, event.now_s)

    def _obeys(self, event: HostReported) -> None:
        """Or another controller, which has jobs there under the same numbers, perhaps: nobody is sent there."""
        obeys = self._contents.unable.obeys
        if event.host in self._contents.unable.ahead or (event.obeys is None) == (event.host not in obeys):
            return
        if event.obeys is None:
            self._asking.stale = True
            del obeys[event.host]
            return
        terms = f"of term {event.obeys}; this one's is {self._contents.term}"
        why = f"it has obeyed another controller ({terms}), as the state of this one is older: {SEE}"
        self._refuses(event.host, why, event.now_s)

    def _once_it_hears(self, host: HostName, report: JobReport) -> JobReport:
        """Of the checkpoint of an incarnation that it was told neither to have nor to lend, and does not know that yet, nothing will be left there then."""
        sent, row = self._sent.get(host), self._book.live.get(report.job)
        if sent is None or row is None or row.spec.checkpoint_dir or report.checkpoint_generation < 0:
            return report
        if self._newest_heard.get(host, (0, 0)) >= (self._contents.term, sent.seq):
            return report
        if any(job.job == report.job for job in sent.jobs) or any(
            lend.job == report.job for lend in sent.lends
        ):
            return report
        return report_with(report, checkpoint_generation=-1, checkpoint_step=-1)

    def _check_gpus(self, host: HostName, now_s: float) -> None:
        """A host that says it runs two jobs on one GPU, and not that they share it, is wrong or lies: its jobs are its own, so it is told and no more."""
        holders: dict[GpuId, JobReport] = {}
        for row in self._book.at(host):
            report = row.reports.get(host)
            if report is None or report.phase is not Phase.RUNNING:
                continue
            for gpu in report.gpus:
                holder = holders.setdefault(gpu, report)
                other = holder.job
                clash = (host, gpu, other, row.id)
                shared = other in report.beside or row.id in holder.beside
                if other != row.id and not shared and clash not in self._clashes:
                    self._clashes.add(clash)
                    text = f"ALARM: {host} says that jobs {other} and {row.id} run on its GPU {gpu} at once"
                    data: dict[str, str | int | float] = {"gpu": gpu, "job": row.id, "other": other}
                    self._fact(now_s, "gpu-claimed-twice", text, host=host, data=data)

    def _gpus_changed(self, host: Host, gpus: tuple[Gpu, ...], now_s: float) -> None:
        if len({gpu.model for gpu in gpus}) != 1:
            raise RefusedError(f"host {host.name!r} reports GPUs of several models; one was expected")
        was = {gpu.id: gpu.healthy for gpu in host.gpus}
        for gpu in gpus:
            if gpu.healthy != was.get(gpu.id, True):
                kind = "gpu-healthy" if gpu.healthy else "gpu-unhealthy"
                text = f"GPU {gpu.index} of {host.name} is {'healthy again' if gpu.healthy else 'unhealthy'}"
                why = f": {gpu.why_unhealthy}" if gpu.why_unhealthy else ""
                self._fact(now_s, kind, text + why, host=host.name)
        self._book.put_host(replace(host, gpus=gpus))
        self._contents.event.hosts.add(host.name)
        self._restless.add(host.name)
        self._asking.stale = True

    def forget(self, name: HostName, why: str, now_s: float, *, comes_back: bool = False) -> None:
        """Nothing is left of what was there: neither processes nor checkpoints. `comes_back`: with nothing, at once."""
        self._connected.discard(name)
        self._absent.forget(name)
        self._contents.unable.of_all.forget(name)
        self._starts.unbar(host=name)
        self._sent.pop(name, None)
        self._newest_heard.pop(name, None)
        self._contents.unable.obeys.pop(name, None)
        self._contents.unable.ahead.pop(name, None)
        self._told.forget(name)
        self._asking.stale = True
        self._fences.confirmed(name, now_s)
        lenders = sorted(self._book.lent.get(name, ()))
        there = self._book.at(name)
        self._book.drop_host(name)
        self._contents.event.hosts.add(name)
        for row in there:
            self._lives.lost_at(self._without_its_part(row, name) if comes_back else row, name, why, now_s)
        for job in lenders:
            lent = self._book.live.get(job)
            if lent is not None and lent.stored is not None and name in lent.stored.hosts:
                self._sources.gone(lent, why, now_s)

    def _without_its_part(self, row: Job, host: HostName) -> Job:
        """A gang ends later, and its server, which is in no book now, is back by then: what is left of its newest checkpoint is known now. In a folder that its user named it need not be gone."""
        part = row.reports.get(host)
        if part is None or part.checkpoint_generation < 0 or row.spec.checkpoint_dir:
            return row
        step, fallbacks = max(part.step, part.checkpoint_step), part.fallbacks + 1
        gone = replace(part, step=step, checkpoint_generation=-1, checkpoint_step=-1, fallbacks=fallbacks)
        left = replace(row, reports={**row.reports, host: gone})
        if row.portions or len(row.hosts) == 1:
            return left
        return replace(left, stored=self._anew.newest(row), origin=None)

    def left(self, event: HostLeft) -> None:
        name = event.host
        if name not in self._connected:
            return
        self._connected.discard(name)
        self._book.touch(name)
        self._absent.leaves(name, event.now_s)
        self._sent.pop(name, None)
        self._clashes = {clash for clash in self._clashes if clash[0] != name}
        self._asking.stale = True
        jobs = len(self._book.at_host.get(name, ()))
        go_on = "1 job goes on" if jobs == 1 else f"{jobs} jobs go on"
        text = f"{name} is away; {go_on} there" if jobs else f"{name} is away"
        self._fact(event.now_s, "host-left", text, host=name)

    def doubled(self, event: HostDoubled) -> None:
        there = f" at {event.address}" if event.address else ""
        who, what = ("agent on its machine", "a folder") if event.same_boot else ("machine", "a disk")
        text = f"a second {who}{there} says that it is {event.host}, and is refused: was {what} copied?"
        self._fact(event.now_s, "host-doubled", text, host=event.host)
