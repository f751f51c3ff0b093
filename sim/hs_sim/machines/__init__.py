"""Depth *machines*: the real ClusterMachine and HostMachines exchange messages on a heap; jobs, wire, disk and faults are modelled."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hs_core.cluster.admission import check_spec, check_user
from hs_core.cluster.state import Limits
from hs_core.errors import RefusedError
from hs_sim.cluster import check_all_end, name_of
from hs_sim.machines.timing import IDEAL, Timing
from hs_sim.machines.trouble import Fault, FaultPlan, Kind
from hs_sim.machines.truth import LawBrokenError
from hs_sim.machines.world import World
from hs_sim.model import Experiment, Result, Workload

__all__ = ["IDEAL", "Fault", "FaultPlan", "Kind", "LawBrokenError", "Timing", "World", "run_machines"]


def run_machines(
    experiment: Experiment,
    *,
    faults: FaultPlan | None = None,
    timing: Timing | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Result:
    """`progress(now_s, jobs that ended)` is called at every sample. Where all of `experiment.costs` are zero, messages take no time either."""
    if staged := next((job for job in experiment.workload.jobs if job.stages), None):
        raise RefusedError(
            f"job {staged.id} of {staged.user} changes its batch size; expected depth quanta for it"
        )
    if stuck := next((job for job in experiment.workload.jobs if not job.sliceable), None):
        raise RefusedError(
            f"job {stuck.id} of {stuck.user} cannot be suspended (sliceable: false); expected depth quanta for it"
        )
    _check_admitted(experiment.workload)
    check_all_end(experiment)
    began_s = time.process_time()
    result = World(experiment, faults=faults, timing=timing).run(progress)
    return replace(result, cpu_s=time.process_time() - began_s)


def _check_admitted(workload: Workload) -> None:
    """The controller that runs here refuses what a live one does: that is said ahead, and of which line."""
    limits = Limits()
    for name, tickets in workload.tickets.items():
        with _admitting(f"user {name!r}"):
            check_user(name, tickets, None, limits)
    for job in workload.jobs:
        with _admitting(name_of(job, workload)):
            check_spec(job.spec(), limits)


@contextmanager
def _admitting(what: str) -> Iterator[None]:
    try:
        yield
    except RefusedError as refused:
        raise RefusedError(f"{what}: {refused}; expected what a controller takes, or depth quanta") from None
