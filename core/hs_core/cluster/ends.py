"""A job's end, or the end of one incarnation and the beginning of another, from the newest checkpoint that is left to be had."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from hs_core.cluster import admission, checkpoints, copies, reports, states
from hs_core.cluster.given_up import as_lost
from hs_core.cluster.starts import Starts
from hs_core.cluster.states import Happening
from hs_core.cluster.why import exit_text
from hs_core.forms import Spread
from hs_core.model import After, Host, Job, JobState, OnPartition, Stored
from hs_core.names import HostName, JobId
from hs_core.reports import (
    CANNOT_FETCH,
    FINAL,
    LAUNCH_FAILED,
    LOST,
    NOT_AS_BEFORE,
    TIME_LIMIT,
    TOLD_TO_END,
    Exit,
)


class Ends(Starts):
    def _exited(self, row: Job, ended: Exit, now_s: float, at_s: float) -> None:
        """`at_s`: its end came about then."""
        evicted = self._doomed(now_s) & set(row.hosts)
        ended = reports.own_end(row) or ended
        if row.cancelled_by:
            self._end(row, Happening.GONE, ended, now_s, at_s)
        elif ended.why.startswith(LOST):
            why = ended.why.removeprefix(LOST).removeprefix(": ")
            self._lost(row, why or LOST, now_s)
        elif ended.why.startswith(CANNOT_FETCH) and (self._backup.has(row.stored) or _is_one(row.stored)):
            self._not_fetched(row, ended, now_s)
        elif evicted and not ended.ok:  # told to end: where it ended well its host would say so
            self._lost(row, f"{min(evicted)} was to be empty by now", now_s)
        elif ended.why == TOLD_TO_END:  # it was to be, and is not any more
            self._lost(row, f"{', '.join(row.hosts)} had been told to end it", now_s)
        elif ended.ok:
            self._end(row, Happening.SUCCEEDED, ended, now_s, at_s)
        elif ended.why not in FINAL and copies.fail_at_start(row):
            self._forked_in_vain(row, ended, now_s)
        elif (began := self._began_before(row, ended)) is not None:
            self._send_on(row, began, ended, now_s)
        elif self._may_be_its_servers_fault(row, ended, now_s):
            self._start_elsewhere(row, ended, now_s)
        elif self._may_try_again(row, ended):
            stored = self._newest(row) or self._perhaps(row)
            lost_s = checkpoints.lost_work_gpu_s(row, stored.step if stored else 0)
            row = self._retried(row, ended, now_s, lost_s)
            self._again(row, stored, ended, now_s, lost_s)
        else:
            self._end(row, Happening.FAILED, self._nowhere(row, ended), now_s, at_s)

    def _began_before(self, row: Job, ended: Exit) -> Stored | None:
        """What one goes on from that trained before, and has failed at its start on servers that may lack what the others have."""
        if ended.why or not self._abroad.may_fail(row):
            return None
        stored = row.stored
        if stored is not None and self._connected.issuperset(stored.hosts):
            return stored  # until a process has taken it up it is kept there
        return self._newest(row) or self._perhaps(row)

    def _send_on(self, row: Job, began: Stored, ended: Exit, now_s: float) -> None:
        servers, how = self._failed_abroad(row, ended, now_s), exit_text(ended)
        lost_s = checkpoints.lost_work_gpu_s(row, began.step)
        there = f" on {', '.join(servers)}" if len(row.hosts) > 1 and servers else ""
        whence = f"step {began.step}" if not began.in_folder else f"its newest in {row.spec.checkpoint_dir}"
        text = f"it failed{there} where it was sent before it did a step ({how}): it goes on from {whence} elsewhere"
        self._fact(now_s, "sent-elsewhere", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        self._again(row, began, ended, now_s, lost_s, leaves=True)

    def _failed_abroad(self, row: Job, ended: Exit, now_s: float) -> tuple[HostName, ...]:
        servers, how = self._abroad.suspects(row), exit_text(ended)
        self._abroad.fails(row.id, servers, how)
        for name in servers:
            self._cannot_start(row, name, f"{NOT_AS_BEFORE}: {how}", now_s)
        return servers

    def _may_be_its_servers_fault(self, row: Job, ended: Exit, now_s: float) -> bool:
        """Nothing of it was ever started, and there are others to see whether that is so everywhere: a server on which a file system is not mounted, and whose GPUs are
        therefore always free, would have all jobs that name a folder of it fail, one after the other.
        """
        if not ended.why.startswith(LAUNCH_FAILED) or row.id in self._unable.sent_on:
            return False
        known = row.stored is not None and not row.stored.is_unknown
        if row.portions or known or row.step:
            return False
        return self._could_start_without(row, _without(row, LAUNCH_FAILED), now_s)

    def _could_start_without(self, row: Job, servers: Collection[HostName], now_s: float) -> bool:
        """Others than these are there for all of it."""
        out = {*servers, *self._unable.barring(row.user), *self._doomed(now_s)}
        types = row.spec.gpu_types
        able = Counter(
            "any model" if self.policy.needs.mixed else host.model
            for name, host in self._book.hosts.items()
            if name not in out
            and (not types or host.model in types)
            and self._takes(row, host)
            and (row.nodes == 1 or host.peer)
        )
        return max(able.values(), default=0) >= row.nodes

    def _start_elsewhere(self, row: Job, ended: Exit, now_s: float) -> None:
        servers = _without(row, LAUNCH_FAILED)
        for name in servers:
            self._cannot_start(row, name, ended.why, now_s)
        self._unable.sent_on[row.id] = servers
        other = "another server" if row.nodes == 1 else "other servers"
        text = f"{exit_text(ended)} on {', '.join(servers)}: it is tried on {other}, once"
        self._fact(now_s, "sent-elsewhere", text, job=row.id)
        self._again(row, row.stored, ended, now_s, 0.0, leaves=True)

    def _nowhere(self, row: Job, ended: Exit) -> Exit:
        """Where it is so on several servers none is to blame."""
        first = self._unable.sent_on.get(row.id)
        if first is not None and ended.why.startswith(LAUNCH_FAILED):
            for name in first:
                self._bar_no_more(row.user, name)
            return replace(ended, why=f"{ended.why}; so it was on {', '.join(first)}")
        before = self._abroad.failed(row.id)
        if not before or ended.why:
            return ended
        text = f"at its start, as on {', '.join(before)}, where it was sent before ({exit_text(ended)})"
        return replace(ended, why=text)

    def _not_fetched(self, row: Job, ended: Exit, now_s: float) -> None:
        """No fault of its own, nor anything that its owner could mend."""
        if self._backup.has(row.stored):
            self._cannot_be_had(row, f"the backup's checkpoint of it is gone ({ended.why})", now_s)
        elif row.stored is not None and row.stored.in_folder and self._may_be_unseen(row, now_s):
            self._look_elsewhere(row, row.stored, ended, now_s)
        elif row.stored is not None and row.stored.in_folder:
            self._cannot_be_had(row, f"who had its checkpoint is lost ({ended.why})", now_s)
        elif self._could_begin_at_source(row, now_s):
            self._send_back(row, ended, now_s)
        else:
            self._cannot_be_had(row, ended.why, now_s)

    def _may_be_unseen(self, row: Job, now_s: float) -> bool:
        """In the folder that its user named: that a server which does not see it, and which lacks a file system, finds nothing in it means nothing."""
        servers = _without(row, CANNOT_FETCH)
        again = not row.portions and self._abroad.may_try(row.id)
        return again and self._could_start_without(row, {*servers, *self._abroad.failed(row.id)}, now_s)

    def _look_elsewhere(self, row: Job, stored: Stored, ended: Exit, now_s: float) -> None:
        servers = _without(row, CANNOT_FETCH)
        self._abroad.fails(row.id, servers, exit_text(ended))
        there = f"in {row.spec.checkpoint_dir} on {', '.join(servers)} ({exit_text(ended)})"
        text = f"its checkpoint of step {stored.step} is not {there}: it is looked for elsewhere"
        self._fact(now_s, "sent-elsewhere", text, job=row.id)
        self._again(row, stored, ended, now_s, 0.0, leaves=True)

    def _could_begin_at_source(self, row: Job, now_s: float) -> bool:
        """Where its checkpoint lies, which is torn or gone: an older one is left there, most likely, and its processes find what is whole. Also where that is to be
        empty some time: then it leaves as others do.
        """
        stored = row.stored
        if stored is None or stored.copies or stored.ranks or row.spec.checkpoint_dir:
            return False
        homes = [self._book.hosts.get(name) for name in stored.hosts]
        nodes = 1 if row.portions else len(row.hosts)  # copies begin again as one
        usable = self._connected - self._doomed(now_s)
        elsewhere = len({*stored.hosts}) == nodes and not stored.is_at(row.hosts)
        return elsewhere and all(
            home is not None and home.name in usable and len(home.healthy_gpus) >= row.gpus for home in homes
        )

    def _send_back(self, row: Job, ended: Exit, now_s: float) -> None:
        assert row.stored is not None
        stored = replace(row.stored, surpassed=True)  # what is found goes before it
        there = ", ".join(stored.hosts)
        text = f"it is sent back to {there} ({exit_text(ended)}): it goes on from the newest checkpoint that is whole there"
        self._fact(now_s, "sent-back", text, job=row.id, host=stored.hosts[0])
        self._again(row, stored, ended, now_s, 0.0, home=stored.hosts)

    def _forked_in_vain(self, row: Job, ended: Exit, now_s: float) -> None:
        """That it trains as copies was not its own idea, so it has not failed before it has done so as one."""
        stored = self._newest(row) or self._perhaps(row)
        lost_s = checkpoints.lost_work_gpu_s(row, stored.step if stored else 0)
        step = f"from step {stored.step}" if stored is not None else "afresh"
        text = f"all of its copies failed as they were started ({exit_text(ended)}): it begins again as one, {step}"
        self._fact(now_s, "copies-failed", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        self._again(row, stored, ended, now_s, lost_s)

    def _may_try_again(self, row: Job, ended: Exit) -> bool:
        return row.retries < row.spec.retry_max and ended.why not in FINAL

    def _retried(self, row: Job, ended: Exit, now_s: float, lost_s: float) -> Job:
        row = replace(row, retries=row.retries + 1)
        text = f"it failed ({exit_text(ended)}) and is tried again, {row.retries} of {row.spec.retry_max}"
        self._fact(now_s, "retried", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        return row

    def _cannot_be_had(self, row: Job, why: str, now_s: float) -> None:
        lost_s = checkpoints.lost_work_gpu_s(row, 0)
        row = replace(row, stored=None, past_lost_gpu_s=row.past_lost_gpu_s + lost_s)
        afresh = "" if checkpoints.unknown(row) is not None else "; it starts afresh"
        self._lost(row, f"{why}{afresh}", now_s, counted_s=lost_s)

    def _lost(
        self, row: Job, why: str, now_s: float, *, forgot: bool = False, counted_s: float = 0.0
    ) -> None:
        """Its incarnation is dead, through no fault of its own. `forgot`: its host, which may have its files still, knows nothing of it; `counted_s`: GPU-seconds
        that are lost by it as well, and are in its account already."""
        ended = Exit(why=LOST)
        if row.cancelled_by:
            self._end(row, Happening.GONE, ended, now_s)
            return
        stored = self._newest(row)
        again = f"; it goes on from step {stored.step}" if stored else ""
        if stored is not None and (doubted := checkpoints.doubted(row, stored)) != stored:
            stored = doubted
            again += f", or from a newer checkpoint if one is in {row.spec.checkpoint_dir}"
        elif stored is not None and forgot and stored.is_at(row.hosts) and not stored.copies:
            stored = replace(stored, surpassed=True)
            again += ", or from a newer checkpoint if one is there"
        elif stored is None and (stored := self._perhaps(row)) is not None:
            again = f"; {self._unless_back(row, stored)}"
        elif stored is None and (stored := checkpoints.unknown(row)) is not None:
            again = f"; without a checkpoint in {row.spec.checkpoint_dir} it starts afresh"
        elif stored is None and (row.step > 0 or (row.stored is not None and row.stored.step > 0)):
            again = "; no checkpoint of it is left to be had, it starts afresh"
        lost_s = checkpoints.lost_work_gpu_s(row, stored.step if stored else 0)
        data: dict[str, str | int | float] = {"lost_gpu_s": round(counted_s + lost_s, 3)}
        self._fact(now_s, "lost", f"it was lost: {why}{again}", job=row.id, data=data)
        self._again(row, stored, ended, now_s, lost_s)

    def _newest(self, row: Job) -> Stored | None:
        """Its newest checkpoint that it may go on from."""
        return self._newest_on(row, self._keepers(row))

    def _perhaps(self, row: Job) -> Stored | None:
        """Its newest where none is within reach: it goes on from that if the servers that are cut off are back before it has a place, or its own folder has it."""
        if row.portions or (row.stored is not None and row.stored.copies):
            return None
        return self._newest_on(row, self._book.hosts) or checkpoints.sought(
            row, checkpoints.kept(row) or row.stored
        )

    def _unless_back(self, row: Job, stored: Stored) -> str:
        which = f"its checkpoint of step {stored.step}"
        if stored.in_folder:
            return f"it goes on from {which} if that is in {row.spec.checkpoint_dir}"
        gone = [name for name in stored.servers if name in self._absent.fenced]
        back = checkpoints.back(replace(row, stored=stored), gone, beside=self._keepers(row))
        if row.spec.checkpoint_dir:
            return f"{which} is looked for in {row.spec.checkpoint_dir} unless {back} before it has a place"
        return f"it starts afresh unless {back} with {which} before it has a place"

    def _newest_on(self, row: Job, hosts: Collection[HostName]) -> Stored | None:
        """Of what these servers have."""
        if row.portions:
            mine = copies.kept(row, self._connected.__contains__) or copies.kept(row, hosts.__contains__)
        elif row.stored is not None and row.stored.copies and not copies.made(row, row.stored):
            mine = None  # it is not known yet whether there is an average
        else:
            mine = checkpoints.kept(row)
        usable = (
            checkpoints.among(row, mine, hosts) if mine is not None else None,
            checkpoints.within(row, hosts),
            checkpoints.still_there(row, hosts),
        )
        found = [kept for kept in usable if kept is not None]
        here = {kept: all(host in self._connected for host in kept.hosts) for kept in found}
        return max(found, key=lambda kept: (kept.step, here[kept], kept.epoch), default=None)

    def _keepers(self, row: Job) -> Collection[HostName]:
        """Servers from which it may have its checkpoint; who said `fence` does not wait for one that is cut off."""
        hosts = self._book.hosts.keys()
        return hosts - self._absent.fenced if row.spec.on_partition is OnPartition.FENCE else hosts

    def _again(
        self,
        was: Job,
        stored: Stored | None,
        ended: Exit,
        now_s: float,
        lost_s: float,
        *,
        home: tuple[HostName, ...] = (),
        leaves: bool = False,
    ) -> None:
        """Queued for another incarnation; where its newest checkpoint is on its own servers, it keeps that home, unless it `leaves`. `lost_s`: GPU-seconds of work since that;
        `home`: another one that it is given at once.
        """
        row, report = replace(was, past_lost_gpu_s=was.past_lost_gpu_s + lost_s), was.report
        spent_s = row.past_run_s + (report.run_s if report else 0.0)
        if 0 < row.spec.max_duration_s <= spent_s:
            self._end(row, Happening.FAILED, replace(ended, why=TIME_LIMIT), now_s)
            return
        self._flights.pop(row.id, None)  # it did not arrive
        homes = [self._book.hosts.get(host) for host in row.hosts]
        stays = (
            stored is not None
            and not leaves
            and not self._backup.awaits  # it may be elsewhere
            and not row.portions
            and stored.hosts == row.hosts
            and all(home is not None and self._takes(row, home) for home in homes)
            and self._models(row.hosts) == row.gpu_models  # else a server has others now
        )
        hosts = row.hosts if stays else home
        happenings = (Happening.REQUEUED, Happening.PLACED) if hosts else (Happening.REQUEUED,)
        state = states.after(row, *happenings)
        new = replace(
            self._next_epoch(row),
            state=state,
            hosts=hosts,
            gpu_models=self._models(home) if home else row.gpu_models,
            settled_s=now_s if home else row.settled_s,
            shape=row.shape if hosts or (stored is not None and isinstance(row.shape, Spread)) else None,
            stored=stored,
            portions=(),
            base_step=0,
            given_up=as_lost(was) if ended.why == LOST else (),
        )
        self._put(new, now_s)

    def _next_epoch(self, row: Job) -> Job:
        """Another incarnation may start; what this one received is kept in its account."""
        report = row.report
        self._asking.stale = True
        self._told.over(row, row.hosts)
        self._abroad.begins_anew(row.id)
        return replace(
            row,
            epoch=self._backup.epoch_after(row),
            restarts=row.restarts + 1,
            carry=None,
            reports={},
            move=None,
            origin=None,
            accumulation=1,  # unless the policy lets it start beside another again
            past_gpu_s=row.gpu_s,
            past_gpu_s_by_model=dict(row.gpu_s_by_model),
            past_run_s=row.past_run_s + (report.run_s if report else 0.0),
            past_lost_gpu_s=row.past_lost_gpu_s + (report.lost_gpu_s if report else 0.0),
            past_switches=row.switches,
        )

    def _takes(self, row: Job, host: Host) -> bool:
        """Whether it could start there now."""
        able = len(host.healthy_gpus) >= row.gpus
        return host.name in self._connected and host.schedulable and able

    def _end(
        self, row: Job, happening: Happening, ended: Exit, now_s: float, at_s: float | None = None
    ) -> None:
        state = states.after(row, happening)
        self._told.over(row, row.hosts)  # the next Wanted says so anyway
        over = replace(
            row,
            state=state,
            exit=ended,
            ended_s=now_s if at_s is None else at_s,
            move=None,
            stored=None,
            given_up=(),
            left_behind=(),
        )
        self._put(over, now_s, at_s=at_s)
        self._asking.stale = (
            self._asking.stale
            or self.policy.needs.ends
            or self._book.makes_room_in_array(row)
            or any(map(self._idles_beside_gangs, row.hosts))
        )
        self._forget_job(row, now_s)
        self._fact(now_s, str(state), f"it {_ENDED_WORDS[state]} ({exit_text(ended)})", job=row.id)
        self._release_waiters(row.id, now_s)
        for gone in self._book.evict(spare=self._event.before):  # the driver is yet to look at these
            self._stories.pop(gone, None)

    def _idles_beside_gangs(self, name: HostName) -> bool:
        """It has parts of gangs over several servers, and GPUs that no other job there asks for: no server's own stride hands them to a gang."""
        if self._book.spanned.get(name, 0) <= 0:
            return False
        rows = [self._book.live[job] for job in self._book.at_host.get(name, ())]
        asked = sum([row.gpus for row in rows if row.nodes == 1 and not row.paused])
        return asked < len(self._book.gpus.get(name, ()))

    def _forget_job(self, row: Job, now_s: float) -> None:
        self._tickets.pop(row.id, None)
        self._since_s.pop(row.id, None)
        self._flights.pop(row.id, None)
        self._grounded.forget(row.id)
        self._unable.for_memory.forget(row.id)
        self._unable.sent_on.pop(row.id, None)
        self._abroad.forget(row.id)
        self._unforked.forget_job(row.id)
        self._orders.forget(row.id, row.hosts)
        self._sight.forget(row.id)
        self._rates.forget_job(row.id)
        self._restless.update(self._backup.over(row.id))
        self._account(now_s).forget(row.id)

    def _cancel(self, row: Job, by: str, now_s: float, *, why: str = "") -> None:
        if row.state.ended or row.state is JobState.CANCELLING:
            return
        self._asking.stale = True
        if row.hosts:
            state = states.after(row, Happening.CANCELLED)
            self._put(replace(row, state=state, cancelled_by=by, move=None), now_s)
            ends = "ends" if len(row.hosts) == 1 else "end"
            self._fact(now_s, "cancelled", f"{by} cancelled it; {', '.join(row.hosts)} {ends} it", job=row.id)
            return
        ended = Exit(why=why or f"cancelled by {by}")
        self._end(replace(row, cancelled_by=by), Happening.DROPPED, ended, now_s)

    def _release_waiters(self, job: JobId, now_s: float) -> None:
        """Of a chain, which may be of thousands, those that end with it come one after the other, never one within the other."""
        self._releasing.append(job)
        if len(self._releasing) > 1:
            return
        while self._releasing:
            self._released_by(self._releasing[0], now_s)
            self._releasing.popleft()

    def _released_by(self, job: JobId, now_s: float) -> None:
        state = self._book.jobs[job].state
        for waiter, conditions in sorted(self._book.waiters.get(job, {}).items()):
            row = self._book.live.get(waiter)
            if row is None:
                continue
            for condition in conditions:
                if admission.dependency(condition, state) is admission.Dependency.NEVER:
                    why = admission.never_text(After(job=job, condition=condition), state)
                    self._cancel(row, "its dependency", now_s, why=why)
                    break
            else:
                self._asking.stale = True
                self._book.met(waiter)


_ENDED_WORDS = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}


def _is_one(stored: Stored | None) -> bool:
    """And not the average of several."""
    return stored is not None and not stored.copies


def _without(row: Job, why: str) -> tuple[HostName, ...]:
    """Servers on which a part of it ended for this."""
    parts = ((name, row.reports.get(name)) for name in row.hosts)
    return tuple(name for name, part in parts if part and part.exit and part.exit.why.startswith(why))
