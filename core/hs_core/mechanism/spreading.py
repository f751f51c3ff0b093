"""Over how many servers a job may be laid that leaves their number open (`--topology any`), and what was measured of that."""

from collections.abc import Iterable

from hs_core.job_class import class_over
from hs_core.mechanism.placing import takes_new
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.strategy import class_as


def largest(hosts: Iterable[HostFacts]) -> int:
    """GPUs of the largest server that takes new jobs; 0: there is none."""
    return max((host.gpus for host in hosts if takes_new(host)), default=0)


def numbers(job: JobFacts, most: int) -> tuple[int, ...]:
    """Numbers of servers, the fewest first, with at most `most` GPUs on each; (): its number is fixed, or there are no such servers."""
    return tuple(nodes for nodes in job.spreads if job.gang // nodes <= most)


def measured(snapshot: Snapshot, job: JobFacts, model: str, nodes: int) -> float:
    """Its class's mini-batches a second over so many servers of that model, in the strategy that it has; 0: nobody has measured that."""
    in_strategy = class_as("", job.strategy)
    declared = class_over(job.job_class.removesuffix(in_strategy), job.nodes, nodes)
    return snapshot.rates.get((declared + in_strategy, model), 0.0)
