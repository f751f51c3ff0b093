"""What the controller asks for by number and takes as it has room: logs, and what commands beside jobs say."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Protocol

from hs_agent import logs
from hs_agent.errands import End, Errands
from hs_agent.folder import Key
from hs_core.errors import Kind, RefusedError
from hs_core.names import JobId
from hs_proto.v1 import agent_pb2, common_pb2

UNREAD_S = 60.0  # that somebody may take over what a command has said, beyond its time
MAX_LOGS = 64  # at once

Write = Callable[[agent_pb2.FromAgent], Awaitable[None]]


class Jobs(Protocol):
    """What is here of them."""

    errands: Errands

    def log_folder(self, job: JobId, epoch: int | None = None) -> Path | None: ...

    def logs_of(self, job: JobId) -> list[int]: ...

    def is_running(self, job: JobId, epoch: int | None = None) -> bool: ...


class _Window:
    """How much may be sent just now: who reads it has room for so much."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._more = asyncio.Event()

    def taken(self, more_bytes: int) -> None:
        self._room_bytes += more_bytes
        self._more.set()

    async def room(self, needed_bytes: int) -> None:
        """Once there is so much room; then it is taken up."""
        while self._room_bytes < needed_bytes:
            self._more.clear()
            await self._more.wait()
        self._room_bytes -= needed_bytes


class Streams:
    """Of one connection to the controller. `write`: over it."""

    def __init__(self, host: str, jobs: Jobs, write: Write) -> None:
        self._host, self._jobs, self._write = host, jobs, write
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._windows: dict[int, _Window] = {}
        self._logs: set[int] = set()

    @property
    def tasks(self) -> Iterable[asyncio.Task[None]]:
        return self._tasks.values()

    def taken(self, taken: agent_pb2.Taken) -> None:
        window = self._windows.get(taken.request_id)
        if window is not None:  # else its end was under way
            window.taken(taken.bytes)

    def cancel(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    def _begin(self, number: int, window: _Window, work: Coroutine[Any, Any, None]) -> None:
        self._windows[number] = window
        task = self._tasks[number] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        del self._tasks[number], self._windows[number]
        self._logs.discard(number)

    # --- logs -------------------------------------------------------------------------------------------------------

    async def log(self, request: agent_pb2.LogRequest) -> None:
        number = request.request_id
        if number in self._tasks:
            await self._end_log(number, "asked twice")
        elif request.which:
            epochs = self._jobs.logs_of(JobId(request.job_id))
            self._begin(number, _Window(0), self._end_log(number, "", epochs))
        elif len(self._logs) >= MAX_LOGS:
            await self._end_log(number, f"this agent sends {MAX_LOGS} logs already")
        else:
            window = _Window(request.window_bytes)
            self._logs.add(number)
            self._begin(number, window, self._send_log(request, window))

    async def _send_log(self, request: agent_pb2.LogRequest, window: _Window) -> None:
        try:
            error = await self._through_log(request, window)
        except OSError as broken:
            error = f"the log cannot be read: {broken.strerror}"
        await self._end_log(request.request_id, error)

    async def _through_log(self, request: agent_pb2.LogRequest, window: _Window) -> str:
        """Why there is none; empty: there was."""
        job, epoch = JobId(request.job_id), request.epoch if request.HasField("epoch") else None
        folder = self._jobs.log_folder(job, epoch)
        while folder is None and request.follow and self._jobs.is_running(job, epoch):
            await asyncio.sleep(logs.POLL_S)
            folder = self._jobs.log_folder(job, epoch)
        if folder is None:
            return f"{self._host} has no log of job {job}"
        chunks = logs.read(
            folder,
            request.tail_lines,
            follow=request.follow,
            alive=lambda: self._jobs.is_running(job, epoch),
            where=lambda: self._jobs.log_folder(job, epoch),
            ago_s=request.ago_s,
        )
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                await window.room(len(chunk))
                data = agent_pb2.LogData(request_id=request.request_id, data=chunk)
                await self._write(agent_pb2.FromAgent(log=data))
        return ""

    async def _end_log(self, number: int, error: str, epochs: Iterable[int] = ()) -> None:
        data = agent_pb2.LogData(request_id=number, end=True, error=error, epochs=epochs)
        await self._write(agent_pb2.FromAgent(log=data))

    # --- commands beside jobs ---------------------------------------------------------------------------------------

    async def errand(self, request: agent_pb2.Exec, *, is_obeyed: bool) -> None:
        """`is_obeyed`: the controller who asks, by this host."""
        number = request.request_id
        if number in self._tasks:
            await self._end_errand(number, RefusedError("asked twice"))
        elif not is_obeyed:
            why = f"{self._host} has obeyed a controller of a later term"
            self._begin(number, _Window(0), self._end_errand(number, RefusedError(why, Kind.UNAVAILABLE)))
        else:
            window = _Window(request.window_bytes)
            self._begin(number, window, self._send_errand(request, window))

    async def _send_errand(self, request: agent_pb2.Exec, window: _Window) -> None:
        how: End | RefusedError
        try:
            async with asyncio.timeout(request.limit_s + UNREAD_S):
                how = await self._through_errand(request, window)
        except RefusedError as refused:
            how = refused
        except TimeoutError:
            how = End(signal=signal.SIGKILL, why="nobody took what it said", is_late=True)
        await self._end_errand(request.request_id, how)

    async def _through_errand(self, request: agent_pb2.Exec, window: _Window) -> End:
        key = Key(JobId(request.job_id), request.epoch)
        async with self._jobs.errands.run(key, request.command, request.limit_s) as running:
            async with contextlib.aclosing(running.said()) as said:
                async for is_error, data in said:
                    await window.room(len(data))
                    some = agent_pb2.ExecData(request_id=request.request_id, data=data, is_error=is_error)
                    await self._write(agent_pb2.FromAgent(exec=some))
            return await running.ended()

    async def _end_errand(self, number: int, how: End | RefusedError) -> None:
        data = agent_pb2.ExecData(request_id=number)
        if isinstance(how, RefusedError):
            data.error, data.error_kind = str(how), how.kind.value
        else:
            data.end.CopyFrom(
                common_pb2.ExecEnd(code=how.code, signal=how.signal, why=how.why, is_late=how.is_late)
            )
        await self._write(agent_pb2.FromAgent(exec=data))
