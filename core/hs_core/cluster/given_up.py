"""Incarnations that were taken for lost, or for not started yet, and went on unheard while their server was cut off.

What the controller knew of one may be gone there by then: of its checkpoints the newest are kept. Once its server is back, a job that has not begun
elsewhere goes on from what is there, or is done where it ended well there, or has failed, and what it has received meanwhile is its own.

So are copies that were cut off and not waited for: where nothing that came after them can be had, a part of their average is more than to begin afresh.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import fsum

from hs_core.cluster import checkpoints, copies, reports
from hs_core.forms import Form, Spread, strategy_of
from hs_core.model import Job, Stored, Switches, spans, spreads
from hs_core.names import GpuId, HostName
from hs_core.reports import (
    CROWDED_OUT,
    LAUNCH_FAILED,
    LOST,
    TIME_LIMIT,
    TOLD_TO_END,
    WITH_AGENT,
    Exit,
    JobReport,
    Phase,
)

_ITS_OWN = (
    CROWDED_OUT,
    LAUNCH_FAILED,
    TIME_LIMIT,
    WITH_AGENT,
)  # how reasons begin that it would have failed for, or known to be crowded out, had it been heard
MOST = 8  # incarnations of a job that were to begin on the same servers, one after another: older ones are not looked for


@dataclass(frozen=True, slots=True)
class Unheard:
    """What a server that is back says of one."""

    was: Job | None  # as it was known until now; None: a controller gave it up that remembered nothing of it
    now: Job
    newer: Stored | None  # checkpoint than the one that the job is to go on from
    begun_since: bool = False  # another incarnation did, of which nothing can be had now
    beyond: bool = (
        False  # what a backup knows, that was put back: how often it had failed until then nobody knows
    )

    @property
    def ended_well(self) -> Exit | None:
        """The script was through; of copies one is enough, as its script thinks that nothing is left."""
        if self.begun_since:
            return None
        if self.now.portions:
            return next((part.exit for part in self.now.reports.values() if part.exit and part.exit.ok), None)
        report = self.now.report
        if report is None or report.exit is None or not report.exit.ok:
            return None
        return report.exit

    @property
    def ended_badly(self) -> Exit | None:
        """The job is to blame. Said once: the word is repeated. Parts of a gang, and copies, may have failed as their servers were cut off from one another."""
        was, report = self.was, self.now.report
        if (
            self.begun_since
            or self.beyond
            or was is None
            or len(was.hosts) > 1
            or was.portions
            or (was.report and was.report.exit)
        ):
            return None
        if report is None or report.exit is None or report.exit.ok:
            return None
        ended = report.exit
        own = ended.why.startswith(_ITS_OWN) if ended.why else ended.signal not in reports.SENT
        return ended if own else None


def as_lost(row: Job) -> tuple[Job, ...]:
    """`Job.given_up` or `Job.left_behind` of a job, none of whose incarnations but this one may have run on. `row`: with its reports, before they are forgotten."""
    return (replace(row, given_up=(), left_behind=()),)


def as_rehomed(row: Job) -> tuple[Job, ...]:
    """`Job.given_up` of a job that leaves the home `row` has, on which it had not started. One that waited for the word of a home before never ran."""
    if row.unconfirmed:
        return row.given_up
    there = [was for was in row.given_up if was.hosts == row.hosts and was.epoch != row.epoch]
    return (*there, *as_lost(row))[-MOST:]


def heard(
    row: Job,
    host: HostName,
    report: JobReport,
    gpus: AbstractSet[GpuId],
    *,
    lacks: bool,
    last: int,
    beyond: bool = False,
) -> Unheard | None:
    """None: it is not of the last incarnation, or that cannot be told.

    `lacks`: nothing that it could go on from is within reach. `last`: the epoch of the last one that was known, where the job waits. `beyond`: as in `Unheard`.
    """
    if row.cancelled_by or any(map(reports.has_process, row.reports.values())):
        return None
    for rounds, begun_since in ((row.given_up, False), (row.left_behind, True)):
        was = _there(rounds, host, report.epoch)
        if was is not None and was.portions:
            now = _with(was, host, report, gpus)
            # One that says it has none has let go of what was known, for what came after it.
            newer = _of_copies(row, now, host, lacks=lacks) if report.checkpoint_generation >= 0 else None
            said = Unheard(was, now, newer, begun_since=begun_since)
            return None if said.newer is None and said.ended_well is None else said
    was = _there(row.given_up, host, report.epoch)
    remembers = any(one.epoch <= last for one in row.given_up)
    known = was or (None if remembers or row.hosts else _alone_there(row, host, last))
    if known is None or known.portions or known.epoch != report.epoch or host not in known.hosts:
        return None
    now = _with(known, host, report, gpus)
    return Unheard(was, now, _newer(row, now), beyond=beyond)


def heard_of_all(row: Job, was: Job, parts: Mapping[HostName, JobReport]) -> Unheard:
    """Of an incarnation over several servers, all of which have said how it stands there; `was`: as `restored.later`. What it wrote there is kept."""
    now = was
    for host, report in parts.items():
        now = _with(now, host, report, frozenset())
    return Unheard(was, now, _newer(row, now, kept=True), beyond=True)


def _with_that(rounds: tuple[Job, ...], was: Job, now: Job) -> tuple[Job, ...]:
    return tuple(now if one is was else one for one in rounds)


def _there(rounds: Iterable[Job], host: HostName, epoch: int) -> Job | None:
    return next((was for was in rounds if was.epoch == epoch and host in was.hosts), None)


def done(row: Job, said: Unheard) -> Job:
    """As it ended there; `row` has what it received in its account already."""
    now = said.now
    nothing = JobReport(job=row.id, epoch=row.epoch, phase=Phase.EXITED)
    ends = {
        host: replace(
            nothing,
            step=part.step,
            tier=part.tier,
            checkpoint_step=part.checkpoint_step,
            checkpoint_generation=part.checkpoint_generation,
            exit=part.exit or Exit(why=TOLD_TO_END),  # of a copy beside it
        )
        for host, part in now.reports.items()
    }
    return replace(
        row,
        hosts=now.hosts,
        gpu_models=now.gpu_models,
        shape=now.shape,
        portions=now.portions,
        base_step=now.base_step,
        reports=ends,
    )


def accounted(row: Job, said: Unheard, *, goes_on: bool) -> Job:
    """With what it has received beyond what was heard of, and that heard of. `goes_on`: it did not end there, so what is not in its checkpoint is done again. What was counted as lost stays so: it is a counter."""
    was, now = said.was, said.now
    if was is None:
        return row
    before, after = was.report, now.report
    assert after is not None
    by_model = dict(row.past_gpu_s_by_model)
    for model, gpu_s in now.now_gpu_s_by_model.items():
        by_model[model] = by_model.get(model, 0.0) + gpu_s - was.now_gpu_s_by_model.get(model, 0.0)
    stored = said.newer or row.stored
    step = stored.step if stored is not None else 0
    lost_s = was.past_lost_gpu_s + after.lost_gpu_s
    if goes_on:
        lost_s += checkpoints.lost_work_gpu_s(now, step)
        if row.stored is not None and step < row.stored.step:  # that one is out of reach
            lost_s = max(lost_s, row.past_lost_gpu_s + checkpoints.lost_work_gpu_s(row, step))
    return replace(
        row,
        past_gpu_s=fsum(by_model.values()),
        past_gpu_s_by_model=by_model,
        past_run_s=row.past_run_s + after.run_s - (before.run_s if before is not None else 0.0),
        past_lost_gpu_s=max(row.past_lost_gpu_s, lost_s),
        past_switches=row.past_switches + Switches.of(after) - Switches.of(before),
        given_up=_with_that(row.given_up, was, now),
        left_behind=_with_that(row.left_behind, was, now),
    )


def _with(known: Job, host: HostName, report: JobReport, gpus: AbstractSet[GpuId]) -> Job:
    before = known.reports.get(host)
    # A part of a gang that was taken for lost: how it ended it says now.
    if before is not None and before.exit is not None and before.exit.why.startswith(LOST):
        before = replace(before, exit=None)
    return replace(known, reports={**known.reports, host: reports.merge(before, report, gpus)})


def _alone_there(row: Job, host: HostName, last: int) -> Job | None:
    """Its last incarnation, of that epoch, if that was on this server alone, by what the row still says."""
    stored = row.stored
    if len(row.gpu_models) != 1:
        return None
    if stored is not None and (stored.hosts != (host,) or stored.ranks or stored.copies):
        return None
    epoch = last if stored is None else stored.epoch
    return replace(row, hosts=(host,), epoch=epoch, reports={}, shape=form_over(row, 1))


def form_over(row: Job, nodes: int) -> Form | None:
    """How an incarnation ran of which no more is known than over how many servers."""
    spec = row.spec
    if spec.elastic is not None and spans(spec):
        return spec.elastic.on(nodes * max(1, spec.gang // nodes), nodes)
    return Spread(nodes=nodes, strategy=strategy_of(row.shape)) if len(spreads(spec)) > 1 else row.shape


def _newer(row: Job, now: Job, *, kept: bool = False) -> Stored | None:
    """`kept`: all servers of a gang still have what they said."""
    found, stored = checkpoints.kept(now), row.stored
    if found is None:
        return None
    if stored is not None and found.generation <= stored.generation:
        # Of an average it may have fetched no more than the parts. One that was left behind counted on by itself.
        return found if stored.copies and found.epoch > stored.epoch and found.step > stored.step else None
    # The other servers of a gang keep what they were told to, and that with it: else it may be gone there.
    told = stored is not None and (stored.hosts, stored.epoch) == (found.hosts, found.epoch)
    return found if kept or told or len(found.hosts) == 1 else None


def _of_copies(row: Job, now: Job, host: HostName, *, lacks: bool) -> Stored | None:
    """What the copy there has written, together with those of its round that the job is to go on from anyway; what the others wrote may be gone."""
    stored = row.stored
    beside = stored.hosts if stored is not None and stored.epoch == now.epoch else ()
    if row.hosts or not (lacks or beside):
        return None
    found = copies.kept(now, {host, *beside}.__contains__)
    return found if found != stored else None
