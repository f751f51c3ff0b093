"""What is counted as it happens, for Prometheus. What can be read off the state at any moment is in metrics.py.

Counters begin at 0 with the process, as Prometheus expects; those that may lose nothing are kept in the journal and read off it.
"""

from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    disable_created_metrics,
)

from hs_controller.rows import Event
from hs_core.facts import TRADE, TRADE_UNDONE
from hs_core.model import Job, MoveReason
from hs_core.names import HostName, JobId
from hs_core.reports import JobReport

# Upper bounds of histograms, seconds. A hold takes tens of milliseconds, a checkpoint of a large model a minute and more.
SWITCH_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
CYCLE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
COMMIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
WATCHED = ("host-doubled",)  # kinds of events for which an alert ships
REFUSED = (("Join", "invitation"), ("page", "token"), ("connection", "handshake"))  # what strangers try
AT_ONCE = 1000  # switches that one report may tell of: more is no pace of a scheduler


class Meters:
    """Mutable; for one process. Lives on where the mind is built again."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        for about_python in (PlatformCollector, GCCollector):
            about_python(registry=registry)
        histogram, counter = partial(Histogram, registry=registry), partial(Counter, registry=registry)
        self._suspend_s = histogram(
            "hs_job_suspend_seconds",
            "From the order to suspend a job to its GPUs free, on each of its servers.",
            ["tier"],
            buckets=SWITCH_S,
        )
        self._resume_s = histogram(
            "hs_job_resume_seconds",
            "From the order to resume a job to its next step under way, on each of its servers.",
            ["tier"],
            buckets=SWITCH_S,
        )
        self._cycle_s = histogram(
            "hs_scheduler_cycle_seconds",
            "A decision with all around it: from what has happened to the orders.",
            ["policy"],
            buckets=CYCLE_S,
        )
        self._decision_s = histogram(
            "hs_policy_decision_seconds",
            "Of a scheduling cycle what the policy took.",
            ["policy"],
            buckets=CYCLE_S,
        )
        self._commit_s = histogram("hs_journal_commit_seconds", "A commit to the journal.", buckets=COMMIT_S)
        self._migrations = counter(
            "hs_migrations_total", "Started jobs that have gone on elsewhere, by why they moved.", ["reason"]
        )
        self._trades = counter("hs_trades_total", "Trades that were made.")
        self._undone = counter("hs_trades_undone_total", "Trades that were undone.")
        self._events = counter(
            "hs_events_total", "What has happened, by kind, as in `hsctl events`.", ["kind"]
        )
        self._refused = counter(
            "hs_refused_total", "What was refused to somebody, by call and why.", ["call", "why"]
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """`increase` sees a counter grow from its first sample on: one that appears with 1 has not grown, and nobody would be told."""
        for reason in MoveReason:
            self._migrations.labels(reason=str(reason))
        for call, why in REFUSED:
            self._refused.labels(call=call, why=why)
        for kind in WATCHED:
            self._events.labels(kind=kind)

    def published(self, events: Iterable[Event]) -> None:
        for event in events:
            fact = event.fact
            self._events.labels(kind=fact.kind).inc()
            # One that goes on in another shape may do so on other servers.
            if fact.kind == "migrated" or (
                fact.kind == "reshaped" and fact.data.get("from") != fact.data.get("to")
            ):
                self._migrations.labels(reason=str(fact.data.get("reason", ""))).inc()
            elif fact.kind == TRADE:
                self._trades.inc()
            elif fact.kind == TRADE_UNDONE:
                self._undone.inc()

    def refused(self, call: str, why: str) -> None:
        self._refused.labels(call=call, why=why).inc()

    def decided(self, policy: str, *, cycle_s: float, decision_s: float) -> None:
        self._cycle_s.labels(policy=policy).observe(cycle_s)
        self._decision_s.labels(policy=policy).observe(decision_s)

    def committed(self, took_s: float) -> None:
        self._commit_s.observe(took_s)

    def reported(self, host: HostName, reports: Iterable[JobReport], before: Mapping[JobId, Job]) -> None:
        """What this server's part of each job has been through since the report before, also while its agent was not connected; several switches between
        two reports count by their mean.

        `before`: the rows of these jobs until then. One that has left is in none any more.
        """
        for now in reports:
            row = before.get(now.job)
            if row is None or row.epoch != now.epoch:
                continue
            had = row.reports.get(host) or _nothing_yet(now)
            _observe(self._suspend_s, now, now.suspends - had.suspends, now.suspend_s - had.suspend_s)
            _observe(self._resume_s, now, now.resumes - had.resumes, now.resume_s - had.resume_s)


def _nothing_yet(now: JobReport) -> JobReport:
    return JobReport(job=now.job, epoch=now.epoch, phase=now.phase)


def _observe(histogram: Histogram, now: JobReport, times: int, took_s: float) -> None:
    for _ in range(min(times, AT_ONCE)):
        histogram.labels(tier=now.tier.value).observe(took_s / times)
