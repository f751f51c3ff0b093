"""hs-sim figures."""

from difflib import get_close_matches
from pathlib import Path

import click

from hs_core.errors import RefusedError
from hs_sim.cli.outputs import FileName, check_outputs


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "json_out", type=FileName(), help="Write the rows here.")
@click.option(
    "--dir",
    "folder",
    type=FileName(folder=True),
    help="Draw one picture a figure in this folder.",
)
def figures(names: tuple[str, ...], json_out: Path | None, folder: Path | None) -> int:
    """Reproduce the paper's tables and figures (all, or those named), each number beside the paper's. Exit status 1 if one is not ok."""
    from rich.console import Console
    from rich.table import Table

    from hs_sim import writers
    from hs_sim.cli.show import Page
    from hs_sim.figures import FIGURES

    names = tuple(dict.fromkeys(names))
    for name in names:
        if name not in FIGURES:
            near = next(iter(get_close_matches(name, FIGURES, n=1)), "")
            hint = f"; did you mean {near}?" if near else ""
            raise RefusedError(f"FIGURE: {name!r}; expected some of {', '.join(FIGURES)}{hint}")
    drawn = {"--dir": (folder, [f"{name}.png" for name in names or FIGURES])} if folder is not None else {}
    check_outputs((), {"--json": json_out}, drawn)
    console, progress = Page(width=None if Page().is_terminal else 160), Console(stderr=True)
    found = []
    for name in names or FIGURES:
        with progress.status(name):
            figure = FIGURES[name]()
        found.append(figure)
        if folder is not None:
            figure.draw(folder / f"{name}.png")
    if json_out is not None:
        writers.write_json(json_out, [row.as_dict() for figure in found for row in figure.rows])
    for figure in found:
        shown = Table(title=f"{figure.name}: {figure.title}", title_justify="left", box=None, pad_edge=False)
        shown.add_column("quantity")
        for column in ("paper", "ours", "tolerance"):
            shown.add_column(column, justify="right")
        shown.add_column("verdict")
        for row in figure.rows:
            verdict = "[green]ok[/green]" if row.ok else "[red]NOT OK[/red]"
            paper = f"≥ {row.paper:.4g}" if row.least else f"{row.paper:.4g}"
            numbers = (paper, f"{row.ours:.4g}", f"{row.tolerance:.3g}")
            shown.add_row(row.quantity, *numbers, verdict)
        console.print(shown)
        for note in figure.notes:
            console.print(f"  {note}", style="dim", soft_wrap=True, highlight=False)
        console.print()
    return 0 if all(figure.ok for figure in found) else 1
