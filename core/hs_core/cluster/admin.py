"""What administrators say of servers (drained, removed) and of the policy. Every word is a deed with who said it; said again it changes nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite

from hs_core import policies
from hs_core.cluster import reports
from hs_core.cluster.gpus_out import gpus_text
from hs_core.cluster.hosts import Hosts
from hs_core.cluster.trade_facts import all_taken_back
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import GpusDrained, HostDrained, HostRemoved, HostUndrained, PolicySet
from hs_core.model import Drain, Host, Job
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import Phase
from hs_core.words import listed

_TEXT_CHARS = 1000
_UP = frozenset({Phase.HELD, Phase.SWAPPED, Phase.RUNNING, Phase.SUSPENDING})


class Admin(Hosts):
    def _deed(
        self,
        now_s: float,
        kind: str,
        text: str,
        *,
        by: str,
        user: UserName,
        host: HostName | None = None,
        **more: str,
    ) -> None:
        self._fact(now_s, kind, text, user=user, host=host, data={"by": by, **more}, deed=True)

    def _known_host(self, name: HostName) -> Host:
        host = self._book.hosts.get(name)
        if host is None:
            known = ", ".join(sorted(self._book.hosts)[:10]) or "none yet"
            raise RefusedError(f"unknown server {name!r}; known: {known}", Kind.NOT_FOUND)
        return host

    def _policy_set(self, event: PolicySet) -> None:
        """No job is touched: homes, GPU-time and measured rates are everybody's; only what the old one remembered is forgotten, and who was to start beside another has its whole mini-batches again.

        What it is at is given up. The same one again is asked anew, with what it remembers, where it stays at a decision; else nothing changes.
        """
        policy = policies.find(event.name)
        old = self.policy
        stays = self.stays_at_it(event.now_s)
        if policy.name == old.name and not stays:
            return
        if stays:
            self._tell_given_up(event)
        self._asking.question, self._event.gives_up = None, self.settings.decides_apart
        self._asking.stale, self._asking.decided_s = True, None  # it is asked at once
        if policy.name == old.name:
            return
        self._event.facts += all_taken_back(self._said.trades, event.by, policy.name, event.now_s)
        self._said.trades = ()
        self._said.entitled, self._said.base = self._said.base or self._said.entitled, {}
        self.policy, self._in_office_s = self._dress(policy), event.now_s
        self._memory = {}
        for row in [row for row in self._book.live.values() if row.accumulation > 1]:
            if not any(map(reports.has_process, row.reports.values())):
                self._put(replace(row, accumulation=1), event.now_s)
                self._restless.update(row.hosts)
        self._said.failure, self._asking.took_s = None, 0.0
        self._sight.serve(policy.needs)
        self._event.meta = True
        text = f"{event.by} puts the policy {policy.name} in place of {old.name}"
        self._deed(event.now_s, "policy-set", text, by=event.by, user=event.by, old=old.name)

    def _tell_given_up(self, event: PolicySet) -> None:
        name, after_s = self.policy.name, self.deciding_s(event.now_s)
        text = f"{event.by} gives up the decision at which the policy {name} has been for {after_s:.0f} s"
        self._fact(
            event.now_s,
            "policy-given-up",
            text,
            user=event.by,
            data={"by": event.by, "policy": name, "after_s": round(after_s, 3)},
            deed=True,
        )

    def _host_drained(self, event: HostDrained) -> None:
        host = self._known_host(event.host)
        if event.deadline_s is not None and not isfinite(event.deadline_s):
            raise RefusedError(f"deadline_s: {event.deadline_s} is not a time")
        if len(event.reason) > _TEXT_CHARS:
            raise RefusedError(f"reason: {len(event.reason)} characters; at most {_TEXT_CHARS} were expected")
        old = host.drain or Drain(by=event.by, since_s=event.now_s)
        deadline_s = old.deadline_s if event.deadline_s is None else event.deadline_s
        drain = replace(old, reason=event.reason or old.reason, deadline_s=deadline_s)
        if drain == host.drain:
            return
        self._set_host(replace(host, drain=replace(drain, by=event.by)))
        left_s = None if deadline_s is None else max(0.0, deadline_s - event.now_s)
        until = "" if left_s is None else f"; what is left there in {left_s:.0f} s is ended and queued again"
        reason = f" ({drain.reason})" if drain.reason else ""
        text = f"{event.by} drains {host.name}{reason}{until}"
        self._deed(event.now_s, "host-drained", text, by=event.by, user=event.by, host=host.name)

    def _host_undrained(self, event: HostUndrained) -> None:
        host = self._known_host(event.host)
        if host.drain is None:
            return
        self._set_host(replace(host, drain=None))
        self._unable.of_all.forget(host.name)
        self._unbar(host=host.name)
        text = f"{event.by} lets {host.name} have jobs again"
        self._deed(event.now_s, "host-undrained", text, by=event.by, user=event.by, host=host.name)

    def _gpus_drained(self, event: GpusDrained) -> None:
        host = self._known_host(event.host)
        # One that was taken out of the server since stays drained, should it come back.
        old = host.drained_gpus
        unknown = sorted(event.gpus - {gpu.id for gpu in host.gpus} - old)
        if unknown:
            raise RefusedError(f"gpus: {host.name} has no GPU {unknown[0]!r}", Kind.NOT_FOUND)
        if len(event.reason) > _TEXT_CHARS:
            raise RefusedError(f"reason: {len(event.reason)} characters; at most {_TEXT_CHARS} were expected")
        self._set_gpus(host, event, "gpus-undrained", old - event.gpus)
        self._set_gpus(self._book.hosts[host.name], event, "gpus-drained", event.gpus - old)

    def _set_gpus(self, host: Host, event: GpusDrained, kind: str, changed: frozenset[GpuId]) -> None:
        if not changed:
            return
        self._set_host(replace(host, drained_gpus=host.drained_gpus ^ changed))
        which = f"{gpus_text(host, changed)} of {host.name}"
        reason = f" ({event.reason})" if event.reason else ""
        does = f"drains {which}" if kind == "gpus-drained" else f"lets {which} have jobs again"
        text = f"{event.by} {does}{reason}"
        self._deed(event.now_s, kind, text, by=event.by, user=event.by, host=host.name)

    def _set_host(self, host: Host) -> None:
        self._book.put_host(host)
        self._event.hosts.add(host.name)
        self._restless.add(host.name)
        self._asking.stale = True

    def _host_removed(self, event: HostRemoved) -> None:
        host = self._known_host(event.host)
        name, now_s = host.name, event.now_s
        there = self._book.at(name)
        if name in self._connected and (host.drain is None or there):
            left = f"{_jobs(len(there))} there" if there else "it is not drained"
            todo = (
                "drain it first"
                if host.drain is None
                else "it is being drained, wait until it is empty (hsctl node drain --wait; --deadline ends what cannot leave)"
            )
            raise RefusedError(f"server {name!r} is connected and {left}: {todo}", Kind.CONFLICT)
        if name in self._connected and (needing := self.needing(name)):
            raise RefusedError(
                f"server {name!r} has the only checkpoint of {_which(needing)}: it can be removed once that is fetched, or, "
                "to give it up, once its agent is stopped",
                Kind.CONFLICT,
            )
        may_run = () if name in self._connected else self._may_run(name)
        if name not in self._connected and not event.force:
            self._refuse_live(name, may_run)
        still = f" by force, and {_which(may_run)} may still run there" if may_run else ""
        text = f"{event.by} removed {name}{still}"
        self._deed(now_s, "host-removed", text, by=event.by, user=event.by, host=name)
        self._forget_host(name, f"{name} was removed", now_s)

    def _may_run(self, name: HostName) -> tuple[JobId, ...]:
        """Jobs of which there is a process on a server that is away, or may be one by now."""
        there = [row for row in self._book.at(name) if not _has_ended_at(row, name)]
        return tuple(sorted({row.id for row in there} | set(self._book.unconfirmed.get(name, ()))))

    def _refuse_live(self, name: HostName, may_run: tuple[JobId, ...]) -> None:
        """Jobs outlive an agent that was stopped, and a controller that has only begun knows nobody who is away."""
        if may_run:
            raise RefusedError(
                f"server {name!r} is away, and {_which(may_run)} may still run there, then twice: start its agent and drain it,"
                " or switch the machine off and remove it by force (hsctl node remove --force)",
                Kind.CONFLICT,
            )
        if name in self._absent.unknown:
            raise RefusedError(
                f"server {name!r} may be on its way back: the controller has only just begun; try again in "
                f"{self.settings.lease_s:g} s, or remove it by force (hsctl node remove --force)",
                Kind.CONFLICT,
            )

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _tend_drains(self, now_s: float) -> None:
        """At the deadline what is left is told to end; its exit then queues it again (`_exited`). What can writes a checkpoint before."""
        doomed = self._doomed(now_s)
        there = {row.id: row for name in doomed for row in self._book.at(name)}
        self._evictions.forget_others(there, now_s)
        saving = frozenset(id_ for id_, row in there.items() if self._saves_first(row, doomed, now_s))
        for id_ in self._evictions.saving ^ saving:
            self._restless.update(self._book.jobs[id_].hosts if id_ in self._book.jobs else ())
        self._evictions.saving = saving
        if doomed == self._evictions.doomed:
            return
        for name in doomed - self._evictions.doomed:
            jobs = self._book.at(name)
            self._restless.update(*(row.hosts for row in jobs))
            if jobs:
                left = (
                    "1 job that is left there is"
                    if len(jobs) == 1
                    else f"{len(jobs)} jobs that are left there are"
                )
                text = f"{name} was to be empty by now: {left} ended and queued again"
                self._fact(now_s, "drain-deadline", text, host=name)
        for name in self._evictions.doomed - doomed:
            self._restless.update(*(row.hosts for row in self._book.at(name)))
        self._evictions.doomed = doomed
        self._asking.stale = True

    def _drain_deadlines(self, now_s: float) -> Iterator[float]:
        for name in self._book.draining:
            drain = self._book.hosts[name].drain
            if drain is not None and drain.deadline_s is not None and drain.deadline_s > now_s:
                yield drain.deadline_s
        yield from self._evictions.deadlines(self.settings.move_deadline_s)

    def _saves_first(self, row: Job, doomed: frozenset[HostName], now_s: float) -> bool:
        """It has done something on a server that was to be empty since its last checkpoint, and can write one: for that it has as long as one that moves, from when its server could be told."""
        if row.portions or row.cancelled_by:
            return False
        parts = [row.reports.get(name) for name in row.hosts]
        there = [part for part in parts if part is not None and part.phase in _UP and part.can_checkpoint]
        written = [part for part in parts if part is not None and part.phase is Phase.CHECKPOINTED]
        if len(there) + len(written) < len(parts) or all(p.step <= p.checkpoint_step for p in there):
            return False
        begun = self._evictions.has_begun(row.id)
        if not begun and self._connected.isdisjoint(doomed.intersection(row.hosts)):
            return True
        return self._evictions.has_time(row.id, now_s, self.settings.move_deadline_s)


def _has_ended_at(row: Job, host: HostName) -> bool:
    part = row.reports.get(host)
    return part is not None and part.exit is not None


def _which(jobs: Sequence[JobId]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + listed(jobs)


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
