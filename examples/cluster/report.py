"""The demo's tables, picture and verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from examples.cluster.record import Recorder
from examples.cluster.workload import LATE, MODELS, SERVERS, TEAMS, Team
from examples.common.training import ENDED

FLOOR = 0.95  # of what the base entitlement gives; who trades must be above 1
COLOURS = {"ada": "#0072B2", "bob": "#E69F00", "eve": "#009E73"}
NEAR_S = 40.0  # marks of the picture that would run into one another on one line
SMOOTH_S = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The stretch that is judged: from the settling of the first trade until the cluster is changed or a job ends."""

    from_s: float
    to_s: float

    @property
    def length_s(self) -> float:
        return self.to_s - self.from_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """A user's training in the window, in steps."""

    user: str
    made: float
    untraded: float  # what its base entitlement would have given, at the rates that were measured
    traded: float  # what its entitlement after trades promised
    trades: bool

    @property
    def ratio(self) -> float:
        return self.made / self.untraded if self.untraded > 0 else 0.0

    @property
    def holds(self) -> bool:
        return self.ratio >= (1.0 if self.trades else FLOOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A job that trained on several models, and whether its weights are those of its uninterrupted twin."""

    job: int
    name: str
    user: str
    path: str
    same: bool | None  # None: not compared


Rates = Mapping[
    tuple[str, str], float
]  # (user, model) -> steps/s of a job, as the controller's profile has it


def throughputs(recorder: Recorder, window: Window, rates: Rates) -> list[Throughput]:
    traders = {name for trade in recorder.trades.values() for name in (trade.gives, trade.receives)}

    def of(team: Team, curves_gpus: Mapping[str, float]) -> float:
        pace = {model: rates.get((team.user, model)) or team.steps_per_s(model) for model in MODELS}
        return window.length_s * sum(gpus / team.gpus * pace[model] for model, gpus in curves_gpus.items())

    made = []
    for team in TEAMS:
        base = {m: recorder.base.mean((team.user, m), window.from_s, window.to_s) for m in MODELS}
        after = {m: recorder.entitled.mean((team.user, m), window.from_s, window.to_s) for m in MODELS}
        steps = recorder.steps.mean(team.user, window.from_s, window.to_s) * window.length_s
        made.append(
            Throughput(
                user=team.user,
                made=steps,
                untraded=of(team, base),
                traded=of(team, after),
                trades=team.user in traders,
            )
        )
    return made


# --- tables ----------------------------------------------------------------------------------------------------------


def share_table(recorder: Recorder, window: Window) -> Table:
    table = Table(
        title=f"GPUs by user and pool, mean of {window.length_s:.0f} s: base → entitled after trades, received"
    )
    table.add_column("user")
    for model in MODELS:
        table.add_column(model, justify="right")
    for team in TEAMS:
        cells = []
        for model in MODELS:
            key = (team.user, model)
            base, entitled, received = (
                curves.mean(key, window.from_s, window.to_s)
                for curves in (recorder.base, recorder.entitled, recorder.received)
            )
            cells.append(f"{base:.2f} → {entitled:.2f}, got {received:.2f}")
        table.add_row(f"{team.user} ({team.tickets:.0f} tickets)", *cells)
    return table


def throughput_table(found: Sequence[Throughput]) -> Table:
    table = Table(
        title="Steps in that time, against what the user's own entitlement would give without trades"
    )
    for heading in ("user", "made", "untraded share gives", "after trades", "made / untraded", "holds"):
        table.add_column(heading, justify="left" if heading in {"user", "holds"} else "right")
    for one in found:
        table.add_row(one.user, f"{one.made:.0f}", f"{one.untraded:.0f}", f"{one.traded:.0f}", f"{one.ratio:.2f}",
                      "yes" if one.holds else "NO")  # fmt: skip
    return table


def trade_table(recorder: Recorder) -> Table:
    table = Table(title="Trades, from profiled rates")
    for heading in ("at", "user", "gives", "receives", "of user", "price", "speed-ups", "stood for"):
        table.add_column(heading)
    for trade in sorted(recorder.trades.values(), key=lambda t: t.at):
        table.add_row(
            f"{trade.at - _wall_start(recorder):.0f} s", trade.gives, f"{trade.fast_gpus:.2f} {trade.fast}", f"{trade.slow_gpus:.2f} {trade.slow}",
            trade.receives, f"{trade.price:.2f}", f"{trade.giver_speedup:.2f} / {trade.taker_speedup:.2f}",
            f"{trade.undone - trade.at:.0f} s ({trade.why_undone})" if trade.undone else "until the end",
        )  # fmt: skip
    return table


def _wall_start(recorder: Recorder) -> float:
    return min(view.submitted_at for view in recorder.views)


def moved_table(moved: Sequence[Moved]) -> Table:
    table = Table(title="Jobs that trained on GPUs of several models")
    for heading in ("job", "name", "user", "where, from which step", "weights against an uninterrupted run"):
        table.add_column(heading)
    for one in moved:
        words = {True: "the very same", False: "DIFFERENT", None: "not compared"}[one.same]
        table.add_row(str(one.job), one.name, one.user, one.path, words)
    return table


def path_of(recorder: Recorder, job: int) -> str:
    return ", ".join(f"{v.model}@{v.host} {v.from_step}" for v in recorder.visits.get(job, ()))


# --- verdict ---------------------------------------------------------------------------------------------------------


def faults(
    recorder: Recorder, window: Window | None, found: Sequence[Throughput], moved: Sequence[Moved]
) -> list[str]:
    """Everything that makes the demo fail, in words; empty: it holds."""
    wrong = []
    if not recorder.trades:
        wrong.append("nobody traded")
    if window is None:
        wrong.append("there was no time with all jobs there and trades settled")
    wrong += [
        f"{one.user} made {one.made:.0f} steps, {one.ratio:.2f} of what its untraded share gives"
        for one in found
        if not one.holds
    ]
    compared = [one for one in moved if one.same is not None]
    if not compared:
        wrong.append("no job that moved between GPU models ended, so none could be compared")
    wrong += [f"job {one.job} ({one.name}) did not resume exactly" for one in compared if not one.same]
    lost = sum(view.lost_gpu_s for view in recorder.views)
    if lost > 0.5:
        wrong.append(f"{lost:.1f} GPU-seconds of work were lost")
    wrong += [
        f"job {view.id} ({view.name}) is {view.state}: {view.exit.why or view.exit.code}"
        for view in recorder.views
        if view.state in ENDED and view.state not in {"succeeded", "cancelled"}
    ]
    return wrong


# --- picture ---------------------------------------------------------------------------------------------------------


def picture(
    recorder: Recorder, window: Window | None, marks: Sequence[tuple[float, str]], path: Path
) -> None:
    """A panel for each pool: what each user received, and (dashed) was entitled to after trades."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(len(MODELS), 1, figsize=(10, 9), sharex=True, layout="constrained")
    start = recorder.received.start_s
    for axes, model in zip(panels, MODELS, strict=True):
        for team in TEAMS:
            colour = COLOURS[team.user]
            times, gpus = recorder.received.curve((team.user, model), SMOOTH_S)
            axes.plot([t - start for t in times], gpus, color=colour, label=f"{team.user} ({team.job_class})")
            times, gpus = recorder.entitled.curve((team.user, model), 2.0)
            axes.plot([t - start for t in times], gpus, color=colour, linestyle="--", linewidth=1)
        if window:
            axes.axvspan(window.from_s - start, window.to_s - start, color="grey", alpha=0.1)
        for at_s, _ in marks:
            axes.axvline(at_s - start, color="grey", linewidth=0.8)
        size = sum(server.gpus for server in (*SERVERS, LATE) if server.model == model)
        axes.set(ylabel=f"{model} GPUs", ylim=(0, size * 1.12), xlim=(0, None))
    levels: list[tuple[float, int]] = []
    for at_s, words in marks:  # some come close together: each on the lowest line that is free there
        near = {level for other_s, level in levels if abs(at_s - other_s) < NEAR_S}
        levels.append((at_s, min(set(range(len(levels) + 1)) - near)))
        panels[0].annotate(
            words, (at_s - start, 1), xycoords=("data", "axes fraction"), xytext=(0, 2 + 9 * levels[-1][1]),
            textcoords="offset points", fontsize=8, ha="left", va="bottom",
        )  # fmt: skip
    panels[0].legend(loc="upper right", fontsize=8)
    panels[0].set_title(
        "Three users on three GPU generations: received (lines) and entitled after trades (dashed)",
        pad=16 + 9 * max((level for _, level in levels), default=0),
    )
    panels[-1].set_xlabel("seconds; grey: the time that is judged")
    figure.savefig(path, dpi=120)
    plt.close(figure)
