"""A stand-in for the agent: real socket, real GangMachine, real processes. Used by the tests and the benchmark."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from warm import Forked, Warm

import hs_job
from hs_core.events.host import Checkpoint, HostEvent, Resume, Suspend
from hs_core.gang import GangMachine, Step
from hs_core.names import JobId
from hs_core.reports import Tier

JOB = JobId(7)
EPOCH = 1
PATIENCE_S = float(os.environ.get("PATIENCE_S", "60"))
E = TypeVar("E")


class StubAgent:
    """Speaks docs/job-protocol.md for one job. `kill` and `start` again: an agent that dies and comes back, knowing nothing."""

    def __init__(self, folder: Path, warm: Warm | None = None, **machine: Any) -> None:
        """`warm`: scripts are forked from it."""
        self.folder = folder
        self._warm = warm
        self.path = str(folder / "job.sock")
        self.injected = folder / "inject"
        hs_job.install(str(self.injected))
        self._machine_args = machine
        self.events: list[HostEvent] = []
        self.heard: list[tuple[float, int, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._jobs: list[subprocess.Popen[str] | Forked] = []
        self._alive = False
        # What killed processes leave behind, torchrun's notes and sockets of loaders' workers, goes when we do.
        self._temporary = tempfile.TemporaryDirectory(prefix="hsj", dir="/tmp", ignore_cleanup_errors=True)

    def start(self) -> Self:
        self.machine = GangMachine(JOB, EPOCH, **self._machine_args)
        self._peers: dict[int, socket.socket] = {}
        self._buffers: dict[int, bytearray] = {}
        self._wake_r, self._wake_w = os.pipe()
        Path(self.path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(16)
        self._alive = True
        self._thread = threading.Thread(target=self._serve, name="stub agent")
        self._thread.start()
        return self

    def kill(self) -> None:
        if not self._alive:
            return
        with self._changed:
            self._alive = False
        os.write(self._wake_w, b"x")
        self._thread.join()
        for peer in self._peers.values():
            peer.close()
        self._listener.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            if job.poll() is None:
                # One that has ended since may have been reaped by the process that it was forked from.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
        self.kill()
        self._temporary.cleanup()

    # --- the job ---------------------------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HS_", "PYTHON"))}
        return {
            **kept,
            "PYTHONPATH": str(self.injected),
            "HS_AGENT_SOCKET": self.path,
            "HS_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TORCH_SHOW_CPP_STACKTRACES": "0",
            "TMPDIR": self._temporary.name,
            **more,
        }

    def run(
        self, *argv: str, env: dict[str, str] | None = None, fresh: bool = False, ranks: int = 0
    ) -> subprocess.Popen[str] | Forked:
        """`fresh`: in an interpreter of its own, which imports torch itself. `ranks`: as so many ranks of a gang, where there is something to fork from."""
        job: subprocess.Popen[str] | Forked
        if self._warm is not None and argv[0].endswith(".py") and not fresh:
            environment = self.environment(**{"PYTHONPATH": self._warm.injected} | (env or {}))
            job = self._warm.run(argv, environment, self.folder, ranks)
        else:
            job = subprocess.Popen(
                [sys.executable, *argv],
                env=self.environment(**(env or {})),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.folder,
                start_new_session=True,
            )
        self._jobs.append(job)
        return job

    # --- orders and events -----------------------------------------------------------------------------------------

    def suspend(self, tier: Tier = Tier.HOLD) -> None:
        self._order(Suspend(job=JOB, epoch=EPOCH, tier=tier))

    def resume(self) -> None:
        self._order(Resume(job=JOB, epoch=EPOCH))

    def checkpoint(self) -> None:
        self._order(Checkpoint(job=JOB, epoch=EPOCH))

    def _order(self, order: Suspend | Resume | Checkpoint) -> None:
        with self._changed:
            self._do(self.machine.order(order, time.monotonic()))

    def seen(self) -> int:
        """A place in the events: give it to `wait` to wait for what comes after it."""
        with self._changed:
            return len(self.events)

    def wait(self, kind: type[E], since: int = 0, where: Callable[[E], bool] = lambda _: True) -> E:
        return self.until(
            lambda: next((e for e in self.events[since:] if isinstance(e, kind) and where(e)), None),
            kind.__name__,
        )

    def until(self, condition: Callable[[], E | None], what: str) -> E:
        end = time.monotonic() + PATIENCE_S
        with self._changed:
            while True:
                found = condition()
                if found is not None and found is not False:
                    return found
                job = self._jobs[-1]
                if job.poll() not in (None, 0, 75):
                    raise AssertionError(
                        f"the job ended with {job.returncode} before {what}: {job.communicate()}"
                    )
                if not self._changed.wait(min(0.5, end - time.monotonic())) and time.monotonic() > end:
                    raise AssertionError(f"no {what} within {PATIENCE_S} s; events: {self.events[-10:]}")

    def messages(self, kind: str) -> list[dict[str, Any]]:
        with self._changed:
            return [message for _, _, message in self.heard if message["type"] == kind]

    # --- the socket ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        while self._alive:
            for fd, _ in poll.poll():
                if fd == self._listener.fileno():
                    peer, _ = self._listener.accept()
                    self._peers[peer.fileno()] = peer
                    self._buffers[peer.fileno()] = bytearray()
                    poll.register(peer, select.POLLIN)
                elif fd in self._peers and not self._read(fd):
                    poll.unregister(fd)
                    self._peers.pop(fd).close()

    def _read(self, fd: int) -> bool:
        try:
            data = self._peers[fd].recv(65536)
        except OSError:
            data = b""
        now_s = time.monotonic()
        with self._changed:
            if not data:
                self._do(self.machine.gone(fd, now_s))
                return False
            buffer = self._buffers[fd]
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack_from(">I", buffer)[0]):
                message = json.loads(bytes(buffer[4 : 4 + size]))
                del buffer[: 4 + size]
                self.heard.append((now_s, fd, message))
                self._do(self.machine.heard(fd, message, now_s))
        return True

    def _do(self, step: Step) -> None:
        self.machine.check()
        for connection, message in step.tell:
            body = json.dumps(dict(message)).encode()
            peer = self._peers.get(connection)
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.sendall(struct.pack(">I", len(body)) + body)
        self.events.extend(step.events)
        self._changed.notify_all()
