"""Tables and progress. Nothing but the answer on stdout."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hs_sim.compare import Case, Outcome, mean_of, outcome_of, run
from hs_sim.metrics import MEASURED, Summary
from hs_sim.model import Experiment, Result, Workload
from hs_sim.spread import Where, spread


class Page(Console):
    """On stdout. Who stops reading is no failure, which rich would make of it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


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


_Column = tuple[str, Callable[[Summary], str]]
_COLUMNS: tuple[_Column, ...] = (
    ("finished", lambda s: f"{s.finished}/{s.jobs}"),
    ("mean JCT", lambda s: seconds(s.mean_jct_s)),
    ("median", lambda s: seconds(s.median_jct_s)),
    ("p90", lambda s: seconds(s.p90_jct_s)),
    ("p99", lambda s: seconds(s.p99_jct_s)),
    ("makespan", lambda s: seconds(s.makespan_s)),
    ("FTF", lambda s: _ratio(s.ftf_mean)),
    ("worst", lambda s: _ratio(s.ftf_max)),
    ("above 1", lambda s: "-" if s.ftf_above_1 is None else f"{100 * s.ftf_above_1:.0f} %"),
    ("used", lambda s: f"{100 * s.utilization:.1f} %"),
    ("unfair", lambda s: f"{100 * s.fair_share_error:.1f} %"),
    ("longest wait", lambda s: seconds(s.longest_wait_s)),
    ("suspends", lambda s: str(s.suspends)),
    ("moves", lambda s: str(s.migrations)),
    ("restarts", lambda s: str(s.restarts)),
    ("trades", lambda s: str(s.trades)),
    ("decision", lambda s: f"{1e3 * s.decision_s_mean:.2f} ms"),
)
FEW_JOBS = 1_000  # of all runs together: they are done before other processes would be up
WIDE = 10_000  # characters: more than all columns take
GAP = 2  # between two columns


_ALIKE: dict[str, Any] = {"seed": 0, **dict.fromkeys(MEASURED, 0.0)}  # what differs between like runs


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def comparison(rows: Sequence[Summary], workload: Workload) -> None:
    """One table, or as many as it takes on a narrow terminal; as wide as it is where nobody looks, so that scripts see whole lines. Of several seeds the mean."""
    console = Page() if sys.stdout.isatty() else Page(width=WIDE)
    by_policy: dict[str, list[Summary]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    shown = [(_seeds(found), mean_of(found)) for found in by_policy.values()]
    for columns in parts_of(shown, console.width):
        console.print(table_of(shown, columns))
    if len(rows) > len(shown):
        console.print(
            f"Means over {len(rows) // len(shown)} seeds, of worst ratios and longest waits the largest.",
            style="dim",
        )
    for policy, found in by_policy.items():
        if len(found) > 1 and all(replace(row, **_ALIKE) == replace(found[0], **_ALIKE) for row in found):
            said = f"All seeds of {policy} came out alike: a file's jobs are not drawn, only measured rates (--noise) and lots, by policies that use them."
            console.print(said, style="dim", soft_wrap=True, highlight=False)
    if workload.skipped:
        count = len(workload.skipped)
        said = f"{count} bad {'job' if count == 1 else 'jobs'} left out; the first: {workload.skipped[0]}"
        console.print(Text(said, style="dim"))  # not as markup: it has people's words in it


def parts_of(rows: Sequence[tuple[str, Summary]], width: int) -> list[list[_Column]]:
    """Columns of the tables that it takes, each of which begins with policy and seed and is no wider, but for one column alone that is."""
    begins = max(cell_len(word) for word in ("policy", *(row.policy for _, row in rows)))
    begins += GAP + max(cell_len(word) for word in ("seed", *(seeds for seeds, _ in rows)))
    parts: list[list[_Column]] = []
    left = -1
    for column in _COLUMNS:
        name, text = column
        takes = GAP + max(cell_len(word) for word in (name, *(text(row) for _, row in rows)))
        if not parts or takes > left:
            parts.append([])
            left = width - begins
        parts[-1].append(column)
        left -= takes
    return parts


def _seeds(rows: Sequence[Summary]) -> str:
    seeds = [row.seed for row in rows]
    if len(seeds) == 1:
        return str(seeds[0])
    together = seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if together else ",".join(map(str, seeds))


def table_of(rows: Sequence[tuple[str, Summary]], columns: Sequence[_Column]) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    shown.add_column("policy", no_wrap=True)
    shown.add_column("seed", justify="right", no_wrap=True)
    for name, _ in columns:
        shown.add_column(name, justify="right", no_wrap=True)
    for seeds, row in rows:
        shown.add_row(row.policy, seeds, *(text(row) for _, text in columns))
    return shown


def run_all(cases: Sequence[Case], *, where: str, workers: int, address: str) -> list[Outcome]:
    """In their order, with a bar of runs on stderr where somebody looks."""
    console = Console(stderr=True)
    if (
        where == "local"
        and not workers
        and sum(len(case.experiment.workload.jobs) for case in cases) <= FEW_JOBS
    ):
        workers = 1
    if len(cases) == 1 and where == "local":
        return [outcome_of(simulate(cases[0].experiment, cases[0].depth, cases[0].label))]
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} runs"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("comparing", total=len(cases))
        return spread(
            run,
            cases,
            where=Where(where),
            workers=workers,
            address=address,
            done=lambda at: bar.update(task, advance=1, description=f"{cases[at].label} has ended"),
        )
