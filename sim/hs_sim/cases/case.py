"""All that a seed stands for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hs_core.model import JobSpec
from hs_sim.machines.trouble import FaultPlan
from hs_sim.model import Experiment

QUANTUM_S = 10.0
TROUBLE_S = 120.0  # nothing new goes wrong after
TRADERS_JOBS = 3  # times as many jobs as elsewhere, each of them moved for no reason so much more seldom: the policy has to keep up


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a seed stands for."""

    experiment: Experiment
    plan: FaultPlan
    cannot_checkpoint: frozenset[int]
    fence_after_s: float
    moving: float  # how likely a job is moved in a quantum, for no reason
    specs: dict[int, JobSpec]
    trades: bool = False  # classes of jobs are so unlike that users may trade
    parking_bytes: int = 0  # host memory for what jobs hold of GPUs between their turns
    cannot_swap: frozenset[int] = frozenset()  # and say they can
    grows_at: Mapping[int, int] = field(default_factory=dict)  # as `World` has it
    spare_processes: int | None = (
        None  # for which each server's memory has room besides one for each GPU; None: for any number
    )
