"""What a process is told of its place in the job: in its environment, by the agent and by torchrun."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Dict, Optional, Tuple

if TYPE_CHECKING:
    from hs_job.checkpoint import Folder, Node


class Place:
    """Which rank this process is, of how many, on how many nodes."""

    def __init__(self, environment: Dict[str, str]) -> None:
        self.rank, self.world = rank_and_world(environment)
        self.nodes = max(1, number_of(environment.get("HS_NNODES", "")))

    def find(self) -> bool:
        """Whether the script has said so by now: the environment of one that it has spawned does not."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return False
        self.rank, self.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return True


def rank_and_world(environment: Dict[str, str]) -> Tuple[int, int]:
    """Where nothing or nonsense is said: alone."""
    try:
        rank, world = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)


def number_of(text: str) -> int:
    """-1: none was said."""
    return int(text) if text.isdecimal() else -1


def is_elastic(environment: Dict[str, str]) -> bool:
    """It may be started again on another number of GPUs."""
    return "HS_BATCH_PER_GPU" in environment


def folder(environment: Dict[str, str], rank: int, world: int) -> Optional[Folder]:
    path = environment.get("HS_CHECKPOINT_DIR", "")
    if not path:
        return None
    from hs_job.checkpoint import Folder

    epoch = max(0, number_of(environment.get("HS_EPOCH", "")))
    return Folder(
        path, rank, world, _node(environment, rank, world), elastic=is_elastic(environment), epoch=epoch
    )


def _node(environment: Dict[str, str], rank: int, world: int) -> Optional[Node]:
    """None: all ranks are here, as far as that is known."""
    from hs_job.checkpoint import Node

    def number(name: str, default: int) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdecimal() else default

    nodes = number("HS_NNODES", 1)
    if nodes <= 1:
        return None
    count = number("LOCAL_WORLD_SIZE", max(world // nodes, 1))
    local = number("LOCAL_RANK", rank % count)
    return Node(rank - local, count, number("HS_NODE_RANK", 0), nodes)
