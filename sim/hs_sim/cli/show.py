"""Tables and progress. Nothing but the answer on stdout."""

import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hs_sim.metrics import Summary
from hs_sim.model import Experiment, Result


def simulate(experiment: Experiment, depth: str, label: str) -> Result:
    """Runs it, with a bar on stderr where somebody looks."""
    from hs_sim.quanta import run_quanta

    console = Console(stderr=True)
    if depth == "machines":
        from hs_sim.machines import run_machines

        with console.status(f"{label}: machines"):
            return run_machines(experiment)
    if not console.is_terminal:
        return run_quanta(experiment)
    jobs = len(experiment.workload.jobs)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} jobs"),
        TextColumn("{task.fields[hours]:.1f} h simulated"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(label, total=jobs, hours=0.0)
        return run_quanta(
            experiment,
            progress=lambda at: bar.update(task, completed=at.ended, hours=at.now_s / 3600.0),
        )


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 600:
        return f"{value:.3g} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.2f} h"


_COLUMNS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("finished", lambda s: f"{s.finished}/{s.jobs}"),
    ("mean JCT", lambda s: seconds(s.mean_jct_s)),
    ("median", lambda s: seconds(s.median_jct_s)),
    ("p90", lambda s: seconds(s.p90_jct_s)),
    ("p99", lambda s: seconds(s.p99_jct_s)),
    ("makespan", lambda s: seconds(s.makespan_s)),
    ("used", lambda s: f"{100 * s.utilization:.1f} %"),
    ("unfair", lambda s: f"{100 * s.fair_share_error:.1f} %"),
    ("FTF", lambda s: "-" if s.ftf_mean is None else f"{s.ftf_mean:.2f}"),
    ("suspends", lambda s: str(s.suspends)),
    ("moves", lambda s: str(s.migrations)),
    ("trades", lambda s: str(s.trades)),
    ("decision", lambda s: f"{1e3 * s.decision_s_mean:.2f} ms"),
)


def table(rows: Sequence[Summary]) -> None:
    """As wide as it is where nobody looks, so that scripts see whole lines."""
    console = Console() if sys.stdout.isatty() else Console(width=200)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("policy")
    shown.add_column("seed", justify="right")
    for name, _ in _COLUMNS:
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(row.policy, str(row.seed), *(text(row) for _, text in _COLUMNS))
    console.print(shown)
