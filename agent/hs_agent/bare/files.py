"""Small files, written whole."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH104, PTH118

import contextlib
import json
import os
from typing import Any


def write_file(path: str, data: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data.encode())
    finally:
        os.close(fd)


def keep_room(folder: str, name: str, size: int) -> None:
    """For `replace_json` of that name, which finds so many bytes then even on a disk that is full."""
    fd = os.open(
        os.path.join(folder, f".{name}.room"),
        os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)


def replace_json(folder: str, name: str, value: dict[str, Any]) -> None:
    """Durable and whole: the reader sees the old file, none, or this one."""
    temporary = os.path.join(folder, f".{name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        os.rename(os.path.join(folder, f".{name}.room"), temporary)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        data = json.dumps(value).encode()
        while data:
            data = data[os.write(fd, data) :]
        os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, os.path.join(folder, name))
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
