"""The end of one incarnation and the beginning of another, from the newest checkpoint that is left to be had."""

from collections.abc import Collection
from dataclasses import replace

from hs_core.cluster import checkpoints, copies, states
from hs_core.cluster.contents import Contents
from hs_core.cluster.ends import Ends
from hs_core.cluster.given_up import as_lost
from hs_core.cluster.states import Happening
from hs_core.forms import Spread
from hs_core.model import Host, Job, OnPartition, Stored
from hs_core.names import HostName
from hs_core.reports import LOST, TIME_LIMIT, Exit


class Anew:
    def __init__(self, contents: Contents, ends: Ends) -> None:
        self._contents = contents
        self._abroad = contents.abroad
        self._asking = contents.asking
        self._backup = contents.backup
        self._book = contents.book
        self._connected = contents.connected
        self._fact = contents.fact
        self._put = contents.put
        self._ends = ends

    def lost(self, row: Job, why: str, now_s: float, *, forgot: bool = False, counted_s: float = 0.0) -> None:
        """Its incarnation is dead, through no fault of its own. `forgot`: its host, which may have its files still, knows nothing of it; `counted_s`: GPU-seconds
        that are lost by it as well, and are in its account already."""
        ended = Exit(why=LOST)
        if row.cancelled_by:
            self._ends.end(row, Happening.GONE, ended, now_s)
            return
        stored = self.newest(row)
        again = f"; it goes on from step {stored.step}" if stored else ""
        if stored is not None and (doubted := checkpoints.doubted(row, stored)) != stored:
            stored = doubted
            again += f", or from a newer checkpoint if one is in {row.spec.checkpoint_dir}"
        elif stored is not None and forgot and stored.is_at(row.hosts) and not stored.copies:
            stored = replace(stored, surpassed=True)
            again += ", or from a newer checkpoint if one is there"
        elif stored is None and (stored := self.perhaps(row)) is not None:
            again = f"; {self.unless_back(row, stored)}"
        elif stored is None and (stored := checkpoints.unknown(row)) is not None:
            again = f"; without a checkpoint in {row.spec.checkpoint_dir} it starts afresh"
        elif stored is None and (row.step > 0 or (row.stored is not None and row.stored.step > 0)):
            again = "; no checkpoint of it is left to be had, it starts afresh"
        lost_s = checkpoints.lost_work_gpu_s(row, stored.step if stored else 0)
        data: dict[str, str | int | float] = {"lost_gpu_s": round(counted_s + lost_s, 3)}
        self._fact(now_s, "lost", f"it was lost: {why}{again}", job=row.id, data=data)
        self.again(row, stored, ended, now_s, lost_s)

    def newest(self, row: Job) -> Stored | None:
        """Its newest checkpoint that it may go on from."""
        return self._newest_on(row, self.keepers(row))

    def perhaps(self, row: Job) -> Stored | None:
        """Its newest where none is within reach: it goes on from that if the servers that are cut off are back before it has a place, or its own folder has it."""
        if row.portions or (row.stored is not None and row.stored.copies):
            return None
        return self._newest_on(row, self._book.hosts) or checkpoints.sought(
            row, checkpoints.kept(row) or row.stored
        )

    def unless_back(self, row: Job, stored: Stored) -> str:
        which = f"its checkpoint of step {stored.step}"
        if stored.in_folder:
            return f"it goes on from {which} if that is in {row.spec.checkpoint_dir}"
        gone = [name for name in stored.servers if name in self._contents.absent.fenced]
        back = checkpoints.back(replace(row, stored=stored), gone, beside=self.keepers(row))
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

    def keepers(self, row: Job) -> Collection[HostName]:
        """Servers from which it may have its checkpoint; who said `fence` does not wait for one that is cut off."""
        hosts = self._book.hosts.keys()
        return hosts - self._contents.absent.fenced if row.spec.on_partition is OnPartition.FENCE else hosts

    def again(
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
            self._ends.end(row, Happening.FAILED, replace(ended, why=TIME_LIMIT), now_s)
            return
        self._contents.flights.pop(row.id, None)  # it did not arrive
        homes = [self._book.hosts.get(host) for host in row.hosts]
        stays = (
            stored is not None
            and not leaves
            and not self._backup.awaits  # it may be elsewhere
            and not row.portions
            and stored.hosts == row.hosts
            and all(home is not None and self.takes(row, home) for home in homes)
            and self._contents.models_of(row.hosts) == row.gpu_models  # else a server has others now
        )
        hosts = row.hosts if stays else home
        happenings = (Happening.REQUEUED, Happening.PLACED) if hosts else (Happening.REQUEUED,)
        state = states.after(row, *happenings)
        new = replace(
            self.next_epoch(row),
            state=state,
            hosts=hosts,
            gpu_models=self._contents.models_of(home) if home else row.gpu_models,
            settled_s=now_s if home else row.settled_s,
            shape=row.shape if hosts or (stored is not None and isinstance(row.shape, Spread)) else None,
            stored=stored,
            portions=(),
            base_step=0,
            given_up=as_lost(was) if ended.why == LOST else (),
        )
        self._put(new, now_s)

    def next_epoch(self, row: Job) -> Job:
        """Another incarnation may start; what this one received is kept in its account."""
        report = row.report
        self._asking.stale = True
        self._contents.told.over(row, row.hosts)
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

    def takes(self, row: Job, host: Host) -> bool:
        """Whether it could start there now."""
        able = len(host.healthy_gpus) >= row.gpus
        return host.name in self._connected and host.schedulable and able

    def cannot_be_had(self, row: Job, why: str, now_s: float) -> None:
        lost_s = checkpoints.lost_work_gpu_s(row, 0)
        row = replace(row, stored=None, past_lost_gpu_s=row.past_lost_gpu_s + lost_s)
        afresh = "" if checkpoints.unknown(row) is not None else "; it starts afresh"
        self.lost(row, f"{why}{afresh}", now_s, counted_s=lost_s)
