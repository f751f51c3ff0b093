"""Removing what jobs made: their users chose names, depth and number of it, and may still be at it."""

import contextlib
import os
import secrets
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """What cannot be removed stays. Folders in it come up to its own level first: its depth is neither calls nor descriptors here."""
    with contextlib.suppress(OSError):
        top = os.open(path, _FOLDER)
        try:
            todo = _emptied(top, top)
            while todo:
                todo += _removed(todo.pop(), top)
        finally:
            os.close(top)
        path.rmdir()


def _removed(name: str, top: int) -> list[str]:
    """What folders of `top` it leaves to be removed."""
    below: list[str] = []
    with contextlib.suppress(OSError):
        here = os.open(name, _FOLDER, dir_fd=top)
        try:
            below = _emptied(here, top)
        finally:
            os.close(here)
        os.rmdir(name, dir_fd=top)
    return below


def _emptied(here: int, top: int) -> list[str]:
    """The folders that were in it, as they are called in `top` now."""
    folders = []
    for name in os.listdir(here):
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=here)
            except IsADirectoryError:
                moved = name if here == top else f".{secrets.token_hex(8)}"
                if here != top:
                    os.rename(name, moved, src_dir_fd=here, dst_dir_fd=top)
                folders.append(moved)
    return folders
