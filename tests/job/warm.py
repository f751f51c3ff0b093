"""Processes that begin where others have imported torch: forked from one that did nothing else, which is most of what a short training takes.

Each is a process like any other, with its own environment, folder, group and pipes; `sitecustomize` is run in it as at any Python's start,
and finds torch there, as in a script whose launcher had imported it. It ends as at any Python's end, but for taking its modules
apart: nearly all pages that it shares would be copied for that, which takes a second. What is about the import itself, or about that, is for a fresh
interpreter.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

MOST = 1 << 17  # bytes of an order
EXIT = os._exit  # the runtime puts its own in place of it


class Forked:
    """As much of a `subprocess.Popen` as the tests use."""

    def __init__(self, warm: "Warm", pid: int, stdout: TextIO, stderr: TextIO) -> None:
        self._warm, self.pid, self.stdout, self.stderr = warm, pid, stdout, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        while self.returncode is None and self._warm.hear(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            if not self._warm.hear(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """What is left of its output; nothing where that was asked for before."""
        said = {self.stdout: "", self.stderr: ""}

        def read(stream: TextIO) -> None:
            with stream:
                said[stream] = stream.read()

        readers = [threading.Thread(target=read, args=(stream,)) for stream in said if not stream.closed]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self.wait()
        return said[self.stdout], said[self.stderr]


def install_compiled(folder: Path) -> None:
    import compileall

    import hs_job

    hs_job.install(str(folder))
    for nowhere in folder.rglob("__pycache__"):
        nowhere.unlink()
    assert compileall.compile_dir(folder, quiet=2)


class Warm:
    """The process that has imported torch, and what else it is told to, from outside. One thread at a time may ask it."""

    def __init__(self, *also: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HS_", "PYTHON"))}
        environment = {**kept, "OMP_NUM_THREADS": "1", "TORCH_SHOW_CPP_STACKTRACES": "0"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", __file__, str(theirs.fileno()), *also],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        self._alive: dict[int, Forked] = {}
        self._newest = 0
        self._folder = tempfile.TemporaryDirectory(prefix="hs-warm-")
        self.injected = self._folder.name
        """What an agent puts on a job's PYTHONPATH, but compiled: each job does that for itself, which is a good part of what a short one computes."""
        install_compiled(Path(self.injected))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()
        self._folder.cleanup()

    def run(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, ranks: int = 0) -> Forked:
        """`python argv…`, where the first word is a script. `ranks`: so many of it under one that waits for them, as torchrun does; 0: not so."""
        ends = [os.pipe() for _ in range(2)]
        order = json.dumps({"argv": [*argv], "env": {**env}, "cwd": str(cwd), "ranks": ranks}).encode()
        assert len(order) < MOST
        self._newest = 0
        socket.send_fds(self._socket, [order], [theirs for _, theirs in ends])
        for _, theirs in ends:
            os.close(theirs)
        while not self._newest:
            self.hear(None)
        stdout, stderr = (os.fdopen(ours, encoding="utf-8") for ours, _ in ends)
        made = self._alive[self._newest] = Forked(self, self._newest, stdout, stderr)
        return made

    def hear(self, timeout: float | None) -> bool:
        """Who was started, who has ended; False: nobody in that time."""
        if not select.select([self._socket], [], [], timeout)[0]:
            return False
        said = self._socket.recv(MOST)
        assert said, f"it ended: {self._process.wait()}"
        pid, status = json.loads(said)
        if status is None:
            self._newest = pid
        else:
            self._alive.pop(pid).returncode = os.waitstatus_to_exitcode(status)
        return True


# --- that process itself ------------------------------------------------------------------------------------------------


def serve(orders: socket.socket) -> dict[str, Any]:
    """Returns in each process that it forks, with what that one is to be."""
    ended, told = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive = 0
    while True:
        ready = select.select([orders, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            while alive:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                alive -= 1
                orders.send(json.dumps([pid, status]).encode())
        if orders in ready:
            said, streams, _, _ = socket.recv_fds(orders, MOST, 2)
            if not said:
                os._exit(0)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setpgid(0, 0)
                for number, stream in enumerate(streams, start=1):
                    os.dup2(stream, number)
                for number in (*streams, ended, told, orders.detach()):
                    os.close(number)
                made: dict[str, Any] = json.loads(said)
                return made
            with contextlib.suppress(PermissionError):  # it has become another program, and did this before
                os.setpgid(pid, pid)  # here too: whoever hears of it may end its group at once
            alive += 1
            for stream in streams:
                os.close(stream)
            orders.send(json.dumps([pid, None]).encode())


def launch(ranks: int) -> dict[str, str]:
    """Returns in each rank, with its environment; who launched them ends as the first that ends badly, or well."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for rank in range(ranks):
        if not os.fork():
            return {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(ranks)]
    os._exit(next((abs(code) for code in codes if code), 0))


def become(argv: list[str], env: dict[str, str], cwd: str, ranks: int) -> None:
    """As Python does before it runs a script."""
    if ranks:
        env = env | launch(ranks)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # found for who imported torch
    os.chdir(cwd)
    sys.argv = argv
    added = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:1] = [str(Path(argv[0]).parent), *added]
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise


def end(ended: BaseException | None) -> None:
    """As Python does before it takes modules apart."""
    status = 0
    if isinstance(ended, SystemExit):
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if not isinstance(ended.code, int | None):
            sys.stderr.write(f"{ended.code}\n")
    elif ended is not None:
        sys.last_value = ended
        sys.excepthook(type(ended), ended, ended.__traceback__)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    EXIT(status)


if __name__ == "__main__":
    import gc
    import importlib
    import runpy

    import numpy  # noqa: F401, ICN001
    import torch
    import torch._dynamo  # what the first optimizer imports
    import torch.utils.data

    for name in sys.argv[2:]:
        importlib.import_module(name)
    torch.set_num_threads(1)
    gc.freeze()  # its pages stay shared
    become(**serve(socket.socket(fileno=int(sys.argv[1]))))
    failed: BaseException | None = None
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except (Exception, SystemExit) as error:
        failed = error
    end(failed)
