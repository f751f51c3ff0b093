"""What administrators say of servers (drained, removed) and of the policy. Every word is a deed with who said it; said again it changes nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite

from hs_core import policies
from hs_core.cluster import checkpoints, reports
from hs_core.cluster.contents import Contents
from hs_core.cluster.gpus_out import gpus_text
from hs_core.cluster.hosts import Hosts
from hs_core.cluster.starts import Starts
from hs_core.cluster.trade_facts import all_taken_back
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import GpusDrained, HostDrained, HostRemoved, HostUndrained, PolicySet
from hs_core.model import Drain, Host, Job
from hs_core.names import GpuId, HostName, JobId
from hs_core.policy import Policy
from hs_core.words import listed

_TEXT_CHARS = 1000


class Admin:
    def __init__(
        self, contents: Contents, starts: Starts, hosts: Hosts, dress: Callable[[Policy], Policy]
    ) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._book = contents.book
        self._connected = contents.connected
        self._fact = contents.fact
        self._put = contents.put
        self._restless = contents.restless
        self._said = contents.said
        self._settings = contents.settings
        self._starts = starts
        self._hosts = hosts
        self._dress = dress

    def _known_host(self, name: HostName) -> Host:
        host = self._book.hosts.get(name)
        if host is None:
            known = ", ".join(sorted(self._book.hosts)[:10]) or "none yet"
            raise RefusedError(f"unknown server {name!r}; known: {known}", Kind.NOT_FOUND)
        return host

    def policy_set(self, event: PolicySet) -> None:
        """No job is touched: homes, GPU-time and measured rates are everybody's; only what the old one remembered is forgotten, and who was to start beside another has its whole mini-batches again.

        What it is at is given up. The same one again is asked anew, with what it remembers, where it stays at a decision; else nothing changes.
        """
        policy = policies.find(event.name)
        old = self._contents.policy
        stays = self._asking.at_it_s(event.now_s) > self._settings.quantum_s
        if policy.name == old.name and not stays:
            return
        if stays:
            self._tell_given_up(event)
        self._asking.question, self._contents.event.gives_up = None, self._settings.decides_apart
        self._asking.stale, self._asking.decided_s = True, None  # it is asked at once
        if policy.name == old.name:
            return
        self._contents.event.facts += all_taken_back(self._said.trades, event.by, policy.name, event.now_s)
        self._said.trades = ()
        self._said.entitled, self._said.base = self._said.base or self._said.entitled, {}
        self._contents.policy, self._contents.in_office_s = self._dress(policy), event.now_s
        self._contents.memory = {}
        for row in [row for row in self._book.live.values() if row.accumulation > 1]:
            if not any(map(reports.has_process, row.reports.values())):
                self._put(replace(row, accumulation=1), event.now_s)
                self._restless.update(row.hosts)
        self._said.failure, self._asking.took_s = None, 0.0
        self._contents.sight.serve(policy.needs)
        self._contents.event.meta = True
        text = f"{event.by} puts the policy {policy.name} in place of {old.name}"
        self._contents.deed(event.now_s, "policy-set", text, by=event.by, user=event.by, old=old.name)

    def _tell_given_up(self, event: PolicySet) -> None:
        name, after_s = self._contents.policy.name, self._asking.at_it_s(event.now_s)
        text = f"{event.by} gives up the decision at which the policy {name} has been for {after_s:.0f} s"
        self._fact(
            event.now_s,
            "policy-given-up",
            text,
            user=event.by,
            data={"by": event.by, "policy": name, "after_s": round(after_s, 3)},
            deed=True,
        )

    def host_drained(self, event: HostDrained) -> None:
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
        self._contents.deed(event.now_s, "host-drained", text, by=event.by, user=event.by, host=host.name)

    def host_undrained(self, event: HostUndrained) -> None:
        host = self._known_host(event.host)
        if host.drain is None:
            return
        self._set_host(replace(host, drain=None))
        self._contents.unable.of_all.forget(host.name)
        self._starts.unbar(host=host.name)
        text = f"{event.by} lets {host.name} have jobs again"
        self._contents.deed(event.now_s, "host-undrained", text, by=event.by, user=event.by, host=host.name)

    def gpus_drained(self, event: GpusDrained) -> None:
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
        self._contents.deed(event.now_s, kind, text, by=event.by, user=event.by, host=host.name)

    def _set_host(self, host: Host) -> None:
        self._book.put_host(host)
        self._contents.event.hosts.add(host.name)
        self._restless.add(host.name)
        self._asking.stale = True

    def host_removed(self, event: HostRemoved) -> None:
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
        if name in self._connected and (needing := checkpoints.needing(self._book, name)):
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
        self._contents.deed(now_s, "host-removed", text, by=event.by, user=event.by, host=name)
        self._hosts.forget(name, f"{name} was removed", now_s)

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
        if name in self._contents.absent.unknown:
            raise RefusedError(
                f"server {name!r} may be on its way back: the controller has only just begun; try again in "
                f"{self._settings.lease_s:g} s, or remove it by force (hsctl node remove --force)",
                Kind.CONFLICT,
            )


def _has_ended_at(row: Job, host: HostName) -> bool:
    part = row.reports.get(host)
    return part is not None and part.exit is not None


def _which(jobs: Sequence[JobId]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + listed(jobs)


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
