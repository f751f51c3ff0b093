"""Gandiva_fair (EuroSys'20): entitlements, tickets per job, and every server slices its GPUs by gang-aware stride.

Here: placement (Algorithm 2) of jobs whose gang fits one server, and job tickets per pool. Nothing moves yet, so what a job is entitled
to is what its user is entitled to in the pool where it lives. Departures are named in `mechanism.placing` and `mechanism.stride`.
"""

from collections.abc import Mapping
from fractions import Fraction

from hs_core.events import Turn
from hs_core.mechanism.placing import Home, Weights, is_lost, place_by_load, weigh, why_nowhere
from hs_core.model import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Needs, Plan, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    homes = place_by_load(snapshot)
    weights = weigh(snapshot, homes)
    return Verdict(
        plan=Plan(
            homes=homes,
            turns={host.name: Turn(local=True) for host in snapshot.hosts},
            tickets=weights.tickets,
        ),
        why=_why(snapshot, homes, weights),
        entitled=weights.entitled,
    )


def _why(snapshot: Snapshot, homes: Mapping[JobId, Home], weights: Weights) -> dict[JobId, str]:
    hosts = {host.name: host for host in snapshot.hosts}
    loads: dict[HostName, Fraction] = {}
    for job_id, home in homes.items():
        name = home[0]
        loads[name] = loads.get(name, Fraction(0)) + weights.tickets[job_id]
    why: dict[JobId, str] = {}
    for job in snapshot.jobs:
        if job.running:
            continue
        if job.id in homes:
            host = hosts[homes[job.id][0]]
            why[job.id] = _why_at_home(job, host, weights.tickets[job.id] / loads[host.name])
        elif is_lost(job, hosts):
            why[job.id] = f"its server {job.host} is not part of the cluster now"
        else:
            why[job.id] = why_nowhere(job, snapshot.hosts)
    return why


def _why_at_home(job: JobFacts, host: HostFacts, part: Fraction) -> str:
    if not host.connected:
        return f"its server {host.name} is away; what runs there goes on"
    if host.gpus < job.gang:
        return f"its server {host.name} has only {host.gpus} GPUs in health, it needs {job.gang}"
    share = min(Fraction(1), part * host.gpus / job.gang)
    return f"waiting for its turn on {host.name}: its share is {float(share):.0%} of the quanta"


GANDIVA_FAIR = Policy(name="gandiva-fair", needs=Needs(fair=True), decide=decide)
