"""Commands that run beside jobs: who may have one here and now, what it says, and when it is ended (errand.py does it)."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from hs_agent import errand, procs
from hs_agent.folder import Key
from hs_agent.launch import Launcher
from hs_agent.program import MAX_ARGV
from hs_core.errors import Kind, RefusedError

CHUNK = 64 << 10
MOST, MOST_OF_A_JOB = 16, 4
MOST_SAID = 64 << 20
MAX_COMMAND_BYTES = 128 << 10
LIMIT_S = 3600.0  # the longest that one may take
LAST_S = 1.0  # for what is on its way when the command has ended; somebody else may hold the other end
CLOSE_S = 10.0
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 5.0
AT_ONCE = b"k"
# Of the job's own environment: it is not to count as one of its ranks, and nobody restores its state a second time.
UNHOOKED = {"HS_HOOK": "0"}
MARK = "HS_COMMAND"  # names one command: by it is found what a keeper that was killed has left
NOT_FOR_IT = frozenset({"HS_RESTORE"})

log = structlog.get_logger("errands")

WhyNot = Callable[[Key], str]
"""Why a job has no turn on this host; empty: it has."""


@dataclass(frozen=True, slots=True)
class End:
    code: int = 0
    signal: int = 0
    why: str = ""  # it did not end by itself
    is_late: bool = False


class Running:
    """A command from its start to its end."""

    def __init__(
        self, key: Key, process: asyncio.subprocess.Process, control: socket.socket, mark: str
    ) -> None:
        self.key = key
        self.why = ""  # it is ended
        self._process, self._control, self._mark = process, control, mark
        self._gone = asyncio.create_task(process.wait())  # and nobody holds its pipes
        self._over = asyncio.Event()  # or to be ended: perhaps it cannot
        self._gone.add_done_callback(lambda _: self._over.set())
        self._answering = asyncio.create_task(self._answer())
        self._answering.add_done_callback(self._answered)
        self._is_ended = asyncio.Event()
        self._said = 0

    @property
    def keeper(self) -> int:
        return self._process.pid

    @property
    def _streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return self._process.stdout, self._process.stderr

    async def said(self) -> AsyncGenerator[tuple[bool, bytes]]:
        """What it says, and whether that is of its standard error, as fast as it is taken. Until it has ended."""
        queue: asyncio.Queue[tuple[bool, bytes] | None] = asyncio.Queue(1)
        pumps = [
            asyncio.create_task(self._pump(stream, is_error, queue))
            for is_error, stream in zip((False, True), self._streams, strict=True)
        ]
        try:
            left = len(pumps)
            while left:
                some = await queue.get()
                if some is None:
                    left -= 1
                    continue
                self._said += len(some[1])
                if self._said > MOST_SAID:
                    self.end(f"it said more than {MOST_SAID >> 20} MiB")
                    return
                yield some
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        stream: asyncio.StreamReader,
        is_error: bool,
        queue: "asyncio.Queue[tuple[bool, bytes] | None]",
    ) -> None:
        while data := await self._read(stream):
            await queue.put((is_error, data))
        await queue.put(None)

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        reading, over = asyncio.ensure_future(stream.read(CHUNK)), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await asyncio.wait({reading}, timeout=LAST_S)
            return reading.result() if reading.done() else b""
        finally:
            reading.cancel()
            over.cancel()

    def end(self, why: str) -> None:
        """At once, with all that came of it."""
        if not self.why:
            self.why = why
            self._over.set()
            self._is_ended.set()
            with contextlib.suppress(OSError):
                self._control.send(AT_ONCE)

    def _answered(self, answering: asyncio.Task[dict[str, Any]]) -> None:
        if not answering.cancelled() and not answering.result():  # whoever is left of it may hold its pipes
            self._over.set()

    async def ended(self) -> End:
        """How. Raises RefusedError where it was not started."""
        word = {} if self.why else await asyncio.shield(self._answering)
        if word.get("error"):
            raise RefusedError(word["error"])
        if word.get("signal") == signal.SIGKILL and not word["is_late"]:
            # By its own, or because its job has ended and took all of its control group along: that is known a moment later.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._is_ended.wait()
        return self._end(word)

    def _end(self, word: Mapping[str, Any]) -> End:
        why = self.why or ("" if word else "the process that kept it was killed")
        if why:
            return End(signal=signal.SIGKILL, why=why)
        late = "it took longer than it was given" if word["is_late"] else ""
        return End(word["code"], word["signal"], late, word["is_late"])

    async def _answer(self) -> dict[str, Any]:
        """Empty: whoever kept it was killed."""
        said = b""
        with contextlib.suppress(OSError):
            while not said.endswith(b"\n"):
                data = await asyncio.get_running_loop().sock_recv(self._control, CHUNK)
                if not data:
                    return {}
                said += data
        word: dict[str, Any] = json.loads(said) if said.endswith(b"\n") else {}
        return word

    async def close(self) -> None:
        """It is ended, if it has not."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        word = await self._answering
        self._control.close()
        if not word:
            await self._kill_what_is_left()
        await self._gone
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                for stream in self._streams:
                    while await stream.read(CHUNK):
                        pass  # else asyncio keeps the pipe

    async def _kill_what_is_left(self) -> None:
        """Of a command whose keeper was killed: the kernel ends the command with it, and nobody what that had started."""
        line, pause_s = f"{MARK}={self._mark}".encode(), FIRST_LOOK_S
        while await asyncio.to_thread(_killed, line):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)


def _killed(line: bytes) -> bool:
    """Whether there was anybody with this in its environment, or nobody can tell just now."""
    try:
        left = procs.with_environment(line)
        for who in left:
            procs.send(who, signal.SIGKILL)
        return bool(left)
    except OSError as error:  # no descriptors
        log.warning("what is left of a command cannot be looked for", why=error.strerror)
        return True


class Errands:
    """Those of this host."""

    def __init__(self, launcher: Launcher, why_not: WhyNot) -> None:
        self._launcher, self._why_not = launcher, why_not
        self._running: set[Running] = set()
        self._beginning = Counter[Key]()
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def run(self, key: Key, command: Sequence[str], limit_s: float) -> AsyncGenerator[Running]:
        """Raises RefusedError. Who leaves ends it."""
        launch = self._launch(key, command, limit_s)
        self._beginning[key] += 1
        try:
            running = await _started(key, launch)
        finally:
            self._beginning[key] -= 1
        self._running.add(running)
        log.info("a command runs beside a job", job=key.job, epoch=key.epoch, program=command[0])
        try:
            self.look()  # its turn may have ended while it was started
            yield running
        finally:
            self._running.discard(running)
            ending = asyncio.create_task(running.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _launch(self, key: Key, command: Sequence[str], limit_s: float) -> dict[str, Any]:
        check(command, limit_s)
        if why := self._why_not(key):
            raise RefusedError(why, Kind.CONFLICT)
        theirs = sum(one.key == key for one in self._running) + self._beginning[key]
        if theirs >= MOST_OF_A_JOB or len(self._running) + self._beginning.total() >= MOST:
            what = (
                f"{theirs} commands run beside job {key.job}"
                if theirs >= MOST_OF_A_JOB
                else f"{MOST} run here"
            )
            raise RefusedError(f"{what} already: end some first", Kind.UNAVAILABLE)
        launch = self._launcher.folder(key).launch()
        if launch is None:
            raise RefusedError(f"job {key.job} is not here", Kind.CONFLICT)
        if launch["uid"] == 0:
            raise RefusedError(f"job {key.job} is root's: no command is run as root", Kind.NOT_ALLOWED)
        return {
            "argv": [*self._launcher.config.launcher, *command],
            "env": environment(launch["env"], secrets.token_hex(8)),
            "identity": launch["identity"],
            "workdir": launch["workdir"],
            "cgroup": launch["cgroup"],
            "output": "",
            "make_dirs": [],
            "limit_s": limit_s,
        }

    @property
    def keepers(self) -> list[tuple[Key, int]]:
        """Beside which jobs, and the processes that nothing of theirs can leave."""
        return [(running.key, running.keeper) for running in self._running]

    def look(self) -> None:
        """Whose job has no turn any more is ended: the GPUs are others' from now on."""
        for running in self._running:
            if not running.why and (why := self._why_not(running.key)):
                running.end(why)

    async def close(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_S)


def check(command: Sequence[str], limit_s: float) -> None:
    """Limits that hold whatever a controller lets through."""
    if not 0 < limit_s <= LIMIT_S:
        raise RefusedError(f"limit_s: {limit_s!r}: above 0 and at most {LIMIT_S:g} seconds were expected")
    if not command or not command[0]:
        raise RefusedError("command is empty: expected a program and its arguments")
    if len(command) > MAX_ARGV or sum(len(word.encode()) for word in command) > MAX_COMMAND_BYTES:
        raise RefusedError(
            f"command: expected at most {MAX_ARGV} words and {MAX_COMMAND_BYTES >> 10} KiB in all"
        )
    if any("\0" in word for word in command):
        raise RefusedError("command holds a NUL byte")


def environment(jobs: Mapping[str, str], mark: str) -> dict[str, str]:
    kept = {name: value for name, value in jobs.items() if name not in NOT_FOR_IT}
    return kept | UNHOOKED | {MARK: mark}


async def _started(key: Key, launch: Mapping[str, Any]) -> Running:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", errand.__file__,
                stdin=theirs.fileno(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                cwd="/", env={}, start_new_session=True, close_fds=True, limit=CHUNK,
            )  # fmt: skip
        ours.setblocking(False)
        running = Running(key, process, ours, launch["env"][MARK])
        try:
            await asyncio.get_running_loop().sock_sendall(ours, json.dumps(launch).encode() + b"\n")
        except BrokenPipeError:
            pass  # it was killed: so it will be found
        except BaseException:
            await running.close()
            raise
    except OSError as error:
        ours.close()
        raise RefusedError(
            f"no process can be started here: {error.strerror or os.strerror(error.errno or 0)}",
            Kind.UNAVAILABLE,
        ) from None
    except BaseException:
        ours.close()
        raise
    return running
