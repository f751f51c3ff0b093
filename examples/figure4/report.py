"""The demo's table, picture and verdict."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from examples.figure4.record import Recorder
from examples.figure4.workload import GPUS, TEAMS

TOLERANCE = 0.10
ACCURACY = 0.85  # on the last 297 digits; uninterrupted runs reach 0.88 to 0.93
IDEAL = GPUS / len(TEAMS)
COLOURS = {"A": "#0072B2", "B": "#E69F00", "C": "#009E73"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The stretch that is judged: whole periods of the schedule while every job of every user was there."""

    from_s: float
    to_s: float
    quanta: float


def share_table(recorder: Recorder, window: Window) -> Table:
    table = Table(
        title=f"GPUs received while all twelve jobs were there ({window.to_s - window.from_s:.0f} s, {window.quanta:.0f} quanta)"
    )
    for heading in (
        "user",
        "jobs",
        "ideal",
        "received",
        "off by",
        "GPU-seconds",
        "suspends",
        "suspend ms",
        "resume ms",
    ):
        table.add_column(heading, justify="left" if heading == "user" else "right")
    for team in TEAMS:
        mine = [v for v in recorder.views if v.user == team.user]
        got = recorder.received.mean(team.user, window.from_s, window.to_s)
        suspends, resumes = sum(v.suspends for v in mine), sum(v.resumes for v in mine)
        table.add_row(
            team.user, f"4 x {team.gpus} GPU", f"{IDEAL:.2f}", f"{got:.2f}", f"{100 * (got / IDEAL - 1):+.1f} %",
            f"{sum(v.gpu_s for v in mine):.0f}", str(suspends),
            f"{1000 * sum(v.suspend_s for v in mine) / max(suspends, 1):.0f}",
            f"{1000 * sum(v.resume_s for v in mine) / max(resumes, 1):.0f}",
        )  # fmt: skip
    return table


def faults(
    recorder: Recorder, window: Window | None, accuracies: Mapping[int, float], references: Mapping[str, bool]
) -> list[str]:
    """Everything that makes the demo fail, in words; empty: it holds."""
    found = []
    if window is None:
        found.append("the twelve jobs were never all there for a whole period of the schedule")
    else:
        for team in TEAMS:
            got = recorder.received.mean(team.user, window.from_s, window.to_s)
            if abs(got / IDEAL - 1) > TOLERANCE:
                found.append(
                    f"user {team.user} received {got:.2f} GPUs, more than 10 % off its share of {IDEAL:.2f}"
                )
    for view in recorder.views:
        if view.state != "succeeded":
            found.append(f"job {view.id} ({view.name}) is {view.state}: {view.exit.why or view.exit.code}")
        elif accuracies.get(view.id, 0.0) < ACCURACY:
            found.append(
                f"job {view.id} ({view.name}) ended with accuracy {accuracies.get(view.id)}; {ACCURACY} was expected"
            )
        if view.epoch > 0:
            found.append(f"job {view.id} ({view.name}) was started {view.epoch + 1} times")
    lost = recorder.total(lambda v: v.lost_gpu_s)
    if lost > 0:
        found.append(f"{lost:.1f} GPU-seconds of work were lost")
    found += [
        f"{name}: weights differ from the same training without interruption"
        for name, same in references.items()
        if not same
    ]
    return found


def picture(recorder: Recorder, window: Window | None, smooth_s: float, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    start = recorder.received.start_s
    for team in TEAMS:
        times, gpus = recorder.received.curve(team.user, smooth_s)
        axes.plot(
            [t - start for t in times],
            gpus,
            color=COLOURS[team.user],
            label=f"{team.user}: four {team.gpus}-GPU jobs",
        )
    axes.axhline(IDEAL, color="grey", linestyle="--", linewidth=1)
    axes.annotate("ideal 1.33", (0, IDEAL), xytext=(3, 4), textcoords="offset points", color="grey")
    if window:
        axes.axvspan(
            window.from_s - start, window.to_s - start, color="grey", alpha=0.1, label="all twelve jobs there"
        )
    axes.set(xlabel="seconds", ylabel=f"GPUs received (mean of the last {smooth_s:.0f} s)", ylim=(0, GPUS * 1.05), xlim=(0, None),
             title="Three users share four emulated V100s (Gandiva_fair, figure 4)")  # fmt: skip
    axes.legend(loc="upper center")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def save_samples(recorder: Recorder, path: Path) -> None:
    rows = [
        {"at_s": s.at_s - recorder.received.start_s, "received_gpu_s": s.value}
        for s in recorder.received.samples
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
