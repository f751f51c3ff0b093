"""The nouns. Frozen facts; changed with `dataclasses.replace`."""

from hs_core.model.job import ENDED_STATES, Job, JobState
from hs_core.model.move import Move, MoveReason
from hs_core.model.server import LEAST_SLOWDOWN, MOST_SLOWDOWN, Dataset, Drain, Gpu, Host, Slowdown
from hs_core.model.spec import (
    After,
    AfterCondition,
    JobSpec,
    Migrate,
    OnPartition,
    SuspendMode,
    Topology,
    gpus_as,
    may_run_as,
    nodes_as,
    spans,
    split_memory,
    spreads,
    strategy_as,
)
from hs_core.model.stored import Copied, Stored
from hs_core.model.switches import Switches
from hs_core.model.user import User

__all__ = [
    "ENDED_STATES",
    "LEAST_SLOWDOWN",
    "MOST_SLOWDOWN",
    "After",
    "AfterCondition",
    "Copied",
    "Dataset",
    "Drain",
    "Gpu",
    "Host",
    "Job",
    "JobSpec",
    "JobState",
    "Migrate",
    "Move",
    "MoveReason",
    "OnPartition",
    "Slowdown",
    "Stored",
    "SuspendMode",
    "Switches",
    "Topology",
    "User",
    "gpus_as",
    "may_run_as",
    "nodes_as",
    "spans",
    "split_memory",
    "spreads",
    "strategy_as",
]
