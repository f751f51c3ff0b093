"""A real `hs-controller` for benchmarks: alone on the first core, and what it takes of it."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def start(folder: Path, more: str = "") -> subprocess.Popen[bytes]:
    """The daemon on the first core, this process on the others; returns when it is ready. `more`: of its configuration."""
    file = folder / "controller.toml"
    file.write_text(f'state_dir = "{folder}/state"\nsocket = "{folder}/c.sock"\n{more}')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, (folder / "log").open("wb") as log:
        told.bind(str(folder / "notify"))
        told.settimeout(30)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:1])
        process = subprocess.Popen(
            [sys.executable, "-m", "hs_controller", "--config", str(file)],
            env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify")},
            stderr=log,
        )
        os.sched_setaffinity(0, cores[1:] or cores)
        told.recv(100)
    return process


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
