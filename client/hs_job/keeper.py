"""What of a rank another process could take up: what its script handed over, and the folder that this is written into."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from hs_job import advice, average, place
from hs_job.pack import PackError

if TYPE_CHECKING:
    from hs_job.checkpoint import Folder
    from hs_job.handed import Handed
    from hs_job.stop import Stop


Found = Tuple[Optional[Dict[str, Any]], int, str]
"""Content, generation, and a note on those that could not be read; no content: it begins afresh."""


class Keeper:
    def __init__(self, environment: Dict[str, str], rank: int, world: int) -> None:
        self.handed: Optional[Handed] = None
        self.handed_by = 0  # the process whose script has called hs_job.state; 0: none has
        self.single = False  # a library's loop trains: what that counts has no average with other copies
        self.comes_later = (
            False  # a library has made the loader's first iterator by the time that it is handed over
        )
        self.waiting: Callable[[], Set[int]] = set  # parameters whose optimizer is yet to step
        self.lasting: Callable[[], List[Any]] = list  # optimizers that have stepped for several batches
        self.persistent: Callable[[Any], int] = lambda _: (
            0
        )  # loaders, but for the one given, whose workers stay
        self.persisted = (
            0  # of them, those whose workers were there in the process before and are not yet in this one
        )
        self.folder: Optional[Folder] = place.folder(environment, rank, world)
        self.restore = place.number_of(environment.get("HS_RESTORE", ""))
        self.newest = -1  # generation that is in the folder, or that the agent asked for
        self.whole = -1  # newest one that all nodes are known to have
        self._environment = environment
        self._read: Optional[Found] = None
        self._follows: Optional[bool] = None  # None: it was not looked for yet
        self._rounds = 0  # in which nodes have agreed on what they take up
        self.unsavable = ""  # why what was handed over is what no checkpoint can hold: trying again is no use
        self.astray = ""  # why training comes to no place where it could be saved; until it does

    @property
    def reshaped(self) -> bool:
        """The job may go on with other ranks, or in another strategy."""
        return place.is_elastic(self._environment) or self.in_strategy

    @property
    def in_strategy(self) -> bool:
        """A rank's parameters may be other parts of the model in the next process."""
        return bool(self._environment.get("HS_STRATEGY"))

    def look(self) -> None:
        """For what lies in the folder."""
        if self.folder is not None:
            self.newest = self.folder.newest()

    @property
    def follows(self) -> bool:
        """Another command of this incarnation has handed over before (a job trains with one script, then with the next). In a new process the job begins with that again, and what is saved is that one's."""
        if self._follows is None:
            command = hashlib.sha256(repr(sys.argv).encode(errors="replace")).hexdigest()
            folder = self.folder if "HS_EPOCH" in self._environment else None
            self._follows = folder is not None and folder.is_of_another(command)
        return self._follows

    def is_of(self, rank: int, world: int) -> None:
        """The environment of one that its script has spawned does not say which it is."""
        if self.folder is not None:
            self.folder = place.folder(self._environment, rank, world)

    def claim(self) -> None:
        """Training begins."""
        if self.folder is not None:
            self.folder.claim()

    def read(self) -> Optional[Found]:
        """What this process is to take up, once for all who ask; None: nothing."""
        if self.follows:
            return None
        if self._read is None and self.folder is not None and (asked := self._asked(self.folder)) >= 0:
            average.complete(self.folder, asked)
            self._read = self.folder.read(asked, agree=self._agree)
        return self._read

    def _asked(self, folder: Folder) -> int:
        """Ranks that torchrun has restarted, as one of them failed, go on from what those before wrote: the one that the agent asked for may be gone by now."""
        again = place.number_of(self._environment.get("TORCHELASTIC_RESTART_COUNT", "")) > 0
        return max(self.restore, folder.newest()) if again else self.restore

    def forget(self) -> None:
        """Whoever has read it holds it now: it may be large."""
        self._read = None

    def _agree(self, generation: int) -> Tuple[int, bool]:
        """The lowest that any rank has found whole, and whether all found that. By the ranks' store: a collective would need to know their devices."""
        folder, torch = self.folder, sys.modules.get("torch")
        assert folder is not None
        if folder.node.nodes <= 1:
            return generation, True
        if torch is None or not torch.distributed.is_initialized():
            raise RuntimeError(
                "hs_job.state in a job over several nodes: call torch.distributed.init_process_group first, "
                "so that the nodes agree on a checkpoint"
            )
        store = torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way to it
        self._rounds += 1
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        store.set(f"heteroshare/{self._rounds}/{rank}", str(generation))
        found = {int(store.get(f"heteroshare/{self._rounds}/{each}")) for each in range(world)}
        return min(found), len(found) == 1

    def can(self, by_hand: bool) -> bool:
        """`by_hand`: the script counts its steps itself."""
        handed = self.handed
        if handed is None or self.folder is None or self.unsavable or self.astray:
            return False
        if "torch" not in sys.modules:  # which writes the file; once it is imported all is told anew
            return False
        return handed.data is not None or by_hand

    def why_not(self, by_hand: bool) -> str:
        """Why nothing can be saved, whatever place training comes to; empty: it can."""
        return "" if self.can(by_hand) else self.unsavable or self.astray or advice.NO_STATE

    def write(
        self,
        stop: Stop,
        step: int,
        host_of: Optional[Callable[[Any], Any]],
        abandoned: Callable[[], bool],
    ) -> str:
        """The digest of its part of the stop's generation.

        Raises:
            PackError: of state that no checkpoint can hold; from then on it cannot.
            CheckpointError, OSError: not written, or abandoned.
        """
        assert self.handed is not None
        assert self.folder is not None
        try:
            content = self.handed.capture(step, host_of)
        except PackError as error:
            self.unsavable = str(error)
            raise
        return self.folder.write(
            stop.generation,
            step,
            content,
            abandoned=abandoned,
            wait_for_manifest=stop.kind == "stop",  # it leaves with that
            whole=self.whole,
        )

    def clear(self, stop: Stop) -> None:
        """Another node could not write its part: this one's is worth nothing."""
        if self.folder is not None:
            self.folder.clear(stop.generation)
