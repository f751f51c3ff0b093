"""A job's processes have ended: whether it has, or is tried again, or goes on elsewhere."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from hs_core.cluster import checkpoints, copies, reports
from hs_core.cluster.anew import Anew
from hs_core.cluster.contents import Contents
from hs_core.cluster.ends import Ends
from hs_core.cluster.starts import Starts
from hs_core.cluster.states import Happening
from hs_core.cluster.why import exit_text
from hs_core.model import Job, Stored
from hs_core.names import HostName
from hs_core.reports import (
    CANNOT_FETCH,
    FINAL,
    LAUNCH_FAILED,
    LOST,
    NOT_AS_BEFORE,
    OF_GPUS,
    OF_HOST,
    TOLD_TO_END,
    Exit,
)


class Exits:
    def __init__(self, contents: Contents, starts: Starts, ends: Ends, anew: Anew) -> None:
        self._contents = contents
        self._abroad = contents.abroad
        self._backup = contents.backup
        self._book = contents.book
        self._connected = contents.connected
        self._doomed = contents.doomed
        self._fact = contents.fact
        self._unable = contents.unable
        self._starts = starts
        self._ends = ends
        self._anew = anew

    def exited(self, row: Job, ended: Exit, now_s: float, at_s: float) -> None:
        """`at_s`: its end came about then."""
        evicted = self._doomed(now_s) & set(row.hosts)
        ended = reports.own_end(row) or ended
        if row.cancelled_by:
            self._ends.end(row, Happening.GONE, ended, now_s, at_s)
        elif ended.why.startswith(LOST):
            why = ended.why.removeprefix(LOST).removeprefix(": ")
            self._anew.lost(row, why or LOST, now_s)
        elif ended.why.startswith(CANNOT_FETCH) and (self._backup.has(row.stored) or _is_one(row.stored)):
            self._not_fetched(row, ended, now_s)
        elif evicted and not ended.ok:  # told to end: where it ended well its host would say so
            self._anew.lost(row, f"{min(evicted)} was to be empty by now", now_s)
        elif ended.why == TOLD_TO_END:  # it was to be, and is not any more
            self._anew.lost(row, f"{', '.join(row.hosts)} had been told to end it", now_s)
        elif ended.ok:
            self._ends.end(row, Happening.SUCCEEDED, ended, now_s, at_s)
        elif self.is_crowded_out(row, ended):
            self._crowded_out(row, ended, now_s)
        elif ended.why not in FINAL and copies.fail_at_start(row):
            self._forked_in_vain(row, ended, now_s)
        elif (began := self.began_before(row, ended)) is not None:
            self._send_on(row, began, ended, now_s)
        elif self._may_be_its_servers_fault(row, ended, now_s):
            self._start_elsewhere(row, ended, now_s)
        elif self.may_try_again(row, ended):
            stored = self._anew.newest(row) or self._anew.perhaps(row)
            lost_s = checkpoints.lost_work_gpu_s(row, stored.step if stored else 0)
            row = self.retried(row, ended, now_s, lost_s)
            self._anew.again(row, stored, ended, now_s, lost_s)
        else:
            self._ends.end(row, Happening.FAILED, self._nowhere(row, ended), now_s, at_s)

    def began_before(self, row: Job, ended: Exit) -> Stored | None:
        """What one goes on from that trained before, and has failed at its start on servers that may lack what the others have."""
        if ended.why or not self._abroad.may_fail(row):
            return None
        stored = row.stored
        if stored is not None and self._connected.issuperset(stored.hosts):
            return stored  # until a process has taken it up it is kept there
        return self._anew.newest(row) or self._anew.perhaps(row)

    def _send_on(self, row: Job, began: Stored, ended: Exit, now_s: float) -> None:
        servers, how = self.failed_abroad(row, ended, now_s), exit_text(ended)
        lost_s = checkpoints.lost_work_gpu_s(row, began.step)
        there = f" on {', '.join(servers)}" if len(row.hosts) > 1 and servers else ""
        text = f"it failed{there} where it was sent before it did a step ({how}): it goes on from {_whence(row, began)} elsewhere"
        self._fact(now_s, "sent-elsewhere", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        self._anew.again(row, began, ended, now_s, lost_s, leaves=True)

    def failed_abroad(self, row: Job, ended: Exit, now_s: float) -> tuple[HostName, ...]:
        servers, how = self._abroad.suspects(row), exit_text(ended)
        self._abroad.fails(row, servers, how)
        for name in servers:
            self._starts.cannot_start(row, name, f"{NOT_AS_BEFORE}: {how}", now_s)
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
            "any model" if self._contents.policy.needs.mixed else host.model
            for name, host in self._book.hosts.items()
            if name not in out
            and (not types or host.model in types)
            and self._anew.takes(row, host)
            and (row.nodes == 1 or host.peer)
        )
        return max(able.values(), default=0) >= row.nodes

    def _start_elsewhere(self, row: Job, ended: Exit, now_s: float) -> None:
        servers = _without(row, LAUNCH_FAILED)
        for name in servers:
            self._starts.cannot_start(row, name, ended.why, now_s)
        self._unable.sent_on[row.id] = servers
        other = "another server" if row.nodes == 1 else "other servers"
        text = f"{exit_text(ended)} on {', '.join(servers)}: it is tried on {other}, once"
        self._fact(now_s, "sent-elsewhere", text, job=row.id)
        self._anew.again(row, row.stored, ended, now_s, 0.0, leaves=True)

    def _nowhere(self, row: Job, ended: Exit) -> Exit:
        """Where it is so on several servers none is to blame."""
        first = self._unable.sent_on.get(row.id)
        if first is not None and ended.why.startswith(LAUNCH_FAILED):
            for name in first:
                self._starts.bar_no_more(row.user, name)
            return replace(ended, why=f"{ended.why}; so it was on {', '.join(first)}")
        before = self._abroad.failed(row.id)
        if not before or ended.why:
            return ended
        text = f"at its start, as on {', '.join(before)}, where it was sent before ({exit_text(ended)})"
        return replace(ended, why=text)

    def _not_fetched(self, row: Job, ended: Exit, now_s: float) -> None:
        """No fault of its own, nor anything that its owner could mend."""
        if self._backup.has(row.stored):
            self._anew.cannot_be_had(row, f"the backup's checkpoint of it is gone ({ended.why})", now_s)
        elif row.stored is not None and row.stored.in_folder and self._may_be_unseen(row, now_s):
            self._look_elsewhere(row, row.stored, ended, now_s)
        elif row.stored is not None and row.stored.in_folder:
            self._anew.cannot_be_had(row, f"who had its checkpoint is lost ({ended.why})", now_s)
        elif self._could_begin_at_source(row, now_s):
            self._send_back(row, ended, now_s)
        else:
            self._anew.cannot_be_had(row, ended.why, now_s)

    def _may_be_unseen(self, row: Job, now_s: float) -> bool:
        """In the folder that its user named: that a server which does not see it, and which lacks a file system, finds nothing in it means nothing."""
        servers = _without(row, CANNOT_FETCH)
        again = not row.portions and self._abroad.may_try(row.id)
        return again and self._could_start_without(row, {*servers, *self._abroad.failed(row.id)}, now_s)

    def _look_elsewhere(self, row: Job, stored: Stored, ended: Exit, now_s: float) -> None:
        servers = _without(row, CANNOT_FETCH)
        self._abroad.fails(row, servers, exit_text(ended))
        there = f"in {row.spec.checkpoint_dir} on {', '.join(servers)} ({exit_text(ended)})"
        text = f"its checkpoint of step {stored.step} is not {there}: it is looked for elsewhere"
        self._fact(now_s, "sent-elsewhere", text, job=row.id)
        self._anew.again(row, stored, ended, now_s, 0.0, leaves=True)

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
        self._anew.again(row, stored, ended, now_s, 0.0, home=stored.hosts)

    def is_crowded_out(self, row: Job, ended: Exit) -> bool:
        """For want of memory that others held, and it may go better once more."""
        if ended.why.startswith(OF_HOST):
            return row.step > row.crowded_step
        return ended.why.startswith(OF_GPUS) and row.needs_bytes < self._most_bytes(row)

    def after_crowding(self, row: Job, was: Job, ended: Exit) -> Job:
        """`was`: as it ended. What it needs of each GPU at the least is known by now; each time that this was too little twice as much is kept for it, until it is all of a GPU."""
        if ended.why.startswith(OF_HOST):
            return replace(row, crowded_step=was.step)
        report = was.report
        said_bytes = report.device_memory_bytes if report is not None else 0
        needs_bytes = min(max(said_bytes, 2 * row.needs_bytes), self._most_bytes(row))
        return replace(row, needs_bytes=needs_bytes)

    def _most_bytes(self, row: Job) -> int:
        """That any GPU of its servers has."""
        hosts = (self._book.hosts.get(name) for name in row.hosts)
        return max((gpu.memory_bytes for host in hosts if host is not None for gpu in host.gpus), default=0)

    def _crowded_out(self, row: Job, ended: Exit, now_s: float) -> None:
        row = self.after_crowding(row, row, ended)
        stored = self._anew.newest(row) or self._anew.perhaps(row)
        lost_s = checkpoints.lost_work_gpu_s(row, stored.step if stored else 0)
        goes_on = f"it goes on from {_whence(row, stored)}" if stored is not None else "it begins afresh"
        own = f", and has {row.needs_bytes / 2**30:.1f} GiB of each to itself"
        text = f"{exit_text(ended)}: {goes_on}{own if ended.why.startswith(OF_GPUS) else ''}"
        self._fact(now_s, "crowded-out", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        self._anew.again(row, stored, ended, now_s, lost_s)

    def _forked_in_vain(self, row: Job, ended: Exit, now_s: float) -> None:
        """That it trains as copies was not its own idea, so it has not failed before it has done so as one."""
        stored = self._anew.newest(row) or self._anew.perhaps(row)
        lost_s = checkpoints.lost_work_gpu_s(row, stored.step if stored else 0)
        step = f"from step {stored.step}" if stored is not None else "afresh"
        text = f"all of its copies failed as they were started ({exit_text(ended)}): it begins again as one, {step}"
        self._fact(now_s, "copies-failed", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        self._anew.again(row, stored, ended, now_s, lost_s)

    def may_try_again(self, row: Job, ended: Exit) -> bool:
        return row.retries < row.spec.retry_max and ended.why not in FINAL

    def retried(self, row: Job, ended: Exit, now_s: float, lost_s: float) -> Job:
        row = replace(row, retries=row.retries + 1)
        text = f"it failed ({exit_text(ended)}) and is tried again, {row.retries} of {row.spec.retry_max}"
        self._fact(now_s, "retried", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        return row


def _whence(row: Job, stored: Stored) -> str:
    return f"step {stored.step}" if not stored.in_folder else f"its newest in {row.spec.checkpoint_dir}"


def _is_one(stored: Stored | None) -> bool:
    """And not the average of several."""
    return stored is not None and not stored.copies


def _without(row: Job, why: str) -> tuple[HostName, ...]:
    """Servers on which a part of it ended for this."""
    parts = ((name, row.reports.get(name)) for name in row.hosts)
    return tuple(name for name, part in parts if part and part.exit and part.exit.why.startswith(why))
