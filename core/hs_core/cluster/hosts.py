"""Hosts come, report, leave, and are given up; what they have against what they should have."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hs_core.cluster import checkpoints, reports, states
from hs_core.cluster.given_up import Unheard, accounted, done, heard, heard_of_all
from hs_core.cluster.moves import Moves
from hs_core.cluster.restored import later, servers, with_later
from hs_core.cluster.states import Happening
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import HostDoubled, HostJoined, HostLeft, HostReported
from hs_core.forms import Spread
from hs_core.model import Gpu, Host, Job, OnPartition, Stored
from hs_core.names import GpuId, HostName
from hs_core.reports import Exit, JobReport, Phase, report_with

LATE_S = 1.0  # that a controller which is not held up may be with what it decides about servers that are away


class Hosts(Moves):
    def _host_joined(self, event: HostJoined) -> None:
        host, now_s = event.host, event.now_s
        models = sorted({gpu.model for gpu in host.gpus})
        if len(models) != 1:
            raise RefusedError(
                f"host {host.name!r}: it has {models or 'no GPU'}; GPUs of one model were expected"
            )
        old = self._book.hosts.get(host.name)
        anew = old is not None and self._is_set_up_anew(event, old)
        if anew:
            self._forget_host(host.name, f"{host.name} was set up anew", now_s, comes_back=True)
        if old is not None:
            # Not the agent's to say.
            datasets = () if anew else old.datasets
            host = replace(host, drain=old.drain, drained_gpus=old.drained_gpus, datasets=datasets)
        if anew or host != old:
            self._book.put_host(host)
            self._event.hosts.add(host.name)
        self._connected.add(host.name)
        self._book.touch(host.name)
        self._absent.forget(host.name)
        self._sent.pop(host.name, None)
        self._told.forget(host.name)
        self._restless.add(host.name)
        if old is None or old.peer != host.peer:
            self._restless |= self._orders.peer_changed(host.name)
        self._asking.stale = True
        gpus, had = (f"{len(one.gpus)} {one.model}" for one in (host, old or host))
        changed = f"; it had {had}" if had != gpus else ""
        changed += "; it was set up anew, and what lay there is gone" if anew else ""
        self._fact(now_s, "host-joined", f"{host.name} is here with {gpus}{changed}", host=host.name)
        self._reconcile(event, old or host)
        for report in (*event.last_words, *event.reports):
            self._over_by_then(host.name, report, now_s)
            self._written_since(host.name, report, now_s, event.said_s)
        self._check_gpus(host.name, now_s)

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
                self._job_reported(row, host.name, back, now_s, event.said_s)
            elif self._backup.awaits:
                why = f"{host.name} has no part in what the backup knows of it"
                self._lost_at(self._as_it_was_left(row, event), host.name, why, now_s)
            elif host.name in row.reports:
                why = "was rebooted" if rebooted else "no longer knows of it"
                self._lost_at(row, host.name, f"{host.name} {why}", now_s, forgot=True)
            # else the order to start it never arrived: it is repeated
            if others:
                self._at_others(row, host, now_s)
        if self._backup.awaits:
            for report in told:
                self._await_end(host.name, report, now_s)

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
            self._lost_at(row, host.name, f"{host.name} has GPUs of another model, {host.model}", now_s)

    def _written_since(self, host: HostName, report: JobReport, now_s: float, said_s: float | None) -> None:
        """Of an incarnation that was given up: a job that has not begun elsewhere goes on from what it wrote unheard, or has ended as that did."""
        row = self._book.live.get(report.job)
        if row is None:
            return
        row, said = self._said_since(row, host, report)
        if said is None:
            return
        if said.was is not None:
            for model, gpu_s in said.now.now_gpu_s_by_model.items():
                account = self._account(now_s)
                account.report(row.id, said.now.epoch, row.user, model, gpu_s=gpu_s, now_s=now_s)
        at_s = reports.happened_s(report, said_s, now_s, least_s=row.known_until_s)
        if said.ended_well is not None:
            self._ended_unheard(row, host, said, said.ended_well, now_s, at_s=at_s)
            return
        ended = said.ended_badly
        if ended is not None and self._began_before(said.now, ended) is not None:
            self._failed_abroad(said.now, ended, now_s)
            ended = None
        if ended is not None and not self._may_try_again(row, ended):
            self._ended_unheard(row, host, said, ended, now_s, at_s=at_s)
            return
        counted_s, row = row.past_lost_gpu_s, accounted(row, said, goes_on=True)
        if ended is not None:
            row = self._retried(row, ended, now_s, row.past_lost_gpu_s - counted_s)
        if said.newer is not None:
            # What may be laid over any number of servers stays on as many as have its checkpoint.
            shape = said.now.shape if isinstance(said.now.shape, Spread) else row.shape
            row = replace(row, stored=said.newer, shape=shape)
        self._put(row, now_s)
        if said.newer is not None:
            self._asking.stale = True
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
                self._restless.add(host)  # it is to keep what it wrote
            of_all = self._heard_of_all(row, report, beyond=beyond)
            if of_all is not None:
                return of_all
            if beyond and not any(was.epoch == report.epoch for was in row.given_up):
                return row, None
        elif beyond:
            row = with_later(row, {host: self._book.hosts[host].model}, report.epoch)
        return row, self._heard(row, host, report, beyond=beyond)

    def _heard(self, row: Job, host: HostName, report: JobReport, *, beyond: bool = False) -> Unheard | None:
        lacks = row.stored is None or self._sight.out_of_reach(row)
        gpus, last = self._book.gpus.get(host, frozenset()), self._backup.last(row)
        said = heard(row, host, report, gpus, lacks=lacks, last=last, beyond=beyond)
        if not beyond or said is None:
            return said
        if self.policy.needs.copies and len(said.now.hosts) == 1:
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
        self._asking.stale = True
        if row.reports:  # where it was to begin: of another incarnation than the one that ended
            row = self._next_epoch(row)
        happening = Happening.SUCCEEDED if ended.ok else Happening.FAILED
        self._end(done(accounted(row, said, goes_on=False), said), happening, ended, now_s, at_s)

    def _await_end(self, host: HostName, report: JobReport, now_s: float) -> None:
        """Of an incarnation that the backup does not know: no other begins before its host has ended it."""
        row = self._book.live.get(report.job)
        if row is None or report.exit is not None or (host in row.hosts and report.epoch == row.epoch):
            return
        self._put(replace(row, unconfirmed=tuple(sorted({*row.unconfirmed, host}))), now_s)

    def _over_by_then(self, host: HostName, report: JobReport, now_s: float) -> None:
        """A later incarnation than the backup knows: what it knows of had ended, or was given up, wherever it was. Unless somebody says that it is there."""
        row = self._book.live.get(report.job)
        if row is None or not row.hosts or not self._backup.is_later(row, report):
            return
        if row.epoch >= self._backup.first_epoch:  # it has begun anew since
            return
        for name, part in row.reports.items():
            if name in self._connected and part.exit is None and reports.has_process(part):
                return
        self._lost(row, f"{host} knows of a later incarnation than the backup does", now_s)

    def _host_reported(self, event: HostReported) -> None:
        host = self._book.hosts.get(event.host)
        if host is None:
            raise RefusedError(f"host {event.host!r} reports but has not joined", Kind.NOT_FOUND)
        if event.gpus and event.gpus != host.gpus:
            self._gpus_changed(host, event.gpus, event.now_s)
        sent = self._sent.get(event.host)
        if event.heard is not None:
            self._newest_heard[event.host] = event.heard
            if sent is not None and event.heard >= (self._term, sent.seq):
                self._confirmed(event.host, event.now_s)
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
                self._job_reported(row, event.host, heard, event.now_s, event.said_s)
                continue
            self._written_since(
                event.host, self._once_it_hears(event.host, report), event.now_s, event.said_s
            )
            if self._told.add(event.host, report.job, report.epoch):
                self._sent.pop(event.host, None)  # what is wanted is said again, without it
                self._restless.add(event.host)
        if turned:
            self._check_gpus(event.host, event.now_s)

    def _once_it_hears(self, host: HostName, report: JobReport) -> JobReport:
        """Of the checkpoint of an incarnation that it was told neither to have nor to lend, and does not know that yet, nothing will be left there then."""
        sent, row = self._sent.get(host), self._book.live.get(report.job)
        if sent is None or row is None or row.spec.checkpoint_dir or report.checkpoint_generation < 0:
            return report
        if self._newest_heard.get(host, (0, 0)) >= (self._term, sent.seq):
            return report
        if any(job.job == report.job for job in sent.jobs) or any(
            lend.job == report.job for lend in sent.lends
        ):
            return report
        return report_with(report, checkpoint_generation=-1, checkpoint_step=-1)

    def _confirmed(self, host: HostName, now_s: float, rows: Iterable[Job] | None = None) -> None:
        """What was taken from it before it had a process there will never have one there."""
        jobs = sorted(self._book.unconfirmed.get(host, ()))
        for row in [self._book.live[job] for job in jobs] if rows is None else rows:
            left = tuple(name for name in row.unconfirmed if name != host)
            if left != row.unconfirmed:
                self._put(replace(row, unconfirmed=left), now_s)

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
        self._event.hosts.add(host.name)
        self._restless.add(host.name)
        self._asking.stale = True

    def _forget_host(self, name: HostName, why: str, now_s: float, *, comes_back: bool = False) -> None:
        """Nothing is left of what was there: neither processes nor checkpoints. `comes_back`: with nothing, at once."""
        self._connected.discard(name)
        self._absent.forget(name)
        self._unable.of_all.forget(name)
        self._unbar(host=name)
        self._sent.pop(name, None)
        self._newest_heard.pop(name, None)
        self._told.forget(name)
        self._asking.stale = True
        self._confirmed(name, now_s)
        lenders = sorted(self._book.lent.get(name, ()))
        there = self._book.at(name)
        self._book.drop_host(name)
        self._event.hosts.add(name)
        for row in there:
            self._lost_at(self._without_its_part(row, name) if comes_back else row, name, why, now_s)
        for job in lenders:
            lent = self._book.live.get(job)
            if lent is not None and lent.stored is not None and name in lent.stored.hosts:
                self._source_gone(lent, why, now_s)

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
        return replace(left, stored=self._newest(row), origin=None)

    def _source_gone(self, row: Job, why: str, now_s: float) -> None:
        if row.cancelled_by or checkpoints.taken_up(row):
            # A server that wrote one part of it and took up another has both.
            apart = row.cancelled_by or row.portions or (row.stored is not None and row.stored.copies)
            self._put(replace(row, stored=None, origin=None if apart else row.stored), now_s)
        else:
            self._give_up_source(row, why, now_s)

    def _host_left(self, event: HostLeft) -> None:
        name = event.host
        if name not in self._connected:
            return
        self._connected.discard(name)
        self._book.touch(name)
        self._absent.leaves(name, event.now_s, self.settings.lease_s)
        self._sent.pop(name, None)
        self._clashes = {clash for clash in self._clashes if clash[0] != name}
        self._asking.stale = True
        jobs = len(self._book.at_host.get(name, ()))
        go_on = "1 job goes on" if jobs == 1 else f"{jobs} jobs go on"
        text = f"{name} is away; {go_on} there" if jobs else f"{name} is away"
        self._fact(event.now_s, "host-left", text, host=name)

    def _host_doubled(self, event: HostDoubled) -> None:
        there = f" at {event.address}" if event.address else ""
        who, what = ("agent on its machine", "a folder") if event.same_boot else ("machine", "a disk")
        text = f"a second {who}{there} says that it is {event.host}, and is refused: was {what} copied?"
        self._fact(event.now_s, "host-doubled", text, host=event.host)

    # --- given up ---------------------------------------------------------------------------------------------------

    def _watch_away(self, now_s: float) -> None:
        if self._absent.since_s is None:
            unheard = (name for name in self._book.hosts if name not in self._connected)
            self._absent.begin(unheard, now_s, self.settings.lease_s)
            self._backup.begins(now_s, self.settings.lease_s)
        any_late, silent = self._absent.expect_no_more(now_s)
        self._asking.stale = self._asking.stale or any_late
        for name in sorted(silent):
            self._away_all_along(name, now_s)

    def _away_all_along(self, name: HostName, now_s: float) -> None:
        """Nothing was heard of it since this term began: so what failed elsewhere of gangs that have a part there failed while it was away."""
        for row in self._book.at(name):
            said = {host: self._blamed(row, host, part) for host, part in row.reports.items()}
            if said != row.reports:
                self._put(replace(row, reports=said), now_s)

    def _tend_backup(self, now_s: float) -> None:
        if not self._backup.awaits:
            return
        if self._backup.heard(now_s, all_here=self._book.hosts.keys() <= self._connected):
            self._event.meta = self._asking.stale = True

    def _fence_deadlines(self) -> Iterator[float]:
        if self.settings.fence_after_s > 0 and self._absent.since_s:
            for name, since_s in self._absent.since_s.items():
                if name not in self._absent.fenced:
                    yield self._given_up_s(name, since_s)

    def _given_up_s(self, name: HostName, since_s: float) -> float:
        """When it is, if it is not back by then."""
        due_s = since_s + self.settings.fence_after_s + self.settings.lease_s
        return max(due_s, self._absent.spared_s.get(name, due_s))

    def _tend_fences(self, now_s: float) -> None:
        away_s, spared_s, fenced = self._absent.since_s, self._absent.spared_s, self._absent.fenced
        if self.settings.fence_after_s <= 0 or not away_s:
            return
        for name, left_s in list(away_s.items()):
            since_s = min(left_s, now_s)  # the clock was set back: counted anew, never too soon
            away_s[name] = since_s
            if name in spared_s:
                spared_s[name] = min(spared_s[name], now_s + self.settings.lease_s)
            due_s = self._given_up_s(name, since_s)
            if name in fenced or now_s < due_s:
                continue
            if now_s > due_s + LATE_S and name not in spared_s:
                # The controller stood still when it was due, or the clock was set on: who is back by now is heard first.
                spared_s[name] = now_s + self.settings.lease_s
            else:
                fenced.add(name)
                self._fence(name, now_s - since_s, now_s)

    def _fence(self, name: HostName, away_s: float, now_s: float) -> None:
        """By now the host itself has ended what said `fence`; the rest stays its own until it is back or removed."""
        why = f"{name} has been away for {away_s:.0f} s, and it asked to be fenced"
        lent = [
            job for job in sorted(self._book.lent.get(name, ())) if name not in self._book.live[job].hosts
        ]
        for row in self._book.at(name):
            if row.spec.on_partition is OnPartition.FENCE:
                self._lost_at(row, name, why, now_s)
        awaited = [self._book.live[job] for job in sorted(self._book.unconfirmed.get(name, ()))]
        self._confirmed(name, now_s, [row for row in awaited if row.spec.on_partition is OnPartition.FENCE])
        for row in map(self._book.live.__getitem__, lent):
            if row.spec.on_partition is OnPartition.FENCE:
                self._give_up_source(row, why, now_s)

    def _give_up_source(self, row: Job, why: str, now_s: float) -> None:
        """Of its checkpoint this cannot be had: what is left will do, or it begins afresh where it is, or wherever it is placed."""
        stored = row.stored
        assert stored is not None
        if row.cancelled_by or checkpoints.taken_up(row):
            return
        rest = checkpoints.within(row, self._keepers(row))
        if stored.copies or row.portions:
            self._give_up_part(row, rest, why, now_s)
            return
        if rest is not None:
            text = f"a part of its checkpoint of step {stored.step} is lost: {why}; what {', '.join(rest.servers)} has will do"
            self._fact(now_s, "part-lost", text, job=row.id)
            self._put(replace(row, stored=rest), now_s)
            return
        if not row.hosts and checkpoints.within(row, self._book.hosts) is not None:
            self._fact(now_s, "source-away", f"{why}; {self._unless_back(row, stored)}", job=row.id)
            self._book.reconsider(row.id)
            self._asking.stale = True
            return
        ending = any(part.exit is not None for part in row.reports.values())  # its end decides what then is
        if ending and self._newest(row) is not None:
            self._put(replace(row, stored=None), now_s)
            return
        if (sought := checkpoints.sought(row, stored)) is not None:
            text = f"{why}; its checkpoint of step {stored.step} is looked for in {row.spec.checkpoint_dir}"
            self._fact(now_s, "source-away", text, job=row.id)
            self._put(replace(row, stored=sought), now_s)
            return
        lost_s = checkpoints.lost_work_gpu_s(row, 0)
        text = f"its checkpoint of step {stored.step} is lost: {why}{'' if ending else '; it starts afresh'}"
        self._fact(now_s, "lost", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        row = replace(row, past_lost_gpu_s=row.past_lost_gpu_s + lost_s)
        if ending:
            self._put(replace(row, stored=None), now_s)
            return
        again = self._next_epoch(row)
        anew = row.hosts and not row.cancelled_by
        state = states.after(row, Happening.REQUEUED, Happening.PLACED) if anew else row.state
        self._put(replace(again, stored=None, state=state), now_s)

    def _give_up_part(self, row: Job, rest: Stored | None, why: str, now_s: float) -> None:
        """Of what copies begin with, or are to be averaged to, some cannot be had: the rest is all there is. Nobody has begun from it yet, so it is placed anew."""
        assert row.stored is not None
        step = rest.step if rest is not None else 0
        lost_s = 0.0
        if row.stored.step > 0:
            lost_s = max(0.0, row.gpu_s - row.past_lost_gpu_s) * (1.0 - step / row.stored.step)
        gone = f"the average of step {row.stored.step} cannot be made any more"
        if not row.stored.copies:
            gone = f"its checkpoint of step {row.stored.step} is lost"
        then = f"goes on from step {step}" if rest is not None else "starts afresh"
        text = f"{gone}: {why}; it {then}"
        self._fact(now_s, "lost", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        again = self._next_epoch(replace(row, past_lost_gpu_s=row.past_lost_gpu_s + lost_s))
        hosts = row.hosts if row.cancelled_by else ()
        state = states.after(row, Happening.REQUEUED) if row.hosts and not row.cancelled_by else row.state
        portions = row.portions if hosts else ()
        self._put(replace(again, stored=rest, hosts=hosts, portions=portions, state=state), now_s)


def _as_laid(row: Job, said: Unheard) -> Unheard:
    """Without a checkpoint for which it would have to be over another number of servers than it is laid over already."""
    if isinstance(said.now.shape, Spread) and row.hosts and len(row.hosts) != len(said.now.hosts):
        return replace(said, newer=None)
    return said
