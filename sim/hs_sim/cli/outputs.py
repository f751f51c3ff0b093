"""Files that a run is to write: checked before it begins, which may take hours."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hs_core.errors import RefusedError


def check_outputs(inputs: Iterable[Path | None], outputs: Mapping[str, Path | None]) -> None:
    """`outputs`: by option. Raises RefusedError for one that cannot be written, is read too, or named twice."""
    taken = {path.resolve(): "is read" for path in inputs if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        if option == "--plot" and path.suffix != ".png":
            raise RefusedError(f"--plot: {str(path)!r}; expected a name that ends in .png")
        if use := taken.get(path.resolve()):
            raise RefusedError(f"{option}: {str(path)!r} {use}; expected another file")
        if why := _obstacle(path):
            raise RefusedError(f"{option}: {str(path)!r}: {why}; expected a place that can be written")
        taken[path.resolve()] = f"is written by {option}"


def _obstacle(path: Path) -> str:
    """Folders that are missing are made when it is written."""
    if path.is_dir():
        return "is a folder"
    folder = next(above for above in path.absolute().parents if above.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"
