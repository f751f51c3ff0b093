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
import sys
from typing import Any

if __name__ == "__main__":  # by its path, without a way to its neighbours
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from hs_agent.bare.frames import CHUNK, Pipe, TornError
from hs_agent.bare.generation import (
    GENERATION,
    check_room,
    clear_others,
    digest_of,
    expect,
    files_of,
    folder,
    open_regular,
    read_small,
    total,
    write_whole,
)
from hs_agent.bare.kernel import become
from hs_agent.bare.taking import Taker

MAX_WHY = 1000  # characters
_MANIFEST = "manifest.json"  # of jobs with one node, as copies are
_GONE = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR})
_FINAL = {"send": _GONE, "look": _GONE | {errno.EACCES, errno.EPERM}}


# --- sending -----------------------------------------------------------------------------------------------------------


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
        for name, said in files.items():
            fd = open_regular(here, name)
            try:
                send_file(fd, name, said, min(have.get(name, 0), said[0]), pipe)
            finally:
                os.close(fd)
    pipe.say(done=True)


def send_file(fd: int, name: str, said: tuple[int, str], offset: int, pipe: Pipe) -> None:
    """`said`: by the manifest, its size and SHA-256."""
    (size, expected), found = said, os.fstat(fd).st_size
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


# --- looking for one that others wrote ---------------------------------------------------------------------------------


def look(order: dict[str, Any], pipe: Pipe) -> None:
    """The newest generation, from the one that is known on, of which all parts lie here, whole: who wrote them may have written on unheard.

    From now on that one writes nothing here, wherever it still is: what is found would be gone before it is taken up.
    """
    with folder(order["folder"]) as root:
        claim(root, order["epoch"])
        found = [int(each[1]) for name in os.listdir(root) if (each := GENERATION.fullmatch(name))]
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


# --- asking for an average ---------------------------------------------------------------------------------------------


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


# --- weighing ----------------------------------------------------------------------------------------------------------


def weigh(order: dict[str, Any], pipe: Pipe) -> None:
    """How large this node's part of a generation is. It was committed a moment ago: its manifest is believed."""
    with folder(order["folder"]) as root, folder(f"gen-{order['generation']}", root, links=False) as here:
        files, _ = files_of(read_small(here, order["manifest"]), order["generation"])
    pipe.say(done=True, size=total(files))


def take(order: dict[str, Any], pipe: Pipe) -> None:
    Taker(order, pipe).take(order["folder"])


_ORDERS = {"send": send, "take": take, "look": look, "ask": ask, "weigh": weigh}


def short(why: str) -> str:
    """It may quote what the job wrote. The controller is told it in a message that has room for so much, and others' jobs are in that as well."""
    return why if len(why) <= MAX_WHY else f"{why[: MAX_WHY - 1]}…"


def main() -> None:
    for fd in (0, 1):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)
    pipe = Pipe(sys.stdin.buffer, sys.stdout.buffer)
    _, data = pipe.read()
    order = json.loads(data)
    become(order["identity"])
    os.umask(0o077)
    try:
        _ORDERS[order["what"]](order, pipe)
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
