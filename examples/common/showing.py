"""How the demos talk: hsctl as one would type it, tables on the terminal and in a file."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hs_client.errors import INTERRUPTED


def hsctl(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "hs_client", *words], check=False)
    if done.returncode != 0:
        sys.exit(f"hsctl {' '.join(words)}: exit status {done.returncode}")


def save_text(width: int, tables: Sequence[Table], lines: Sequence[str], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        console = Console(file=file, width=width)
        for table in tables:
            console.print(table)
        for line in lines:
            console.print(line)


def status_of(main: Callable[[Sequence[str]], int]) -> int:
    """Of a demo, as a command: 130 where it was interrupted, of which nobody needs to be told where it was then."""
    try:
        return main(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted: what was started is ended", file=sys.stderr)
        return INTERRUPTED
