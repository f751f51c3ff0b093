"""What figures are made of: rows with a verdict, series out of samples, workloads of a few users."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path

from hs_core.names import UserName
from hs_sim.generate import TABLE_1
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, Sample, SimJob, Workload

QUANTUM_S = 60.0
HOUR_S = 3600.0
MiB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`tolerance` is absolute, in the unit of the quantity. `least`: the paper's number is a lower bound, more is no fault."""

    figure: str
    quantity: str
    paper: float
    ours: float
    tolerance: float
    ok: bool
    least: bool = False

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


Draw = Callable[[Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    title: str
    rows: tuple[Row, ...]
    draw: Draw
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)


def near(figure: str, quantity: str, paper: float, ours: float, tolerance: float) -> Row:
    ok = abs(ours - paper) <= tolerance + 1e-9
    return Row(figure=figure, quantity=quantity, paper=paper, ours=ours, tolerance=tolerance, ok=ok)


def at_least(figure: str, quantity: str, paper: float, ours: float, tolerance: float) -> Row:
    """Better than the paper is no fault."""
    ok = ours >= paper - tolerance - 1e-9
    return Row(
        figure=figure, quantity=quantity, paper=paper, ours=ours, tolerance=tolerance, ok=ok, least=True
    )


# --- workloads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Jobs of one user, alike."""

    user: str
    count: int
    gang: int
    job_class: str
    seconds: float | Sequence[float]  # of running time on `on`, of each (or one for each)
    on: str
    arrivals_s: Sequence[float] = ()  # all at 0 if left out


def workload(
    name: str,
    sweeps: Sequence[Sweep],
    rates: Mapping[tuple[str, str], float] | None = None,
    tickets: Mapping[str, float] | None = None,
    gpus_per_server: int = 4,
) -> Workload:
    rates = rates or {(m.name, gpu): rate for m in TABLE_1.values() for gpu, rate in m.rates().items()}
    drafts: list[tuple[float, Sweep, float]] = []
    for sweep in sweeps:
        for at in range(sweep.count):
            seconds = sweep.seconds if isinstance(sweep.seconds, int | float) else sweep.seconds[at]
            drafts.append((sweep.arrivals_s[at] if sweep.arrivals_s else 0.0, sweep, seconds))
    drafts.sort(key=lambda draft: draft[0])
    jobs = []
    for number, (arrival_s, sweep, seconds) in enumerate(drafts, start=1):
        nodes = -(-sweep.gang // gpus_per_server)
        jobs.append(
            SimJob(
                id=number,
                user=UserName(sweep.user),
                arrival_s=arrival_s,
                steps=max(1, round(seconds * rates[sweep.job_class, sweep.on])),
                job_class=sweep.job_class,
                gpus=sweep.gang // nodes,
                nodes=nodes,
                state_bytes=100 * MiB,
            )
        )
    users = dict.fromkeys(sweep.user for sweep in sweeps)
    shares = {UserName(user): (tickets or {}).get(user, 100.0) for user in users}
    return Workload(name=name, jobs=tuple(jobs), tickets=shares, rates=rates, source=f"{name} of the paper")


def experiment(
    load: Workload,
    pools: Mapping[str, int],
    *,
    until_s: float,
    policy: str = "gandiva-fair",
    seed: int = 0,
    costs: Costs | None = None,
) -> Experiment:
    """`pools`: GPUs of each model, four on a server as in the paper."""
    cluster = ClusterSpec(
        pools=tuple(Pool(model=m, servers=gpus // 4, gpus_per_server=4) for m, gpus in pools.items())
    )
    return Experiment(
        cluster=cluster,
        workload=load,
        policy=policy,
        quantum_s=QUANTUM_S,
        seed=seed,
        costs=costs or Costs(),
        until_s=until_s,
    )


# --- series -----------------------------------------------------------------------------------------------------------


def mean_gpus(
    result: Result, users: Sequence[str], from_s: float, to_s: float, models: Sequence[str] | None = None
) -> float:
    """GPUs that these users had together, on average over that time."""
    return _mean_of(
        result,
        from_s,
        to_s,
        lambda sample: fsum(
            gpus
            for (user, model), gpus in sample.gpus.items()
            if user in users and (models is None or model in models)
        ),
    )


def mean_rate(result: Result, user: str, from_s: float, to_s: float) -> float:
    """Mini-batches a second of all of a user's jobs."""
    return _mean_of(result, from_s, to_s, lambda sample: sample.steps_per_s.get(UserName(user), 0.0))


def mean_entitled(result: Result, user: str, model: str, from_s: float, to_s: float) -> float:
    return _mean_of(result, from_s, to_s, lambda sample: sample.entitled.get((UserName(user), model), 0.0))


def _mean_of(result: Result, from_s: float, to_s: float, value: Callable[[Sample], float]) -> float:
    total = span = 0.0
    before_s = 0.0
    for sample in result.samples:
        part = min(sample.at_s, to_s) - max(before_s, from_s)
        before_s = sample.at_s
        if part > 0:
            total += value(sample) * part
            span += part
    return total / span if span else 0.0


def last_end_s(result: Result, users: Sequence[str]) -> float:
    ends = [job.ended_s for job in result.jobs if job.user in users]
    return max((end for end in ends if end is not None), default=result.ended_s)


def first_end_s(result: Result, users: Sequence[str]) -> float:
    ends = [job.ended_s for job in result.jobs if job.user in users and job.ended_s is not None]
    return min(ends, default=result.ended_s)


def mean_end_s(result: Result, user: str) -> float:
    ends = [
        job.ended_s if job.ended_s is not None else result.ended_s for job in result.jobs if job.user == user
    ]
    return fsum(ends) / len(ends)


def worst_window(
    result: Result, users: Sequence[str], from_s: float, to_s: float, *, quanta: int, due: float
) -> float:
    """The mean over any so many quanta in a row that is farthest from what is due."""
    values = [
        fsum(gpus for (user, _), gpus in sample.gpus.items() if user in users)
        for sample in result.samples
        if from_s < sample.at_s <= to_s
    ]
    means = [fsum(values[at : at + quanta]) / quanta for at in range(len(values) - quanta + 1)]
    return max(means, key=lambda mean: abs(mean - due), default=0.0)
