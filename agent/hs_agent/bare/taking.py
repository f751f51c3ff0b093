"""A generation of a job's checkpoints on its way in."""
# Descriptors of folders and O_NOFOLLOW are os:
# ruff: noqa: PTH103

import contextlib
import hashlib
import json
import os
from typing import Any

from hs_agent.bare.frames import Pipe, TornError
from hs_agent.bare.generation import (
    MAX_MANIFEST,
    RANK_FILE,
    check_room,
    clear_others,
    digest_of,
    files_of,
    folder,
    open_regular,
    read_small,
    total,
    write_whole,
)


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
            if RANK_FILE.fullmatch(whole) and (name != whole or self.manifest_name in names):
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
