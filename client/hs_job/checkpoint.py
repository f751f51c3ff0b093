"""Checkpoints on disk: written whole or not at all, verified before they are believed, never through a link.

A generation is a folder with a file per rank, beside each a note of its size and digest, and a manifest that the node's first rank
writes from these notes, last: without a valid manifest there is no checkpoint. Each node of a job has its own ranks' files only, and a
manifest of its own, under a name of its own since nodes may share a folder; the nodes agree on a generation before they take it up.
"""
# Descriptors of folders are os:
# ruff: noqa: PTH103, PTH118, PTH208

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from hs_job.files import (
    Sink,
    TornError,
    exists,
    new_file,
    open_verified,
    opened,
    read_json,
    read_small,
    write_json,
)
from hs_job.pack import load

KEPT = 2
_POLL_S = 0.005
_RANK = re.compile(r"rank(0|[1-9][0-9]{0,5})\.pt")
_CLAIM = "epoch.json"
_NAME = re.compile(r"gen-(0|[1-9][0-9]{0,17})")


class CheckpointError(Exception):
    """Not written; the job goes on without it."""


class Node:
    """Which ranks run on this host: consecutive ones, as torchrun numbers them."""

    def __init__(self, first: int = 0, count: int = 1, number: int = 0, nodes: int = 1) -> None:
        self.first = first
        self.count = count
        self.number = number
        self.nodes = nodes

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def manifest(self) -> str:
        return "manifest.json" if self.nodes <= 1 else f"manifest-{self.number}.json"


class Folder:
    """HS_CHECKPOINT_DIR, as one rank sees it."""

    def __init__(
        self,
        path: str,
        rank: int,
        world: int,
        node: Optional[Node] = None,
        *,
        elastic: bool = False,
        epoch: int = 0,
    ) -> None:
        """`elastic`: what other numbers of ranks wrote is taken up too. `epoch`: of the job's incarnation."""
        self.path = path
        self.rank = rank
        self.world = world
        self._node = node
        self._elastic = elastic
        self._epoch = epoch

    @property
    def node(self) -> Node:
        """All ranks run here, unless it was said otherwise."""
        return self._node if self._node is not None else Node(0, self.world)

    def at(self, path: str) -> Folder:
        """Where a copy of the job wrote, for the same rank; copies have one node."""
        return Folder(path, self.rank, self.world, elastic=self._elastic)

    @property
    def leads(self) -> bool:
        """This rank writes the manifest."""
        return self.rank == self.node.first

    # --- whose it is -----------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """From now on incarnations before this one write nothing here. One on a server that was given up, and that sees this folder, may not know that it was."""
        if not self.leads or self._epoch <= self._claimed():
            return
        with contextlib.suppress(OSError):  # nothing can be written here: that is said when it is tried
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with opened(self.path) as root:
                write_json(root, _CLAIM, {"epoch": self._epoch})

    def _claimed(self) -> int:
        """The newest incarnation that has."""
        try:
            epoch = (read_small(self.path, _CLAIM, links=True) or {}).get("epoch")
        except (OSError, TornError):
            return 0
        return epoch if type(epoch) is int else 0

    def is_of_another(self, command: str) -> bool:
        """Whether another one than this has handed over in this incarnation before, which the newest checkpoint is of then. Else from now on it is this one's."""
        name = f"handed-{self.rank}.json"
        with contextlib.suppress(
            OSError, TornError
        ):  # nothing can be written here: that is said when it is tried
            found = read_small(self.path, name, links=True) or {}
            if found.get("epoch") == self._epoch:
                return found.get("command") != command
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with opened(self.path) as root:
                write_json(root, name, {"epoch": self._epoch, "command": command})
        return False

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(
        self,
        generation: int,
        step: int,
        content: Any,
        *,
        abandoned: Callable[[], bool] = lambda: False,
        wait_for_manifest: bool = True,
        whole: int = -1,
    ) -> str:
        """This rank's part; the node's first one ends it with the manifest, and its others wait for that. Gives this rank's digest.

        `whole`: of several nodes, the newest generation that all of them are known to have. Raises CheckpointError.
        """
        if self._claimed() > self._epoch:
            raise CheckpointError("the job has begun anew on another server, which writes here now")
        try:
            digest = self._write(generation, step, content, abandoned, wait_for_manifest)
            if self.leads:
                self._prune(generation, whole)
            return digest
        except CheckpointError as error:
            why = str(error)
        except OSError as error:
            why = f"{error.strerror or error} ({self.path})"
        except Exception as error:  # what could not be packed or pickled, no memory for a copy
            why = f"{type(error).__name__}: {error}"
        self.clear(generation)
        raise CheckpointError(why)

    def _write(
        self, generation: int, step: int, content: Any, abandoned: Callable[[], bool], wait_for_manifest: bool
    ) -> str:
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        name = f"gen-{generation}"
        with opened(self.path) as root:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=root)
            with opened(name, root, links=False) as here:
                size, digest = _write_tensors(here, f"rank{self.rank}.pt", content)
                note = {"step": step, "size": size, "sha256": digest}
                write_json(here, f"rank{self.rank}.json", note)
                os.fsync(root)
                manifest = self.node.manifest
                if self.leads:
                    notes = self._gather(here, step, abandoned)
                    write_json(here, manifest, self._manifest(generation, step, notes))
                    os.fsync(root)
                elif wait_for_manifest:
                    _await(lambda: exists(here, manifest), abandoned)
        return digest

    def _gather(self, here: int, step: int, abandoned: Callable[[], bool]) -> List[Dict[str, Any]]:
        notes = []
        for rank in self.node.ranks:
            name = f"rank{rank}.json"
            _await(lambda name=name: exists(here, name), abandoned)  # type: ignore[misc]
            note = read_json(here, name)
            if note.get("step") != step:
                raise CheckpointError(
                    f"rank {rank} stands at step {note.get('step')}, rank {self.rank} at {step}"
                )
            notes.append(note)
        return notes

    def _manifest(self, generation: int, step: int, notes: List[Dict[str, Any]]) -> Dict[str, Any]:
        files = [
            {"name": f"rank{rank}.pt", "size": note["size"], "sha256": note["sha256"]}
            for rank, note in enumerate(notes, self.node.first)
        ]
        return {"generation": generation, "step": step, "world": self.world, "files": files}

    def clear(self, generation: int) -> None:
        """Takes this rank's part of a failed attempt away; whoever is last takes the folder."""
        mine = f"rank{self.rank}."
        with contextlib.suppress(OSError), opened(self.path) as root:
            with opened(f"gen-{generation}", root, links=False) as here:
                for name in os.listdir(here):
                    if name.startswith(mine) or (self.leads and name.startswith(self.node.manifest)):
                        os.unlink(name, dir_fd=here)
            os.rmdir(f"gen-{generation}", dir_fd=root)

    def _prune(self, newest: int, whole: int) -> None:
        """The two newest stay; of several nodes all from `whole` on, as what this one has since the others may not have."""
        kept = 0
        for generation in self.generations():
            path = os.path.join(self.path, f"gen-{generation}")
            if generation > newest:
                continue
            stays = generation >= whole if self.node.nodes > 1 else kept < KEPT
            if stays and os.path.lexists(os.path.join(path, self.node.manifest)):
                kept += 1
            else:
                shutil.rmtree(path, ignore_errors=True)  # never follows links

    # --- reading ---------------------------------------------------------------------------------------------------

    def generations(self) -> List[int]:
        """Newest first, valid or not."""
        try:
            names = os.listdir(self.path)
        except OSError:
            return []
        matches = (_NAME.fullmatch(name) for name in names)
        return sorted((int(match.group(1)) for match in matches if match), reverse=True)

    def newest(self) -> int:
        return max(self.generations(), default=-1)

    def read(
        self, asked: int, agree: Callable[[int], Tuple[int, bool]] = lambda generation: (generation, True)
    ) -> Tuple[Optional[Dict[str, Any]], int, str]:
        """This rank's content of the asked generation, else of the newest valid one before; and a note on those that were not.

        Each rank verifies the files of all on its node, so that these come to the same answer; `agree` gives the lowest of what
        all ranks say, and whether they all say that.
        """
        notes: List[str] = []
        while True:
            content, generation = self._newest_valid(asked, notes)
            asked, unanimous = agree(generation)
            if unanimous:
                break
            if asked < generation:
                notes.append(f"generation {generation}: another node does not have it whole")
        if content is None:
            notes.append("no valid checkpoint: started afresh")
        return content, generation, "; ".join(dict.fromkeys(notes))

    def _newest_valid(self, asked: int, notes: List[str]) -> Tuple[Optional[Dict[str, Any]], int]:
        candidates = [asked, *(each for each in self.generations() if each < asked)] if asked >= 0 else []
        for generation in candidates:
            try:
                return self.content(generation), generation
            except (TornError, OSError) as error:
                notes.append(f"generation {generation}: {error}")
        return None, -1

    def content(self, generation: int) -> Dict[str, Any]:
        """This rank's, of that generation and no other. Raises TornError, OSError."""
        with opened(self.path) as root, opened(f"gen-{generation}", root, links=False) as here:
            manifest = read_json(here, self.node.manifest)
            world, ranks = self.world, self.node.ranks
            if self._elastic:
                world, ranks = _written_by(manifest)
            files = _checked(manifest, generation, world, ranks)
            # Who is new begins as one of those that were there: ranks that train alike hold the same.
            at = ranks.index(self.rank) if self.rank in ranks else self.rank % len(ranks)
            fds: List[int] = []
            try:
                for each in files:
                    fds.append(open_verified(here, each))  # noqa: PERF401 - what is open is closed whatever follows
                content = _load(fds[at])
            finally:
                for fd in fds:
                    os.close(fd)
        if not isinstance(content, dict) or content.get("format") != 1:
            raise TornError(f"rank{self.rank}.pt is not of format 1")
        return content


def _await(condition: Callable[[], bool], abandoned: Callable[[], bool]) -> None:
    while not condition():
        if abandoned():
            raise CheckpointError("another rank could not write its part")
        time.sleep(_POLL_S)


def _write_tensors(here: int, name: str, content: Any) -> Tuple[int, str]:
    torch = sys.modules.get("torch")
    if torch is None:
        raise CheckpointError("the script has not imported torch, which writes the file")
    with new_file(here, name) as fd:
        sink = Sink(fd)
        torch.save(content, sink)
        if sink.error is not None:
            raise sink.error
    return sink.size, sink.digest


def _written_by(manifest: Dict[str, Any]) -> Tuple[int, range]:
    """How many ranks the job had, and those of them that wrote this part of it."""
    world, files = manifest.get("world"), manifest.get("files")
    names = files if isinstance(files, list) else []
    first = _RANK.fullmatch(str(names[0].get("name"))) if names and isinstance(names[0], dict) else None
    if type(world) is not int or first is None or int(first.group(1)) + len(names) > world:
        raise TornError(f"its manifest is of {world!r} ranks, and does not name files of some of them")
    return world, range(int(first.group(1)), int(first.group(1)) + len(names))


def _checked(
    manifest: Dict[str, Any], generation: int, world: int, ranks: Sequence[int]
) -> List[Dict[str, Any]]:
    if manifest.get("generation") != generation:
        raise TornError(f"its manifest is of generation {manifest.get('generation')!r}")
    if manifest.get("world") != world:
        raise TornError(f"it is of {manifest.get('world')!r} ranks; the job has {world}")
    files = manifest.get("files")
    expected = [f"rank{rank}.pt" for rank in ranks]
    if not isinstance(files, list) or [isinstance(f, dict) and f.get("name") for f in files] != expected:
        raise TornError(f"its manifest does not name the files of ranks {ranks[0]} to {ranks[-1]}")
    return files


def _load(fd: int) -> Any:
    if "torch" not in sys.modules:
        raise TornError("the script has not imported torch, which reads the file")
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            return load(file)
    except OSError:
        raise
    except Exception as error:
        raise TornError(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from None
