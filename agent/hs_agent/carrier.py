"""A process that reads or writes one generation of a job's checkpoints, as the job's user: the folder is theirs, and so are its traps.

Run as `python -I -S carrier.py`. Orders come as the first frame on standard input, a frame being a kind (J: JSON, D: data), its length
and its bytes. Sending: frames of what is there. Taking: what is there already, then frames of what is missing. Asking for an average, looking
for what others wrote there, weighing: nothing more.
"""
# Descriptors of folders and O_NOFOLLOW are os:
# ruff: noqa: PTH100, PTH103, PTH120, PTH208

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

CHUNK = 256 << 10
MAX_MANIFEST = 1 << 20
MAX_FILES = 4096
MAX_WHY = 1000  # characters
SIGN_EVERY_S = 5.0  # while there is nothing to send yet: the other side does not wait for who is silent
FRAME = struct.Struct(">cI")
_RANK_FILE = re.compile(r"rank(0|[1-9][0-9]{0,5})\.pt")
_GENERATION = re.compile(r"gen-(0|[1-9][0-9]{0,17})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MANIFEST = "manifest.json"  # of jobs with one node, as copies are
_READ = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
)  # a FIFO in a file's place must not hold us
_GONE = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR})
_FINAL = {"send": _GONE, "look": _GONE | {errno.EACCES, errno.EPERM}}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class TornError(Exception):
    """What is there, or what came, is not what it should be."""


# --- frames ---------------------------------------------------------------------------------------------------------


class Pipe:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink

    def read(self) -> tuple[bytes, bytes]:
        """(b"", b""): the other end is done, or gone."""
        head = self._source.read(FRAME.size)
        if len(head) < FRAME.size:
            return b"", b""
        kind, size = FRAME.unpack(head)
        if size > MAX_MANIFEST:
            raise TornError(f"a frame of {size} bytes")
        data = self._source.read(size)
        return (kind, data) if len(data) == size else (b"", b"")

    def data(self, data: bytes) -> None:
        self._sink.write(FRAME.pack(b"D", len(data)))
        self._sink.write(data)

    def say(self, **value: Any) -> None:
        # An error may name a file whose name is no UTF-8; half of a surrogate pair would go over no wire from here on.
        data = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        self._sink.write(FRAME.pack(b"J", len(data)) + data)
        self._sink.flush()


# --- files ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def folder(name: str, at: int | None = None, *, links: bool = True) -> Iterator[int]:
    fd = os.open(name, _FOLDER | (0 if links else os.O_NOFOLLOW), dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(here: int, name: str, flags: int = _READ) -> int:
    fd = os.open(name, flags, 0o600, dir_fd=here)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise TornError(f"{name} is no regular file")
    return fd


def read_small(here: int, name: str) -> bytes:
    fd = open_regular(here, name)
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_MANIFEST + 1)
    if len(data) > MAX_MANIFEST:
        raise TornError(f"{name} is larger than {MAX_MANIFEST} bytes")
    return data


def digest_of(fd: int, size: int, sign: Callable[[], None] = lambda: None) -> Any:
    """SHA-256 of the first `size` bytes, to go on with; a sign now and then that it is at it."""
    digest, at, signed_s = hashlib.sha256(), 0, time.monotonic()
    while at < size and (data := os.pread(fd, min(CHUNK, size - at), at)):
        digest.update(data)
        at += len(data)
        if time.monotonic() - signed_s >= SIGN_EVERY_S:
            signed_s = time.monotonic()
            sign()
    if at < size:
        raise TornError("it is shorter than it should be")
    return digest


def files_of(manifest: bytes, generation: int) -> tuple[dict[str, tuple[int, str]], int]:
    """Size and SHA-256 by name, and the step. Written by the job: nothing in it is believed unseen."""
    try:
        value = json.loads(manifest)
        if value["generation"] != generation:
            raise TornError(f"its manifest is of generation {value['generation']!r}")
        step = value["step"]
        files = {str(each["name"]): (each["size"], each["sha256"]) for each in value["files"]}
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise TornError(f"its manifest makes no sense: {type(error).__name__}: {error}") from None
    if not 0 < len(files) <= MAX_FILES or type(step) is not int or not 0 <= step < 1 << 63:
        raise TornError(f"its manifest names {len(files)} files at step {step!r}")
    for name, (size, digest) in files.items():
        if not _RANK_FILE.fullmatch(name):
            raise TornError(f"its manifest names {name!r}: expected rank<number>.pt")
        if type(size) is not int or not 0 <= size < 1 << 62 or not _DIGEST.fullmatch(str(digest)):
            raise TornError(f"its manifest says of {name} size {size!r} and SHA-256 {digest!r}")
    if total(files) >= 1 << 62:  # more than any message has room for, and any disk
        raise TornError(f"its manifest says that it takes {total(files)} bytes")
    return files, step


def total(files: dict[str, tuple[int, str]]) -> int:
    """Bytes of all of them."""
    return sum(size for size, _ in files.values())


# --- sending --------------------------------------------------------------------------------------------------------


def send(order: dict[str, Any], pipe: Pipe) -> None:
    """The manifest, then each file from where the other side has it; each is checked on the way."""
    have = {str(name): int(size) for name, size in order["have"].items()}
    with folder(order["folder"]) as root, folder(f"gen-{order['generation']}", root, links=False) as here:
        manifest = read_small(here, order["manifest"])
        files, _ = files_of(manifest, order["generation"])
        pipe.say(name=order["manifest"], size=len(manifest), offset=0)
        for at in range(0, len(manifest), CHUNK):
            pipe.data(manifest[at : at + CHUNK])
        pipe.say(sha256=hashlib.sha256(manifest).hexdigest())
        for name, (size, expected) in files.items():
            fd = open_regular(here, name)
            try:
                send_file(fd, name, size, expected, min(have.get(name, 0), size), pipe)
            finally:
                os.close(fd)
    pipe.say(done=True)


def send_file(fd: int, name: str, size: int, expected: str, offset: int, pipe: Pipe) -> None:  # noqa: PLR0917
    found = os.fstat(fd).st_size
    if found != size:
        raise TornError(f"{name} has {found} bytes; expected {size}")
    pipe.say(name=name, size=size, offset=offset)
    digest, at = digest_of(fd, offset, lambda: pipe.say(sign=True)), offset
    while at < size and (data := os.pread(fd, min(CHUNK, size - at), at)):
        digest.update(data)
        at += len(data)
        pipe.data(data)
    if at < size or digest.hexdigest() != expected:
        raise TornError(f"{name} has another SHA-256 than its manifest says")
    pipe.say(sha256=expected)


# --- taking ---------------------------------------------------------------------------------------------------------


class Taker:
    """One generation on its way in: `<file>.part` until it is whole and durable; the manifest comes last."""

    def __init__(self, order: dict[str, Any], pipe: Pipe) -> None:
        self.generation: int = order["generation"]
        self.manifest_name: str = order["manifest"]
        self.theirs: str = order["theirs"]  # at its source, which may be another node's of an elastic job
        self.alone: bool = order["alone"]  # nobody else keeps generations in this folder
        self.pipe = pipe

    def take(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        name = f"gen-{self.generation}"
        with folder(path) as root:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=root)
            with folder(name, root, links=False) as here:
                have, of = self.found(here)
                self.pipe.say(have=have)
                word = self.fill(here, root, have, of)
            if self.alone and "done" in word:
                clear_others(root, self.generation)
        self.pipe.say(**word)

    def found(self, here: int) -> tuple[dict[str, int], str]:
        """What earlier tries got (or is there, on a shared file system), and the digest of the manifest that it belongs to."""
        sizes, names = {}, os.listdir(here)
        for name in names:
            whole = name.removesuffix(".part")
            if _RANK_FILE.fullmatch(whole) and (name != whole or self.manifest_name in names):
                sizes[whole] = os.stat(name, dir_fd=here, follow_symlinks=False).st_size
        if self.manifest_name in names:
            return sizes, ""
        with contextlib.suppress(OSError, TornError):
            return sizes, read_small(here, ".of.part").decode("ascii", "replace")
        return {}, ""

    def fill(self, here: int, root: int, have: dict[str, int], of: str) -> dict[str, Any]:
        """How it went."""
        manifest = self.manifest()
        files, step = files_of(manifest, self.generation)
        own = hashlib.sha256(manifest).hexdigest()
        if self.present(here, manifest, files):
            if self.theirs != self.manifest_name:
                write_whole(here, self.manifest_name, manifest)
            return {"done": True, "step": step, "copied": 0, "size": total(files)}
        if have and of != own:
            self.clear(here)
            return {"again": True}
        check_room(here, total(files) - sum(have.values()))
        if of != own:
            self.clear(here)
            write_whole(here, ".of.part", own.encode())
        copied = sum(self.file(here, name, *files[name]) for name in files)
        self.expect_end()
        for name in files:
            os.replace(f"{name}.part", name, src_dir_fd=here, dst_dir_fd=here)
        write_whole(here, self.manifest_name, manifest)
        os.unlink(".of.part", dir_fd=here)
        os.fsync(here)
        os.fsync(root)
        return {"done": True, "step": step, "copied": copied, "size": total(files)}

    def header(self, name: str) -> dict[str, Any]:
        kind, data = self.pipe.read()
        if kind != b"J":
            raise EOFError
        value: dict[str, Any] = json.loads(data)
        if value.get("name") != name:
            raise TornError(f"{value.get('name')!r} came instead of {name}")
        return value

    def manifest(self) -> bytes:
        size = int(self.header(self.theirs)["size"])
        manifest = b""
        while len(manifest) < size:
            kind, data = self.pipe.read()
            if kind != b"D":
                raise EOFError
            manifest += data
            if len(manifest) > min(size, MAX_MANIFEST):
                raise TornError("a manifest longer than was said")
        self.trailer()
        return manifest

    def trailer(self) -> str:
        kind, data = self.pipe.read()
        if kind != b"J":
            raise EOFError
        return str(json.loads(data).get("sha256", ""))

    def expect_end(self) -> None:
        kind, data = self.pipe.read()
        if kind != b"J" or not json.loads(data).get("done"):
            raise EOFError

    def present(self, here: int, manifest: bytes, files: dict[str, tuple[int, str]]) -> bool:
        """On a shared file system, say, or as another part of what this host has. Sizes are enough here: digests are checked when the job takes it up."""
        try:
            return read_small(here, self.theirs) == manifest and all(
                os.stat(name, dir_fd=here, follow_symlinks=False).st_size == size
                for name, (size, _) in files.items()
            )
        except (OSError, TornError):
            return False

    def clear(self, here: int) -> None:
        for name in os.listdir(here):
            if name.endswith(".part") or name == self.manifest_name:
                os.unlink(name, dir_fd=here)

    def file(self, here: int, name: str, size: int, expected: str) -> int:
        """How many bytes came."""
        offset = int(self.header(name)["offset"])
        part = f"{name}.part"
        fd = open_regular(here, part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not 0 <= offset <= min(size, os.fstat(fd).st_size):
                raise TornError(f"{name} comes from byte {offset}, which was not asked for")
            os.ftruncate(fd, offset)
            digest, at = digest_of(fd, offset), offset
            while at < size:
                kind, data = self.pipe.read()
                if kind != b"D":
                    raise EOFError
                if at + len(data) > size:
                    raise TornError(f"{name} is longer than {size} bytes")
                digest.update(data)
                while data:
                    written = os.pwrite(fd, data, at)
                    data, at = data[written:], at + written
            if self.trailer() != expected or digest.hexdigest() != expected:
                os.ftruncate(fd, 0)
                raise TornError(f"{name} arrived with another SHA-256 than its manifest says")
            os.fsync(fd)
        finally:
            os.close(fd)
        return size - offset


def check_room(here: int, needed: int) -> None:
    room = os.fstatvfs(here)
    if needed > room.f_bavail * room.f_frsize:
        free = room.f_bavail * room.f_frsize
        raise OSError(errno.ENOSPC, f"it takes {needed} bytes; {free} are free here")


def write_whole(here: int, name: str, data: bytes) -> None:
    temporary = f"{name}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=here)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=here), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, name, src_dir_fd=here, dst_dir_fd=here)
    os.fsync(here)


def clear_others(root: int, generation: int) -> None:
    """Generations of an earlier stay, which the job has left behind elsewhere: nobody may fall back to them."""
    for other in os.listdir(root):
        if _GENERATION.fullmatch(other) and other != f"gen-{generation}":
            with contextlib.suppress(OSError), folder(other, root, links=False) as here:
                for name in os.listdir(here):
                    os.unlink(name, dir_fd=here)
                os.rmdir(other, dir_fd=root)


# --- looking for one that others wrote ---------------------------------------------------------------------------------


def look(order: dict[str, Any], pipe: Pipe) -> None:
    """The newest generation, from the one that is known on, of which all parts lie here, whole: who wrote them may have written on unheard.

    From now on that one writes nothing here, wherever it still is: what is found would be gone before it is taken up.
    """
    with folder(order["folder"]) as root:
        claim(root, order["epoch"])
        found = [int(each[1]) for name in os.listdir(root) if (each := _GENERATION.fullmatch(name))]
        why = f"no generation from {order['generation']} on"
        for generation in sorted((n for n in found if n >= order["generation"]), reverse=True):
            try:
                step, size = whole(root, generation, order)
            except TornError as error:
                why = f"gen-{generation}: {error}"
                continue
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                why = f"gen-{generation}: {error.strerror}: {error.filename}"
                continue
            pipe.say(done=True, generation=generation, step=step, size=size)
            return
    raise TornError(why)


def claim(root: int, epoch: int) -> None:
    """For this incarnation and those after it, as its processes do (hs_job.checkpoint)."""
    try:
        claimed = json.loads(read_small(root, "epoch.json"))["epoch"]
    except (OSError, TornError, ValueError, RecursionError, KeyError, TypeError):
        claimed = 0
    if type(claimed) is not int or claimed < epoch:
        with contextlib.suppress(OSError):  # nothing can be written here, by nobody perhaps
            write_whole(root, "epoch.json", json.dumps({"epoch": epoch}).encode())


def whole(root: int, generation: int, order: dict[str, Any]) -> tuple[int, int]:
    """Its step, and bytes of what this node takes up of it. Sizes are enough: digests are checked when the job takes it up."""
    with folder(f"gen-{generation}", root, links=False) as here:
        manifests = {name: read_small(here, name) for name in order["manifests"]}
        parts = [files_of(manifest, generation) for manifest in manifests.values()]
        steps = {step for _, step in parts}
        if len(steps) > 1 or min(steps) < order["step"]:
            raise TornError(f"it is of steps {sorted(steps)}; expected {order['step']} or more")
        for files, _ in parts:
            expect(here, files)
        if order["manifest"] not in manifests:  # ranks are alike: it goes on from what another node's wrote
            write_whole(here, order["manifest"], manifests[order["theirs"]])
    files, _ = files_of(manifests[order["theirs"]], generation)
    return min(steps), total(files)


def expect(here: int, files: dict[str, tuple[int, str]]) -> None:
    """They are there, of the sizes that their manifest says. Raises TornError, OSError."""
    for name, (size, _) in files.items():
        fd = open_regular(here, name)
        try:
            there = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if there != size:
            raise TornError(f"{name} has {there} bytes; expected {size}")


# --- asking for an average ------------------------------------------------------------------------------------------


def ask(order: dict[str, Any], pipe: Pipe) -> None:
    """Leaves word for the job's process of what this generation is the average of (hs_job.average), once all of that is here: the process could only fail."""
    os.makedirs(order["folder"], mode=0o700, exist_ok=True)
    name = f"gen-{order['generation']}"
    with folder(order["folder"]) as root:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=root)
        with folder(name, root, links=False) as here:
            made = _MANIFEST in os.listdir(here)  # and its parts are nobody's any more
            size = 0 if made else max(map(size_of, order["average"]["parts"]), default=0)
            write_whole(here, "average.json", json.dumps(order["average"]).encode())
        os.fsync(root)
        if order["alone"]:
            clear_others(root, order["generation"])
        with folder(name, root, links=False) as here:
            check_room(here, size)
    pipe.say(done=True, size=size)


def size_of(part: dict[str, Any]) -> int:
    """Bytes of one that is to be averaged, which is what the average takes. Raises TornError where it is not there, or not whole; OSError."""
    generation: int = part["generation"]
    name = f"gen-{generation}"
    try:
        with folder(part["folder"]) as root, folder(name, root, links=False) as there:
            files, _ = files_of(read_small(there, _MANIFEST), generation)
            expect(there, files)
    except TornError as error:
        raise TornError(f"{part['folder']}/{name}: {error}") from None
    except OSError as error:
        if error.errno not in _GONE:
            raise
        raise TornError(f"{part['folder']}/{name}: {error.strerror}: {error.filename}") from None
    return total(files)


# --- weighing ---------------------------------------------------------------------------------------------------------


def weigh(order: dict[str, Any], pipe: Pipe) -> None:
    """How large this node's part of a generation is. It was committed a moment ago: its manifest is believed."""
    with folder(order["folder"]) as root, folder(f"gen-{order['generation']}", root, links=False) as here:
        files, _ = files_of(read_small(here, order["manifest"]), order["generation"])
    pipe.say(done=True, size=total(files))


def short(why: str) -> str:
    """It may quote what the job wrote. The controller is told it in a message that has room for so much, and others' jobs are in that as well."""
    return why if len(why) <= MAX_WHY else f"{why[: MAX_WHY - 1]}…"


def main() -> None:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from hs_agent.bare.kernel import become

    for fd in (0, 1):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)
    pipe = Pipe(sys.stdin.buffer, sys.stdout.buffer)
    _, data = pipe.read()
    order = json.loads(data)
    become(order["identity"])
    os.umask(0o077)
    try:
        if order["what"] == "send":
            send(order, pipe)
        elif order["what"] == "ask":
            ask(order, pipe)
        elif order["what"] == "look":
            look(order, pipe)
        elif order["what"] == "weigh":
            weigh(order, pipe)
        else:
            Taker(order, pipe).take(order["folder"])
    except EOFError:
        pipe.say(error="cut off", torn=False)
    except (TornError, OSError) as error:
        if isinstance(error, TornError):
            pipe.say(error=short(str(error)), torn=True)
            return
        # What is missing, or is a link, or is not to be seen, will be so the next time as well.
        torn = error.errno in _FINAL.get(order["what"], ())
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        pipe.say(error=short(what), torn=torn, errno=error.errno)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
