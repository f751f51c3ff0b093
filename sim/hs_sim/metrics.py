"""What came of a run, in numbers. Field names are those of the machine-readable contract (docs/simulator.md)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum

from hs_core.names import UserName
from hs_sim.model import Experiment, JobOutcome, Result, SimJob

MEASURED = ("decision_s_mean", "decision_s_max", "cpu_s")
"""Of this machine, so not of what is compared byte by byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    policy: str
    depth: str
    seed: int
    finished: int
    jobs: int
    mean_jct_s: float | None
    median_jct_s: float | None
    p90_jct_s: float | None
    p99_jct_s: float | None
    makespan_s: float | None
    ftf_mean: float | None
    ftf_max: float | None
    ftf_above_1: (
        float | None
    )  # part of the finished jobs that a fixed 1/n of the cluster would have served better
    utilization: float
    fair_share_error: float
    longest_wait_s: float  # before a job's first turn
    starved: int  # jobs that never had a turn
    suspends: int
    migrations: int
    restarts: int
    trades: int
    decisions: int
    quanta: int
    skipped: int  # bad jobs of the workload that were left out
    decision_s_mean: float
    decision_s_max: float
    cpu_s: float

    def as_dict(self, *, measured: bool = True) -> dict[str, object]:
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return row if measured else {name: value for name, value in row.items() if name not in MEASURED}


def summarize(result: Result) -> Summary:
    experiment = result.experiment
    jct = sorted(job.jct_s for job in result.jobs if job.jct_s is not None)
    ftf = finish_time_fairness(result)
    waits = [
        (job.started_s if job.started_s is not None else result.ended_s) - job.arrival_s
        for job in result.jobs
        if job.arrival_s <= result.ended_s
    ]
    return Summary(
        policy=experiment.policy,
        depth=result.depth,
        seed=experiment.seed,
        finished=len(jct),
        jobs=len(result.jobs),
        mean_jct_s=_mean(jct),
        median_jct_s=quantile(jct, 0.5),
        p90_jct_s=quantile(jct, 0.9),
        p99_jct_s=quantile(jct, 0.99),
        makespan_s=_makespan(result.jobs),
        ftf_mean=_mean(ftf),
        ftf_max=max(ftf, default=None),
        ftf_above_1=sum(value > 1.0 for value in ftf) / len(ftf) if ftf else None,
        utilization=utilization(result),
        fair_share_error=fair_share_error(result),
        longest_wait_s=max(waits, default=0.0),
        starved=sum(job.started_s is None and job.arrival_s <= result.ended_s for job in result.jobs),
        suspends=sum(job.suspends for job in result.jobs),
        migrations=sum(job.migrations for job in result.jobs),
        restarts=sum(job.restarts for job in result.jobs),
        trades=sum(not trade["undone"] for trade in result.trades),
        decisions=result.decisions,
        quanta=result.quanta,
        skipped=len(experiment.workload.skipped),
        decision_s_mean=result.decision_s_mean,
        decision_s_max=result.decision_s_max,
        cpu_s=result.cpu_s,
    )


def quantile(ascending: Sequence[float], part: float) -> float | None:
    """The least value that so large a part does not exceed (nearest rank: always one that occurred)."""
    return ascending[max(0, ceil(part * len(ascending)) - 1)] if ascending else None


def _mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None


def _makespan(jobs: Iterable[JobOutcome]) -> float | None:
    ended = [(job.ended_s, job.arrival_s) for job in jobs if job.ended_s is not None]
    return max(end for end, _ in ended) - min(arrival for _, arrival in ended) if ended else None


def utilization(result: Result) -> float:
    """GPU-seconds received over those there were, from the first arrival to the last end."""
    gpus = sum(pool.gpus for pool in result.experiment.cluster.pools)
    if not result.jobs:
        return 0.0
    began_s = min(job.arrival_s for job in result.jobs)
    ends = [job.ended_s for job in result.jobs if job.ended_s is not None]
    ended_s = max(ends) if len(ends) == len(result.jobs) else result.ended_s
    received = fsum(gpu_s for job in result.jobs for gpu_s in job.gpu_s.values())
    return received / (gpus * (ended_s - began_s)) if ended_s > began_s else 0.0


def utilization_series(result: Result) -> list[tuple[float, float]]:
    """(seconds, part of the GPUs in use since the time before), at most 500 of them."""
    gpus = sum(pool.gpus for pool in result.experiment.cluster.pools)
    samples = result.samples
    each = max(1, -(-len(samples) // 500))
    found, before_s = [], 0.0
    for at in range(0, len(samples), each):
        some = samples[at : at + each]
        span_s = some[-1].at_s - before_s
        used, last_s = 0.0, before_s
        for sample in some:
            used += fsum(sample.gpus.values()) * (sample.at_s - last_s)
            last_s = sample.at_s
        if span_s > 0:
            found.append((last_s, used / span_s / gpus))
        before_s = last_s
    return found


def fair_share_error(result: Result) -> float:
    """GPU-time that users lacked against what they were entitled to, over all entitled: 0 is a perfect share.

    Summed over the samples, each user's pools together: a user who was given GPUs of another pool instead lacks nothing.
    """
    lacked: list[float] = []
    entitled: list[float] = []
    before_s = 0.0
    totals: dict[UserName, list[float]] = {}
    for sample in result.samples:
        span_s = sample.at_s - before_s
        before_s = sample.at_s
        for (user, _), gpus in sample.entitled.items():
            totals.setdefault(user, [0.0, 0.0])[0] += gpus * span_s
        for (user, _), gpus in sample.gpus.items():
            totals.setdefault(user, [0.0, 0.0])[1] += gpus * span_s
    for due, received in totals.values():
        lacked.append(max(0.0, due - received))
        entitled.append(due)
    whole = fsum(entitled)
    return fsum(lacked) / whole if whole else 0.0


def finish_time_fairness(result: Result) -> list[float]:
    """Of every finished job: its time to completion over the one it would have had on a fixed 1/n of the cluster (Themis).

    n is the number of jobs that there were on average during its life; the share is 1/n of every pool, used one after another: the job runs at
    its mean rate over the cluster's GPUs, slowed down to the share where the gang is larger than that.
    """
    jobs = result.experiment.workload.jobs
    by_id = {job.id: job for job in jobs}
    finished = [job for job in result.jobs if job.ended_s is not None]
    counts = _live_means(result.jobs, result.ended_s)
    found = []
    for outcome in finished:
        job = by_id[outcome.id]
        alone_s = _alone_s(job, result.experiment, counts[outcome.id])
        if alone_s is not None and outcome.jct_s is not None:
            found.append(outcome.jct_s / alone_s)
    return found


def _alone_s(job: SimJob, experiment: Experiment, live: float) -> float | None:
    pools = [pool for pool in experiment.cluster.pools if not job.gpu_types or pool.model in job.gpu_types]
    seconds = 0.0
    for job_class, steps in job.parts:
        rates = [(pool.gpus, experiment.workload.rate(job_class, pool.model, job.nodes)) for pool in pools]
        gpus = sum(count for count, rate in rates if rate > 0)
        rate = fsum(count * rate for count, rate in rates) / gpus if gpus else 0.0
        if rate <= 0:
            return None
        seconds += steps / (rate * min(1.0, gpus / max(1.0, live) / job.gang))
    return seconds


def _live_means(outcomes: Sequence[JobOutcome], ended_s: float) -> Mapping[int, float]:
    """Jobs there were, on average, during each one's life: one sweep over arrivals and ends."""
    changes = sorted(
        [(job.arrival_s, 1) for job in outcomes]
        + [(job.ended_s if job.ended_s is not None else ended_s, -1) for job in outcomes]
    )
    times, sums = [0.0], [0.0]
    live, total, last_s = 0, 0.0, 0.0
    for at_s, change in changes:
        total += live * (at_s - last_s)
        live += change
        last_s = at_s
        times.append(at_s)
        sums.append(total)
    at = dict(zip(times, sums, strict=True))
    found = {}
    for job in outcomes:
        end_s = job.ended_s if job.ended_s is not None else ended_s
        span_s = end_s - job.arrival_s
        found[job.id] = (at[end_s] - at[job.arrival_s]) / span_s if span_s > 0 else 1.0
    return found
