"""Files that a run is to write: checked before it begins, which may take hours."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from hs_core.errors import RefusedError
from hs_daemon.there import exists, is_dir, is_file
from hs_sim.writers import scratch_of


class FileName(click.Path):
    """An empty one, as of a variable that a script has not set, would be the folder that we are in, and `-`, by which others mean what comes in or goes out, a file of that name."""

    def __init__(self, *, folder: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=not folder)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("expected a name that is not empty.", param, ctx)
        if value == "-":
            self.fail("'-' names no file here; expected a file's name (./- is one).", param, ctx)
        return super().convert(value, param, ctx)


def check_outputs(
    inputs: Iterable[Path | None],
    outputs: Mapping[str, Path | None],
    pictures: Mapping[str, tuple[Path, Iterable[str]]] | None = None,
) -> None:
    """`outputs`: by option; `pictures`: folders by option, and names in them. Raises RefusedError for one that cannot be written, is read too, or named twice."""
    taken: dict[Path | tuple[int, int], str] = {
        one: "is read" for path in inputs if path is not None for one in _same(path)
    }
    asked = [(option, path, path) for option, path in outputs.items() if path is not None]
    for option, (folder, names) in (pictures or {}).items():
        if why := _no_folder(folder):
            raise RefusedError(f"{option}: {str(folder)!r}: {why}; expected a folder that can be written")
        asked += [(option, folder, folder / name) for name in names]
    for option, _, path in asked:
        if option == "--plot" and path.suffix != ".png":
            raise RefusedError(f"--plot: {str(path)!r}; expected a name that ends in .png")
        for one in _same(path):
            if use := taken.get(one):
                raise RefusedError(f"{option}: {str(path)!r} {use}; expected another file")
        if why := _obstacle(path):
            raise RefusedError(f"{option}: {str(path)!r}: {why}; expected a place that can be written")
        taken |= dict.fromkeys(_same(path), f"is written by {option}")


def _same(path: Path) -> list[Path | tuple[int, int]]:
    """What tells that it is another's file: where it is, and, as hard links are elsewhere, which it is."""
    try:
        about = path.stat()
    except OSError:
        return [path.resolve()]
    return [path.resolve(), (about.st_dev, about.st_ino)]


def _obstacle(path: Path) -> str:
    """What is there is put aside by a file of that name: no pipe or device is written to."""
    try:
        if is_dir(path):
            return "is a folder"
        if exists(path) and not is_file(path):
            return "is no plain file"
        return _no_folder(path.parent) or _unnameable(path)
    except OSError as error:  # its name is too long, say
        return _why(error)


def _no_folder(folder: Path) -> str:
    """Folders that are missing are made when something is written in them. Root may write anywhere, but not every file system takes it."""
    try:
        there = next(above for above in (folder.absolute(), *folder.absolute().parents) if exists(above))
        if not is_dir(there):
            return f"{there} is no folder"
        if not os.access(there, os.W_OK | os.X_OK):
            return f"{there} is not writable"
    except OSError as error:
        return _why(error)
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return f"in {there} nothing can be made ({_why(error)})"


def _unnameable(path: Path) -> str:
    """The name under which it is written at first is longer."""
    try:
        exists(scratch_of(path))
    except OSError as error:
        return _why(error)
    return ""


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
