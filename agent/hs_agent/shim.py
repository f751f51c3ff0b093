"""One per job: starts it as its user, copies its output into a capped log, holds its exit status, leaves nothing behind.

Run as `python -I -S shim.py <folder>` (docs/job-folder.md). Standard library only and on its own: it outlives the agent,
and may be an older one than the agent that adopts it.
"""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH103, PTH104, PTH108, PTH110, PTH116, PTH118, PTH123, PTH208

import array
import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterable
from typing import Any

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = (
    1,
    24,
    36,
    38,
    47,
)
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522

CHUNK = 64 << 10
# A job that floods its output is slowed by its full pipe, so that copying it cannot eat the host's processors.
FLOOD_BYTES, FLOOD_WINDOW_S = 4 << 20, 0.1
PURGE_EVERY_S = 0.02
MAX_LINE = 4096

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if (
        libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
        != 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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


# --- other processes ------------------------------------------------------------------------------------------------


def read_stat(pid: int) -> tuple[int, str, int] | None:
    """(parent, state, start time)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), fields[0], int(fields[19])


def descendants() -> list[tuple[int, str, int]]:
    """(pid, state, start time) of all that came from here; as the subreaper nobody can leave this tree."""
    children: dict[int, list[tuple[int, str, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = read_stat(int(name))
            if found is not None:
                children.setdefault(found[0], []).append((int(name), found[1], found[2]))
    tree: list[tuple[int, str, int]] = []
    todo = [os.getpid()]
    while todo:
        below = children.pop(todo.pop(), [])
        tree += below
        todo += [child[0] for child in below]
    return tree


def send(pid: int, start: int, number: int) -> None:
    """Signal this very process or nobody: the pid of a grandchild may have changed hands since it was listed."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        found = read_stat(pid)
        if found is not None and found[2] == start:
            signal.pidfd_send_signal(pidfd, number)
    except OSError:
        pass
    finally:
        os.close(pidfd)


def signal_all(number: int, skip: str = "Z") -> int:
    """How many were signalled; those in a state named by `skip` are left alone."""
    count = 0
    for pid, state, start in descendants():
        if state not in skip:
            send(pid, start, number)
            count += 1
    return count


# --- the child, between fork and exec -------------------------------------------------------------------------------


def empty_capabilities() -> None:
    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    class Data(ctypes.Structure):
        _fields_ = (
            ("effective", ctypes.c_uint32),
            ("permitted", ctypes.c_uint32),
            ("inheritable", ctypes.c_uint32),
        )

    header, data = Header(CAPABILITY_VERSION_3, 0), (Data * 2)()
    if libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def drop_bounding_set() -> None:
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:  # past the last one this kernel knows
                return
            raise


def become(identity: dict[str, Any] | None) -> None:
    """Turn into the user for good. Without an identity (the agent is not root) it is that user already."""
    if identity is not None:
        uid, gid = int(identity["uid"]), int(identity["gid"])
        os.setgroups([int(group) for group in identity["groups"]])
        os.setresgid(gid, gid, gid)
        # A job of root (allow_root, one's own machine) keeps root's rights: it would get them back at exec anyhow,
        # and without them root could not read its users' files. It gains nothing it did not have.
        if uid != 0:
            drop_bounding_set()
        with contextlib.suppress(OSError):  # kernels before 4.3 have no ambient set
            if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "ambient capabilities")
        os.setresuid(uid, uid, uid)
        if uid != 0:
            empty_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def open_output(path: str) -> int:
    """As the user, whose own rights decide; never through a link in the last step, and a plain file only."""
    flags = (
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    )
    fd = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file")
    return fd


class LaunchError(Exception):
    """What could not be done before the job's first instruction."""


def prepare(launch: dict[str, Any], channel: socket.socket, parent: int) -> None:
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a job whose shim was killed cannot be supervised any more
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    for path in launch["cgroup"]["procs"]:
        try:
            write_file(path, "0")
        except OSError as error:
            raise LaunchError(f"cannot enter control group {path}: {error.strerror}") from None
    if launch["identity"] is not None:
        with contextlib.suppress(OSError):
            write_file("/proc/self/oom_score_adj", "0")
    try:
        become(launch["identity"])
    except OSError as error:
        raise LaunchError(f"cannot become {launch['identity']}: {error.strerror}") from None
    os.umask(0o022)
    who = f"as uid {os.getuid()}"
    for folder in launch["make_dirs"]:
        with contextlib.suppress(OSError):  # the job finds out by itself, if it ever needs it
            os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        os.chdir(launch["workdir"])
    except OSError as error:
        raise LaunchError(
            f"cannot enter the working folder {launch['workdir']} {who}: {error.strerror}"
        ) from None
    if launch["output"]:
        try:
            fd = open_output(launch["output"])
        except OSError as error:
            reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise LaunchError(f"cannot write the output file {launch['output']} {who}: {reason}") from None
        channel.sendmsg([b"output"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        os.close(fd)


def execute(launch: dict[str, Any], channel: socket.socket, pipe: int, parent: int) -> None:
    """Never returns."""
    try:
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        prepare(launch, channel, parent)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(pipe, 1)
        os.dup2(pipe, 2)
        # Python opens everything close-on-exec; this is for what it was started with.
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(fd, False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        program = launch["argv"][0]
        try:
            os.execvpe(program, launch["argv"], launch["env"])  # noqa: S606 — argv as it is: no shell
        except OSError as error:
            where = "" if "/" in program else f" on PATH={launch['env'].get('PATH', os.defpath)}"
            raise LaunchError(f"cannot run {program}{where} as uid {os.getuid()}: {error.strerror}") from None
    except LaunchError as error:
        channel.send(f"error {error}".encode()[: CHUNK - 1])
    except BaseException as error:
        channel.send(f"error {type(error).__name__}: {error}".encode()[: CHUNK - 1])
    finally:
        os._exit(127)


# --- the log --------------------------------------------------------------------------------------------------------


class Log:
    """Two halves of the limit: `log` grows to a half and becomes `log.1`; what that pushed out is counted."""

    def __init__(self, folder: str, limit: int) -> None:
        self.path, self.older = os.path.join(folder, "log"), os.path.join(folder, "log.1")
        self.half = max(limit // 2, 4096)
        self.dropped = 0
        self.fd = -1
        self.size = 0
        self.open()

    def open(self) -> None:
        self.fd = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self.size = os.fstat(self.fd).st_size

    def turn(self) -> None:
        with contextlib.suppress(OSError):
            self.dropped += os.stat(self.older).st_size
        os.rename(self.path, self.older)
        os.close(self.fd)
        self.open()
        if self.dropped:
            self.append(f"[heteroshare: {self.dropped} bytes of earlier output were dropped]\n".encode())

    def append(self, data: bytes) -> None:
        """A full disk loses output, never the job."""
        try:
            written = os.write(self.fd, data)
        except OSError:
            written = 0
        self.size += written
        self.dropped += len(data) - written

    def write(self, data: bytes) -> None:
        while data:
            if self.size >= self.half:
                try:
                    self.turn()
                except OSError:
                    self.dropped += len(data)
                    return
            room = max(self.half - self.size, 1)
            self.append(data[:room])
            data = data[room:]


# --- the shim -------------------------------------------------------------------------------------------------------


class Shim:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, "launch.json"), encoding="utf-8") as file:
            self.launch: dict[str, Any] = json.load(file)
        self.log = Log(folder, self.launch["log_limit"])
        self.poll = select.poll()
        self.job = 0
        self.job_start = 0
        self.status: int | None = None  # of the job's main process
        self.childless = False
        self.purging = False
        self.frozen = False
        self.deadline_s: float | None = None
        self.launch_error = ""
        self.output = -1  # the user's own file
        self.pipe = -1
        self.channel: socket.socket | None = None
        self.control = -1
        self.commands = b""
        self.window_s, self.window_bytes = 0.0, 0
        self.paused = False

    # what the agent reads

    def tell(self) -> None:
        def who(pid: int, start: int) -> dict[str, int]:
            return {"pid": pid, "start": start}

        own = read_stat(os.getpid())
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read().strip()
        replace_json(self.folder, "shim.json", {
            "shim": who(os.getpid(), own[2] if own else 0),
            "job": who(self.job, self.job_start) if self.job else None,
            "boot_id": boot_id,
            "frozen": self.frozen,
            "start": self.launch["start"],
        })  # fmt: skip

    def finish(self, why: str = "") -> None:
        code = signal_number = 0
        if self.status is not None and not why:
            if os.WIFSIGNALED(self.status):
                signal_number = os.WTERMSIG(self.status)
            else:
                code = os.WEXITSTATUS(self.status)
        replace_json(self.folder, "exit.json", {
            "code": code, "signal": signal_number, "why": why, "launch_failed": bool(self.launch_error),
            "start": self.launch["start"], "ended_at": time.time(), "dropped": self.log.dropped,
        })  # fmt: skip

    # life

    def begin(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if self.launch["identity"] is not None:
            with contextlib.suppress(
                OSError
            ):  # when memory runs out the job goes first, and its shim says so
                write_file("/proc/self/oom_score_adj", "-900")
        self.control = self.open_control()
        wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end(10.0))  # the host goes down
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.wake = wake
        self.fork()
        for fd in (self.wake, self.control, self.pipe):
            self.poll.register(fd, select.POLLIN)
        assert self.channel is not None
        self.poll.register(self.channel.fileno(), select.POLLIN)
        self.tell()

    def open_control(self) -> int:
        path = os.path.join(self.folder, "control")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # Held open for writing too: it never ends when an agent goes away.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    def fork(self) -> None:
        self.pipe, pipe_end = os.pipe2(os.O_CLOEXEC)
        self.channel, channel_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.job = os.fork()
        if self.job == 0:
            execute(self.launch, channel_end, pipe_end, parent)
        os.set_blocking(self.pipe, False)
        self.channel.setblocking(False)
        channel_end.close()
        os.close(pipe_end)
        found = read_stat(self.job)
        self.job_start = found[2] if found else 0

    def run(self) -> None:
        self.begin()
        while not (self.childless and self.status is not None):
            ready = {fd for fd, _ in self.poll.poll(self.wait_ms())}
            self.serve(ready)
            self.reap()
            now_s = time.monotonic()
            if self.paused and now_s - self.window_s >= FLOOD_WINDOW_S:
                self.resume_reading()
            if self.status is not None or (self.deadline_s is not None and now_s >= self.deadline_s):
                self.purge()
        self.hear()
        self.drain()
        self.finish(self.launch_error)

    def serve(self, ready: Iterable[int]) -> None:
        for fd in ready:
            if fd == self.wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 4096)
            elif fd == self.control:
                self.obey()
            elif fd == self.pipe:
                self.copy()
            else:
                self.hear()

    def wait_ms(self) -> int | None:
        if self.status is not None and not self.childless:
            return int(PURGE_EVERY_S * 1000)
        waits = []
        if self.paused:
            waits.append(self.window_s + FLOOD_WINDOW_S)
        if self.deadline_s is not None:
            waits.append(self.deadline_s + (PURGE_EVERY_S if self.purging else 0.0))
        if not waits:
            return None
        return max(int((min(waits) - time.monotonic()) * 1000) + 1, 20 if self.purging else 0)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid == self.job:
                self.status = status

    # its output

    def copy(self) -> None:
        now_s = time.monotonic()
        if now_s - self.window_s >= FLOOD_WINDOW_S:
            self.window_s, self.window_bytes = now_s, 0
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return
        if not data:  # every writer closed it; the job may live on
            self.poll.unregister(self.pipe)
            return
        self.keep(data)
        self.window_bytes += len(data)
        if self.window_bytes >= FLOOD_BYTES:
            self.poll.unregister(self.pipe)
            self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.poll.register(self.pipe, select.POLLIN)

    def keep(self, data: bytes) -> None:
        self.log.write(data)
        if self.output >= 0:
            try:
                while data:
                    data = data[os.write(self.output, data) :]
            except OSError as error:
                self.log.write(
                    f"[heteroshare: output file: {error.strerror}; the rest is only here]\n".encode()
                )
                os.close(self.output)
                self.output = -1

    def drain(self) -> None:
        """What is still in the pipe; bounded, for a stranger may have been handed its other end."""
        for _ in range(64):
            try:
                data = os.read(self.pipe, CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self.keep(data)

    def hear(self) -> None:
        """From the child before it becomes the job."""
        while self.channel is not None:
            try:
                data, ancillary, _, _ = self.channel.recvmsg(CHUNK, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self.output = array.array("i", payload[:4])[0]
                    os.set_inheritable(self.output, False)
            if data.startswith(b"error "):
                self.launch_error = data[6:].decode(errors="replace")
            elif not data:
                self.poll.unregister(self.channel.fileno())
                self.channel.close()
                self.channel = None

    # orders

    def obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.commands += os.read(self.control, MAX_LINE)
        *lines, self.commands = self.commands.split(b"\n")
        self.commands = self.commands[-MAX_LINE:]
        for line in lines:
            words = line.decode(errors="replace").split()
            if words[:1] == ["term"]:
                try:
                    grace_s = float(words[1])
                except (IndexError, ValueError):
                    grace_s = 0.0
                self.end(grace_s)
            elif words == ["freeze"]:
                self.freeze()
            elif words == ["thaw"]:
                self.thaw()

    def end(self, grace_s: float) -> None:
        signal_all(signal.SIGTERM)
        self.thaw_cgroup()
        signal_all(signal.SIGCONT)
        deadline_s = time.monotonic() + grace_s
        self.deadline_s = deadline_s if self.deadline_s is None else min(self.deadline_s, deadline_s)

    def freeze(self) -> None:
        for _ in range(100):  # whoever forks while we list comes up in the next round
            if signal_all(signal.SIGSTOP, skip="ZTt") == 0:
                break
            time.sleep(0.002)
        self.frozen = True
        self.tell()

    def thaw(self) -> None:
        signal_all(signal.SIGCONT)
        self.frozen = False
        self.tell()

    def thaw_cgroup(self) -> None:
        for path, word in (
            (self.launch["cgroup"]["freeze"], "0"),
            (self.launch["cgroup"]["freezer"], "THAWED"),
        ):
            if path:
                with contextlib.suppress(OSError):
                    write_file(path, word)

    def purge(self) -> None:
        """Everything at once, however it hid; called until waitpid says that nobody is left."""
        self.purging = True
        if self.childless:
            return
        if self.launch["cgroup"]["kill"]:
            with contextlib.suppress(OSError):
                write_file(self.launch["cgroup"]["kill"], "1")
        else:
            signal_all(signal.SIGSTOP, skip="ZTt")  # nobody forks away between being listed and being killed
        signal_all(signal.SIGKILL)
        self.thaw_cgroup()  # a frozen process (v1) dies when it thaws


def main(folder: str) -> None:
    if os.path.exists(os.path.join(folder, "exit.json")):
        return
    os.chdir("/")
    shim = Shim(folder)
    try:
        shim.run()
    except BaseException as error:
        with contextlib.suppress(BaseException):
            while not shim.childless:
                shim.purge()
                shim.reap()
                time.sleep(PURGE_EVERY_S)
        shim.finish(f"its shim failed: {type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(sys.argv[1])
