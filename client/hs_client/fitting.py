"""A table on a terminal that may be too narrow for it: long texts are cut, then it does without spare columns; none is squeezed until it says nothing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from hs_client.printing import printable

GAP = 2  # cells between two columns
LEAST = 8  # cells of a long text where no spare column is left
NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    shown: Sequence[int]  # places of the columns
    widths: Sequence[int]  # of these, in cells


def fit(
    names: Sequence[str],
    natural: Sequence[int],
    width: int,
    *,
    spare: Sequence[str] = (),
    long: Mapping[str, int] = NONE,
) -> Fit:
    """`natural`: cells that each column would take. `long`: texts that may be cut, and to how many cells before spare columns go, the first one first."""
    ease = [long.get(name, inf) for name in names]
    least = [min(LEAST, cells) if cells < inf else inf for cells in ease]
    left = [*range(len(names))]
    for gone in (None, *spare):
        left = [at for at in left if names[at] != gone]
        made = _cut([natural[at] for at in left], [ease[at] for at in left], width)
        if _total(made) <= width:
            return Fit(shown=left, widths=made)
    made = _cut([natural[at] for at in left], [least[at] for at in left], width)
    return Fit(shown=left, widths=_cut(made, [1] * len(left), width))


def _cut(widths: Sequence[int], least: Sequence[float], width: int) -> list[int]:
    """The widest of those that are above their least, cell by cell, while all is too wide."""
    made = [*widths]
    for _ in range(max(0, _total(made) - width)):
        able = [at for at, cells in enumerate(made) if cells > least[at]]
        if not able:
            break
        made[max(able, key=made.__getitem__)] -= 1
    return made


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


class Fitting:
    """What rich prints, anew for each width."""

    def __init__(
        self,
        names: Sequence[str],
        rows: Sequence[Sequence[Text | str]],
        *,
        right: Collection[str] = (),
        spare: Sequence[str] = (),
        long: Mapping[str, int] = NONE,
        header: bool = True,
        tell: bool = False,
    ) -> None:
        """`right`: columns of numbers. `tell`: say below which columns are not shown."""
        self._names = names
        self._rows = [
            [cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row] for row in rows
        ]
        self._right, self._spare, self._long = right, spare, long
        self._header, self._tell = header, tell

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = fit(self._names, self._natural(), options.max_width, spare=self._spare, long=self._long)
        made = RichTable(
            box=SIMPLE_HEAD if self._header else None,
            show_header=self._header,
            show_edge=False,
            pad_edge=False,
            padding=(0, GAP - 1 if self._header else GAP, 0, 0),  # the box has one cell between columns
            header_style="bold",
        )
        for at, width in zip(found.shown, found.widths, strict=True):
            made.add_column(
                self._names[at],
                justify="right" if self._names[at] in self._right else "left",
                width=width,
                no_wrap=True,
                overflow="ellipsis",
            )
        for row in self._rows:
            made.add_row(*(row[at] for at in found.shown))
        yield made
        left_out = [name for at, name in enumerate(self._names) if at not in found.shown]
        if left_out and self._tell:
            yield Text(f"too narrow for {', '.join(left_out)}; --json has all", style="dim")

    def _natural(self) -> list[int]:
        heads = [cell_len(name) if self._header else 1 for name in self._names]
        return [
            max([1, head, *(cell_len(row[at].plain) for row in self._rows)]) for at, head in enumerate(heads)
        ]
