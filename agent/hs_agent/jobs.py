"""The jobs that have a process on this host: their shims, sockets and freezers, as the loop sees them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import grpc
import structlog

from hs_agent import procs, steps
from hs_agent.cgroup import JobCgroup
from hs_agent.config import Config
from hs_agent.folder import Ended, Folder, Key, parse_key
from hs_agent.gangs import Gang, HeadGang, MemberGang, Tell
from hs_agent.jobsock import Connections, JobSocket
from hs_agent.launch import Launcher
from hs_core.events.host import (
    Checkpoint,
    HostEvent,
    JobExited,
    JobFroze,
    JobHeld,
    JobWentOn,
    Kill,
    LaunchFailed,
    Resume,
    Suspend,
    SuspendFailed,
)
from hs_core.gang import GangMachine
from hs_core.reports import LOST, WITH_AGENT, Tier
from hs_core.wanted import Peer
from hs_daemon import boot_s
from hs_daemon.there import exists
from hs_proto.v1 import agent_pb2

FREEZE_LIMIT_S = 5.0
FREEZE_POLL_S = 0.005
CONTROL_POLL_S = 0.1
LISTEN_LIMIT_S = 20.0  # of a shim that comes up, on a host that is busy
CUT_OFF_S = 5.0  # of one that is to end, by when it is told otherwise
LOOK_AGAIN_S = 1.0
UNKNOWN_END_S = 10.0

log = structlog.get_logger("jobs")

Order = Suspend | Resume | Checkpoint | Kill
Post = Callable[[HostEvent], None]
StepOf = Callable[[Key], int]


@dataclass(slots=True)
class RunningJob:
    key: Key
    folder: Folder
    shim: procs.Identity
    pidfd: int  # -1: its shim has ended
    group: JobCgroup
    gang: Gang
    sock: JobSocket
    frozen: bool = False
    listens: bool = False  # its shim has heard a word
    killing: bool = False
    with_agent: bool = False  # it is ended as we stop
    freezing: asyncio.Task[None] | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Jobs:
    """Watches running jobs and performs orders on them; says what happened through `post`."""

    def __init__(
        self,
        config: Config,
        launcher: Launcher,
        post: Post,
        step_of: StepOf,
        dial: Callable[[Peer], grpc.aio.Channel],
    ) -> None:
        self.config, self.launcher = config, launcher
        self._dial = dial
        self._post, self._step_of = post, step_of
        self.running: dict[Key, RunningJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = Connections()

    # --- coming and going -------------------------------------------------------------------------------------------

    async def open_socket(self, folder: Folder, launch: Mapping[str, Any]) -> tuple[Gang, JobSocket]:
        """From what launch.json holds, so that a job that is adopted gets the same."""
        key = folder.key

        def tell(connection: int, message: Mapping[str, Any]) -> None:
            sock.tell(connection, message)

        def hang_up() -> None:
            sock.hang_up()

        gang = self._gang(key, launch, tell, hang_up)
        sock = JobSocket(
            self.launcher.socket_of(key, launch),
            int(launch["uid"]),
            int(launch["gid"]),
            gang.heard,
            gang.gone,
            shared=self._connections,
        )
        try:
            await sock.open()
        except BaseException:
            await gang.close()
            raise
        return gang, sock

    def _gang(self, key: Key, launch: Mapping[str, Any], tell: Tell, hang_up: Callable[[], None]) -> Gang:
        wanted = launch["wanted"]
        nodes, rank = [Peer(**peer) for peer in wanted["nodes"]], int(wanted["node_rank"])
        if rank > 0:
            hello = agent_pb2.GangHello(
                job_id=key.job, epoch=key.epoch, node_rank=rank, grant=str(wanted["grant"])
            )
            return MemberGang(key, hello, nodes[0], self._dial, tell, hang_up, self._said)
        machine = GangMachine(
            key.job,
            key.epoch,
            nodes=max(len(nodes), 1),
            last_step=int(wanted.get("last_step", 0)),
            pace_s=self.config.pace_s(
                str(wanted["job_class"]), str(launch["model"]), float(launch["slowdown"])
            ),
        )
        return HeadGang(key, machine, tell, self._said)

    def _said(self, event: HostEvent) -> None:
        """By a gang. Where the freezer took one that was about to stand at its step edge, it is let out of it: there it is to hear what it is told."""
        if isinstance(event, JobHeld):
            running = self.running.get(Key(event.job, event.epoch))
            if running is not None and running.frozen:
                self._thaw(running)
        self._post(event)

    def head(self, key: Key) -> HeadGang | None:
        """Of a job over several servers whose first node runs here."""
        running = self.running.get(key)
        return running.gang if running is not None and isinstance(running.gang, HeadGang) else None

    def meet(self, key: Key, nodes: Sequence[Peer]) -> None:
        running = self.running.get(key)
        if running is not None:
            running.gang.meet(nodes)

    async def watch(self, folder: Folder, shim: procs.Identity, gang: Gang, sock: JobSocket) -> bool:
        """False: the shim is gone already (its exit was handled)."""
        pidfd = procs.open_pidfd(shim)
        if pidfd is None:
            await sock.close()
            await gang.close()
            await self._ended(folder, None)
            return False
        running = RunningJob(folder.key, folder, shim, pidfd, self.launcher.group(folder.key), gang, sock)
        try:
            asyncio.get_running_loop().add_reader(pidfd, self._shim_ended, running)
        except OSError:
            os.close(pidfd)
            raise
        self.running[folder.key] = running
        return True

    def _shim_ended(self, running: RunningJob) -> None:
        asyncio.get_running_loop().remove_reader(running.pidfd)
        with contextlib.suppress(ChildProcessError):  # an adopted one is init's to wait for
            os.waitid(os.P_PIDFD, running.pidfd, os.WEXITED | os.WNOHANG)
        os.close(running.pidfd)
        running.pidfd = -1
        if running.freezing is not None:
            running.freezing.cancel()
        self.spawn(self._ended(running.folder, running))

    def end_without_shim(self, folder: Folder) -> None:
        """Its shim was killed while no agent ran."""
        self.spawn(self._ended(folder, None))

    async def _ended(self, folder: Folder, running: RunningJob | None) -> None:
        key = folder.key
        while (ended := await self._how_it_ended(folder)) is None:  # noqa: ASYNC110 — nobody tells when it can be known
            await asyncio.sleep(LOOK_AGAIN_S)
        in_touch = running is not None and running.gang.in_touch
        if running is not None:
            self.running.pop(key, None)
            await running.sock.close()
            await running.gang.close()
            running.gone.set()
        group = self.launcher.group(key)
        if running is not None and running.with_agent and not ended.exit.why:
            ended = replace(ended, exit=replace(ended.exit, why=WITH_AGENT))
        if not (ended.exit.ok or ended.exit.why or (running is not None and running.killing)):
            ended = replace(ended, exit=replace(ended.exit, why=group.ran_out()))
        group.remove()
        self.post_end(key, ended, in_touch=in_touch)

    async def _how_it_ended(self, folder: Folder) -> Ended | None:
        """None: that cannot be found out yet."""
        key, why = folder.key, "some of its processes live still"
        try:
            ended = folder.ended()
            if ended is not None:
                return ended
            if await asyncio.to_thread(self.launcher.kill_leftovers, key):
                told = "its shim was killed, so how it ended is not known; what was left of it was killed"
                return Ended(folder.give_up(told), launch_failed=False)
        except OSError as error:  # no descriptors, no memory
            why = error.strerror or str(error)
        log.warning("how a job ended is not known yet", job=key.job, epoch=key.epoch, why=why)
        return None

    def post_end(self, key: Key, ended: Ended, *, in_touch: bool = False) -> None:
        now_s = boot_s()
        if ended.launch_failed:
            log.warning("launch failed", job=key.job, epoch=key.epoch, why=ended.exit.why)
            self._post(LaunchFailed(now_s=now_s, job=key.job, epoch=key.epoch, why=ended.exit.why))
            return
        exit_ = ended.exit
        log.info("exited", job=key.job, epoch=key.epoch, code=exit_.code, signal=exit_.signal, why=exit_.why)
        word = steps.noted(self.launcher.folder(key).steps_file)
        self._post(
            JobExited(
                now_s=now_s, job=key.job, epoch=key.epoch, exit=exit_, in_touch=in_touch, ended_s=ended.at_s,
                step=word.step, needs_bytes=word.needs_bytes,
            )
        )  # fmt: skip

    # --- orders -----------------------------------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Of a job that has no process here (any more) it is nothing."""
        match order:
            case Suspend():
                self.suspend(order)
            case Resume():
                self.resume(order)
            case Checkpoint():
                self.checkpoint(order)
            case Kill():
                self.kill(order)
            case _:
                assert_never(order)

    def suspend(self, order: Suspend) -> None:
        running = self.running.get(Key(order.job, order.epoch))
        if running is None:
            return
        if order.tier is not Tier.FREEZE:
            running.gang.order(order)
        elif not running.killing:
            if running.freezing is not None:
                running.freezing.cancel()
            running.frozen = True
            running.freezing = self.spawn(self._freeze(running))

    async def _freeze(self, running: RunningJob) -> None:
        job, epoch = running.key
        why = await self._try_to_freeze(running)
        if why:
            self._thaw(running)
            self._post(SuspendFailed(now_s=boot_s(), job=job, epoch=epoch, why=f"the freezer: {why}"))
            return
        self._post(JobFroze(now_s=boot_s(), job=job, epoch=epoch))

    async def _try_to_freeze(self, running: RunningJob) -> str:
        """Why not, or nothing."""
        try:
            if running.group.can_freeze:
                running.group.freeze(frozen=True)
            elif not await self._is_heard(running, "freeze"):
                return "its shim does not listen"
            for _ in range(int(FREEZE_LIMIT_S / FREEZE_POLL_S)):
                if _is_frozen(running):
                    return ""
                await asyncio.sleep(FREEZE_POLL_S)
        except OSError as error:
            return str(error)
        return f"not frozen within {FREEZE_LIMIT_S:g} s"

    async def _is_heard(self, running: RunningJob, word: str) -> bool:
        """By its shim. One that was started a moment ago does not listen yet, nor has its job begun."""
        for _ in range(int(LISTEN_LIMIT_S / CONTROL_POLL_S)):
            if running.folder.control(word):
                running.listens = True
                return True
            if running.gone.is_set() or not exists(running.folder.path):
                return False
            await asyncio.sleep(CONTROL_POLL_S)
        return False

    def _thaw(self, running: RunningJob) -> None:
        running.frozen = False
        if running.freezing is not None and running.freezing is not asyncio.current_task():
            running.freezing.cancel()
        running.freezing = None
        if running.group.can_freeze:
            with contextlib.suppress(OSError):
                running.group.freeze(frozen=False)
        elif not running.folder.control("thaw") and running.listens and not running.folder.has_control:
            log.warning(
                "a job that cannot be told to go on is ended", job=running.key.job, epoch=running.key.epoch
            )
            procs.send(running.shim, signal.SIGTERM)

    def resume(self, order: Resume) -> None:
        running = self.running.get(Key(order.job, order.epoch))
        if running is None:
            return
        now_s = boot_s()
        if running.frozen:
            self._thaw(running)
            step = self._step_of(running.key)
            self._post(JobWentOn(now_s=now_s, job=order.job, epoch=order.epoch, step=step))
        running.gang.order(order)

    def checkpoint(self, order: Checkpoint) -> None:
        running = self.running.get(Key(order.job, order.epoch))
        if running is not None:
            running.gang.order(order)

    def kill(self, order: Kill) -> None:
        running = self.running.get(Key(order.job, order.epoch))
        if running is None:
            return
        log.info("ending", job=order.job, epoch=order.epoch, grace_s=order.grace_s, why=order.why)
        running.killing = True
        if running.freezing is not None:
            running.freezing.cancel()
        if running.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(
                    running.pidfd, signal.SIGCONT
                )  # one that somebody has stopped hears nothing
        word = f"term {order.grace_s:.3f}"  # it thaws the job itself
        if order.leaves:
            self.spawn(self._end_unless_it_leaves(running, word, order.grace_s))
        elif not running.folder.control(word):
            self.spawn(self._tell_again(running, word))

    async def _end_unless_it_leaves(self, running: RunningJob, word: str, within_s: float) -> None:
        """Whoever serves its processes, and ends with them, would be ended before it has cleared up after them: torch's keeper of shared memory, say."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(running.gone.wait(), within_s)
        await self._tell_again(running, word)

    async def _tell_again(self, running: RunningJob, word: str) -> None:
        """A shim that was started a moment ago does not listen yet; one whose folder somebody has taken away, or emptied, never will again."""
        end_s = boot_s() + CUT_OFF_S
        while not running.gone.is_set() and not running.folder.control(word):
            if not exists(running.folder.path) or (boot_s() > end_s and not running.folder.has_control):
                # It ends its job at that, too, as where the host is shut down.
                procs.send(running.shim, signal.SIGTERM)
                return
            await asyncio.sleep(CONTROL_POLL_S)

    async def end_unknown(self, folder: Folder, shim: procs.Identity) -> None:
        """One that nobody remembers: before anything is started where it runs, and under its name."""
        job, epoch = folder.key
        log.warning("a job that nobody remembers is ended", job=job, epoch=epoch)
        for _ in range(int(UNKNOWN_END_S / CONTROL_POLL_S)):
            procs.send(shim, signal.SIGCONT)
            folder.control("term 0")  # it may not listen yet
            if not procs.alive(shim):
                await asyncio.to_thread(self.launcher.forget, folder.key, copies=False)
                return
            await asyncio.sleep(CONTROL_POLL_S)
        log.error("a job that nobody remembers does not end", job=job, epoch=epoch, shim=shim.pid)

    async def end_without_folder(self, key: Key) -> None:
        """One whose folder is gone, so that nothing can be said to its shim any more."""
        log.warning("a job whose folder is gone is ended", job=key.job, epoch=key.epoch)
        shim = await asyncio.to_thread(self.launcher.running_shim, self.launcher.folder(key))
        if shim is not None:
            procs.send(shim, signal.SIGKILL)
        if not await asyncio.to_thread(self.launcher.kill_leftovers, key):
            log.error("a job whose folder is gone does not end", job=key.job, epoch=key.epoch)

    async def end_all(self, grace_s: float) -> None:
        for key, running in list(self.running.items()):
            running.with_agent = running.pidfd >= 0
            self.kill(
                Kill(
                    job=key.job,
                    epoch=key.epoch,
                    grace_s=grace_s,
                    why="the agent stops and takes its jobs along",
                )
            )
        gone = [asyncio.create_task(running.gone.wait()) for running in self.running.values()]
        if gone:
            _, late = await asyncio.wait(gone, timeout=grace_s + 10.0)
            for task in late:
                task.cancel()

    def end_unwatched(self) -> None:
        """All that the agent before left, by one that has not taken them up: the next one finds them lost with their host."""
        for path in self.launcher.jobs.iterdir():
            key = parse_key(path.name)
            shim = self.launcher.running_shim(Folder(path, key)) if key is not None else None
            if shim is not None:
                procs.send(shim, signal.SIGTERM)

    async def close(self) -> None:
        """The jobs go on; only we stop watching."""
        loop = asyncio.get_running_loop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for running in self.running.values():
            if running.pidfd >= 0:
                loop.remove_reader(running.pidfd)
                os.close(running.pidfd)
            await running.sock.close()
            await running.gang.close()
        self.running.clear()

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of a job failed", exc_info=error)


def _is_frozen(running: RunningJob) -> bool:
    if running.group.can_freeze:
        return running.group.frozen()
    state = running.folder.shim_state()
    return state is not None and state.frozen


def found_frozen(running: RunningJob) -> bool:
    """Of a job that was adopted."""
    with contextlib.suppress(OSError):
        return _is_frozen(running)
    return False


LOST_WITH_HOST = f"{LOST}: it was restarted"
