"""What people are told of where a job is: the reason, the evidence, and what comes next."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Stable codes: scripts compare them."""

    RUNNING = "running"
    STARTING = "starting"
    WAITING_FOR_TURN = "waiting-for-turn"  # on its host, others' quantum now
    WAITING_FOR_GPUS = "waiting-for-gpus"  # the policy has not given it GPUs yet
    PAUSED = "paused"
    DEPENDENCY = "dependency"
    ARRAY_LIMIT = "array-limit"
    NO_HOST = "no-host"  # no server has ever joined
    READ_ONLY = "read-only"  # the controller cannot write its journal, and gives nobody anything new
    HOST_AWAY = "host-away"
    HOST_DRAINED = "host-drained"  # all servers that could hold it are to take nobody new
    HOST_TROUBLE = "host-trouble"  # its server cannot start it: its disk is full, say
    SOURCE_AWAY = "source-away"  # it goes on from a checkpoint, and the server that has it is not connected
    MOVING = "moving"  # to another server, or on to another number of GPUs, and stopped for that
    TOO_LARGE = "too-large"
    MODEL_ABSENT = "model-absent"
    MEMORY_TOO_SMALL = "memory-too-small"
    GPU_UNHEALTHY = "gpu-unhealthy"
    ENDING = "ending"
    SUCCEEDED = "ended:succeeded"
    FAILED = "ended:failed"
    CANCELLED = "ended:cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    reason: Reason
    text: str
    next_step: str
    expected_wait_s: float = -1.0  # -1: not known
