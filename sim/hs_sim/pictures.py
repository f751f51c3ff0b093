"""Pictures of results. matplotlib is imported with this module, so import it only where a picture is wanted."""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hs_core.names import UserName
from hs_sim.compare import Outcome
from hs_sim.metrics import utilization
from hs_sim.model import Result
from hs_sim.writers import write_bytes

warnings.filterwarnings(
    "ignore", r"Glyph .* missing from font", UserWarning
)  # a box stands for it: seen there

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2, 1, 2, 1, 2)))  # each in every colour
DPI = 120
SHOWN_USERS = 8
POINTS = 2_000  # of a curve, at most
FINEST = 200  # parts of a run that are told from one another
WIDTH_S = 720.0  # of a moving mean, at least: turns of 2, 3, 4 and 6 quanta of a minute come out even


def _plain(name: str) -> str:
    """As it is: matplotlib takes what stands between two `$` for a formula, and keeps what begins with `_` out of legends."""
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _times(result: Result) -> list[float]:
    return [sample.at_s / 3600.0 for sample in result.samples]


def _smooth(values: Sequence[float], quanta: int) -> list[float]:
    """Mean over the last samples: turns alternate, shares are means."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return [(sums[at] - sums[max(0, at - quanta)]) / (at - max(0, at - quanta)) for at in range(1, len(sums))]


def _step(result: Result) -> int:
    """Samples that make twelve quanta, twelve minutes or, as nobody sees less in a picture, a part of a long run, whichever is most."""
    if len(result.samples) < 2:
        return 1
    span_s = (result.samples[-1].at_s - result.samples[0].at_s) / (len(result.samples) - 1)
    return max(
        1, len(result.samples) // FINEST, round(max(WIDTH_S, 12 * result.experiment.quantum_s) / span_s)
    )


def _some(times: Sequence[float], values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Of a long run as many as can be seen."""
    each = max(1, -(-len(times) // POINTS))
    return times[::each], values[::each]


def _smoothed(result: Result) -> str:
    """What its curves are means of; empty: of nothing else."""
    times = [sample.at_s for sample in result.samples]
    spacing_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    return f"(mean of the last {_step(result) * spacing_s / 60:.3g} minutes)" if spacing_s else ""


def _save(figure: Any, path: Path) -> None:
    drawn = io.BytesIO()
    # No date and no version inside: same input, same bytes.
    figure.savefig(drawn, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    write_bytes(path, drawn.getvalue())


def _dress(axes: Any, title: str, y: str, x: str = "hours") -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=0)


def group_series(
    result: Result, users: Sequence[UserName], models: Sequence[str] | None = None
) -> list[float]:
    members = set(users)
    return [
        sum(
            gpus
            for (user, model), gpus in sample.gpus.items()
            if user in members and (models is None or model in models)
        )
        for sample in result.samples
    ]


def draw_received(
    axes: Any,
    result: Result,
    groups: Mapping[str, Sequence[UserName]],
    *,
    models: Sequence[str] | None = None,
    total: bool = False,
    ideal: Mapping[str, float] | None = None,
) -> None:
    times, width = _times(result), _step(result)
    whole, drawn = [0.0] * len(times), list[list[float]]()
    for (label, users), colour in zip(groups.items(), COLOURS * 9, strict=False):
        series = group_series(result, users, models)
        whole = [a + b for a, b in zip(whole, series, strict=True)]
        curve = _smooth(series, width)
        below = sum(_coincide(curve, other) for other in drawn)
        dashes = (0, (4, 4 * below)) if below else "-"  # so that those below it are seen
        axes.plot(times, curve, label=_plain(label), color=colour, linewidth=1.6, linestyle=dashes)
        drawn.append(curve)
    if total:
        axes.plot(times, _smooth(whole, width), label="total", color="black", linewidth=1.0)
    for label, value in (ideal or {}).items():
        axes.axhline(value, color="grey", linestyle=":", linewidth=1.0)
        axes.annotate(
            label, (1.0, value), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            fontsize=8, va="center",
        )  # fmt: skip


def _coincide(curve: Sequence[float], other: Sequence[float]) -> bool:
    """For most of the time: the one that is drawn last would hide the other."""
    same = sum(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(curve, other, strict=True))
    return same > len(curve) / 2


def received(
    path: Path,
    title: str,
    result: Result,
    groups: Mapping[str, Sequence[UserName]],
    *,
    total: bool = False,
    ideal: Mapping[str, float] | None = None,
) -> None:
    """GPUs over time, a line a group of users."""
    figure, axes = plt.subplots(figsize=(8, 4.2))
    draw_received(axes, result, groups, total=total, ideal=ideal)
    _dress(axes, title, "GPUs (mean of the last 12 minutes)")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=min(6, len(groups) + 1))
    _save(figure, path)


def by_pool(
    path: Path,
    title: str,
    result: Result,
    groups: Mapping[str, Sequence[UserName]],
    *,
    models: Sequence[str],
    ideal: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """One panel a pool."""
    figure, panels = plt.subplots(1, len(models), figsize=(4.2 * len(models), 3.8), squeeze=False)
    for axes, model in zip(panels[0], models, strict=True):
        draw_received(axes, result, groups, models=[model], ideal=(ideal or {}).get(model))
        _dress(axes, model, "GPUs (mean of the last 12 minutes)" if axes is panels[0][0] else "")
    panels[0][len(models) // 2].legend(
        fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=len(groups)
    )
    figure.suptitle(title, fontsize=12)
    figure.tight_layout()
    _save(figure, path)


def rates(
    path: Path,
    title: str,
    runs: Mapping[str, Result],
    users: Sequence[UserName],
    unit: Mapping[UserName, float],
) -> None:
    """Progress of each user in several runs: one panel a user, a line a run."""
    figure, panels = plt.subplots(1, len(users), figsize=(3.6 * len(users), 3.4), squeeze=False)
    for axes, user in zip(panels[0], users, strict=True):
        for (label, result), colour in zip(runs.items(), COLOURS, strict=False):
            series = [sample.steps_per_s.get(user, 0.0) / unit[user] for sample in result.samples]
            axes.plot(_times(result), _smooth(series, _step(result)), label=label, color=colour)
        _dress(axes, _plain(user), "progress, in K80s" if axes is panels[0][0] else "")
    panels[0][0].legend(fontsize=8, loc="lower left")
    figure.suptitle(title, fontsize=12)
    figure.tight_layout()
    _save(figure, path)


def bars(
    path: Path,
    title: str,
    ours: Mapping[str, Mapping[str, float]],
    paper: Mapping[str, Mapping[str, float]],
    unit: str,
) -> None:
    """Group → bar → value; the paper's value is a black mark on each."""
    figure, axes = plt.subplots(figsize=(8, 4.2))
    names = list(next(iter(ours.values())))
    width = 0.8 / len(names)
    for at, (name, colour) in enumerate(zip(names, COLOURS * 9, strict=False)):
        xs = [group + (at - (len(names) - 1) / 2) * width for group in range(len(ours))]
        axes.bar(xs, [ours[group][name] for group in ours], width * 0.92, label=name, color=colour)
        marks = [paper[group][name] for group in ours]
        axes.scatter(
            xs, marks, marker="_", s=260, color="black", zorder=3, label="paper" if at == 0 else None
        )
        for x, group in zip(xs, ours, strict=True):
            axes.annotate(
                f"{ours[group][name]:.1f}", (x, ours[group][name]), ha="center", va="bottom", fontsize=7
            )
    axes.set_xticks(range(len(ours)), list(ours))
    _dress(axes, title, unit, x="")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(names) + 1)
    _save(figure, path)


def overview(path: Path, result: Result) -> None:
    """Of any run: shares of the users with most GPU-time against entitlement, times to completion, utilization."""
    figure, panels = plt.subplots(1, 3, figsize=(15, 4.2))
    _draw_shares(panels[0], result)
    _draw_completion(panels[1], result)
    _draw_utilization(panels[2], result)
    experiment = result.experiment
    figure.suptitle(
        _plain(
            f"{experiment.workload.name}: {experiment.policy}, depth {result.depth}, seed {experiment.seed}"
        )
    )
    figure.tight_layout()
    _save(figure, path)


def _draw_shares(axes: Any, result: Result) -> None:
    had: dict[UserName, float] = {}
    for job in result.jobs:
        had[job.user] = had.get(job.user, 0.0) + sum(job.gpu_s.values())
    users = sorted((user for user in had if had[user] > 0), key=lambda user: (-had[user], user))[:SHOWN_USERS]
    of = f"of {len(users)} of {len(had)} users" if len(users) < len(had) else "received"
    times, width = _times(result), _step(result)
    for user, colour in zip(users, COLOURS, strict=False):
        series = group_series(result, [user])
        due = [sum(g for (u, _), g in s.entitled.items() if u == user) for s in result.samples]
        look: dict[str, Any] = {"color": colour}
        axes.plot(*_some(times, _smooth(series, width)), label=_plain(user), linewidth=1.4, **look)
        axes.plot(*_some(times, _smooth(due, width)), linestyle=":", linewidth=1.0, **look)
    _dress(axes, f"GPUs {of} (dotted: entitled)", f"GPUs {_smoothed(result)}".strip())
    if users:
        axes.legend(fontsize=7)


def _draw_completion(axes: Any, result: Result) -> None:
    _cdf(axes, [job.jct_s / 3600.0 for job in result.jobs if job.jct_s is not None], color=COLOURS[0])
    _dress(axes, "Time to completion", "part of the finished jobs")
    axes.set_ylim(0, 1.02)
    _spread_out(axes)


def _draw_utilization(axes: Any, result: Result) -> None:
    gpus = sum(pool.gpus for pool in result.experiment.cluster.pools)
    series = [100 * sum(sample.gpus.values()) / gpus for sample in result.samples]
    axes.plot(*_some(_times(result), _smooth(series, _step(result))), color=COLOURS[2])
    _dress(
        axes,
        f"Utilization (mean {100 * utilization(result):.1f} %)",
        f"% of the GPUs {_smoothed(result)}".strip(),
    )
    axes.set_ylim(0, 105)


def comparison(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Times to completion, utilization and finish-time fairness, a line a policy; of several seeds all jobs together, and the first's utilization."""
    figure, panels = plt.subplots(1, 3, figsize=(16, 4.4))
    by_policy: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_policy.setdefault(outcome.summary.policy, []).append(outcome)
    for at, (policy, runs) in enumerate(by_policy.items()):
        look: dict[str, Any] = {
            "color": COLOURS[at % len(COLOURS)],
            "linestyle": DASHES[at // len(COLOURS) % len(DASHES)],
            "linewidth": 1.5,
        }
        _cdf(panels[0], [value / 3600.0 for run in runs for value in run.jct_s], label=policy, **look)
        curve = runs[0].utilization
        width = max(1, len(curve) // 60)
        panels[1].plot([s / 3600.0 for s, _ in curve], _smooth([100 * u for _, u in curve], width), **look)
        _cdf(panels[2], [value for run in runs for value in run.ftf], **look)
    _dress(panels[0], "Time to completion", "part of the finished jobs")
    several = any(len(runs) > 1 for runs in by_policy.values())
    _dress(
        panels[1],
        "Utilization of the first seed" if several else "Utilization",
        "% of the GPUs, smoothed",
    )
    panels[1].set_ylim(0, 105)
    _dress(
        panels[2],
        "Finish-time fairness",
        "part of the finished jobs",
        x="time to completion / time with 1/n of the cluster",
    )
    panels[2].axvline(1.0, color="grey", linestyle=":", linewidth=1.0)
    for axes in (panels[0], panels[2]):
        axes.set_ylim(0, 1.02)
        _spread_out(axes)
    figure.suptitle(_plain(title), fontsize=12)
    figure.tight_layout()
    figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=min(6, len(by_policy)), fontsize=9)
    _save(figure, path)


def _cdf(axes: Any, values: Sequence[float], **look: Any) -> None:
    """A line that begins at 0 and ends at 1; of nothing none, though it is named in the legend."""
    ordered = sorted(values)
    xs = [ordered[0], *ordered] if ordered else []
    axes.step(xs, [at / max(1, len(ordered)) for at in range(len(xs))], where="post", **look)


def _spread_out(axes: Any) -> None:
    """A logarithmic axis where values are far apart, with as many numbers as there is room for."""
    xs = [x for line in axes.lines for x in line.get_xdata() if x > 0]
    if xs and max(xs) > 20 * min(xs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(xs) < 500 * min(xs) else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
