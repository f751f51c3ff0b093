"""Small files, written whole."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH104, PTH118

import json
import os
from typing import Any


def write_file(path: str, data: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data.encode())
    finally:
        os.close(fd)


def replace_json(folder: str, name: str, value: dict[str, Any]) -> None:
    """Durable and whole: the reader sees the old file, none, or this one."""
    temporary = os.path.join(folder, f".{name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        os.write(fd, json.dumps(value).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, os.path.join(folder, name))
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
