"""Between fork and exec: the child turns into the job."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH103, PTH118, PTH123, PTH208

import array
import contextlib
import errno
import os
import signal
import socket
import stat
import warnings  # noqa: F401 — as `os.execvpe` does, and by then an account may not be able to read where it is
from typing import Any

from hs_agent.bare.files import write_file
from hs_agent.bare.kernel import PR_SET_PDEATHSIG, become, prctl

MAX_WORD = 64 << 10
MAX_FIRST_LINE = 256  # of a script: the kernel looks no further


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


def why_not_run(program: str, path: str, error: OSError) -> str:
    """The kernel says "no such file" also of a program that is there, where what is to load it is not."""
    places = (
        [program] if "/" in program else [os.path.join(folder, program) for folder in path.split(os.pathsep)]
    )
    if error.errno == errno.ENOENT:
        for place in places:
            with contextlib.suppress(OSError), open(place, "rb") as file:
                first = file.readline(MAX_FIRST_LINE)
                if not first.startswith(b"#!"):
                    return f"{place} is there, but the loader that it was linked for is not"
                interpreter = first[2:].strip(b" \t\n").split(b" ")[0].decode(errors="replace")
                return (
                    f"{place} is there, but the interpreter that its first line names is not: {interpreter!r}"
                )
    if error.errno == errno.ENOEXEC:
        return f"{error.strerror}: neither a program of this machine's kind nor a script that begins with #!"
    return error.strerror or str(error)


class LaunchError(Exception):
    """What could not be done before the job's first instruction."""


def prepare(launch: dict[str, Any], channel: socket.socket, parent: int) -> None:
    os.setsid()
    for path in launch["cgroup"]["procs"]:
        try:
            write_file(path, "0")
        except OSError as error:
            raise LaunchError(f"cannot enter control group {path}: {error.strerror}") from None
    try:
        become(launch["identity"])
    except OSError as error:
        raise LaunchError(f"cannot become {launch['identity']}: {error.strerror}") from None
    # A job whose shim was killed cannot be supervised any more. Only now: with its user a process loses that signal.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
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


def fork() -> int:
    """0: the child, which is to `execute` something. Until that has its own way with signals SIGTERM waits there: a handler of the parent's would take it, and the job miss it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def execute(
    launch: dict[str, Any], channel: socket.socket, pipe: int, parent: int, *, errors: int | None = None
) -> None:
    """Never returns. What it writes goes to `pipe`; its standard error to `errors`, where that is another."""
    try:
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        prepare(launch, channel, parent)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(pipe, 1)
        os.dup2(pipe if errors is None else errors, 2)
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
            path = launch["env"].get("PATH", os.defpath)
            where = "" if "/" in program else f" on PATH={path}"
            why = why_not_run(program, path, error)
            raise LaunchError(f"cannot run {program}{where} as uid {os.getuid()}: {why}") from None
    except LaunchError as error:
        channel.send(f"error {error}".encode()[: MAX_WORD - 1])
    except BaseException as error:
        channel.send(f"error {type(error).__name__}: {error}".encode()[: MAX_WORD - 1])
    finally:
        os._exit(127)
