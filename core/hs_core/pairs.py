"""What a plan must never say of GPUs that two jobs share."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from hs_core.errors import BrokenError
from hs_core.forms import strategy_of
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Plan, Snapshot
from hs_core.strategy import another
from hs_core.wanted import Guest, Turn


def check_guests(
    snapshot: Snapshot,
    plan: Plan,
    hosts: Mapping[HostName, HostFacts],
    jobs: Mapping[JobId, JobFacts],
    *,
    sharing: bool,
) -> None:
    """At most two jobs on a GPU, both in the turn, and they fit; `sharing`: the policy has said that it does this."""
    for name, turn in plan.turns.items():
        if turn.guests and not sharing:
            raise BrokenError(
                f"job {turn.guests[0].job} shares GPUs of {name}; this policy gives each job its own"
            )
        lent: dict[JobId, int] = {}
        for guest in turn.guests:
            _check_named(name, turn, guest)
            needed = plan.per_node(jobs[guest.job])
            if sum(guest.gpus) > needed:
                raise BrokenError(
                    f"job {guest.job} shares {sum(guest.gpus)} GPUs of {name}; it needs {needed}"
                )
            for partner, gpus in zip(guest.beside, guest.gpus, strict=True):
                lent[partner] = lent.get(partner, 0) + gpus
                has = plan.per_node(jobs[partner])
                if lent[partner] > has:
                    raise BrokenError(f"job {partner} shares {lent[partner]} GPUs of {name}; it has {has}")
                parts = plan.accumulation.get(guest.job, jobs[guest.job].accumulation)
                one, other = (_as_planned(plan, jobs[job]) for job in (guest.job, partner))
                if (why := misfit(snapshot, hosts[name], one, parts, other)) is not None:
                    raise BrokenError(why)


def _check_named(name: HostName, turn: Turn, guest: Guest) -> None:
    named = (guest.job, *guest.beside)
    if strangers := [job for job in named if job not in turn.gangs]:
        raise BrokenError(f"job {strangers[0]} shares GPUs of {name} and is not in its turn")
    guests = [other.job for other in turn.guests]
    if len(set(guests)) != len(guests) or len(set(named)) != len(named):
        raise BrokenError(f"job {guest.job} shares GPUs of {name} twice: {turn.guests}")
    if shared := set(guests).intersection(guest.beside):
        raise BrokenError(f"job {guest.job} shares GPUs of {name} that job {min(shared)} shares already")
    if len(guest.gpus) != len(guest.beside) or min(guest.gpus, default=0) < 1:
        raise BrokenError(f"job {guest.job} shares {guest.gpus} GPUs of {name} with {guest.beside}")


def _as_planned(plan: Plan, job: JobFacts) -> JobFacts:
    """In the strategy that it is given: what was seen of that is what counts."""
    strategy = strategy_of(plan.shapes.get(job.id))
    return job if strategy is None else replace(job, job_class=another(job.job_class, strategy))


def misfit(snapshot: Snapshot, host: HostFacts, guest: JobFacts, parts: int, other: JobFacts) -> str | None:
    """Why a job with its mini-batches in so many parts does not fit beside another on GPUs of that server; None: their memory is known and fits, or they were seen to, or it is so now."""
    if {guest.id, other.id} <= snapshot.running:
        return None
    pair = (guest.job_class, other.job_class)
    if snapshot.interference.get((*pair, host.model)) == inf:
        return f"jobs {guest.id} and {other.id} never fit on one {host.model}"
    for job in (guest, other):
        if not job.memory_bytes:
            if all((*way, host.model) in snapshot.interference for way in (pair, pair[::-1])):
                return None
            return f"job {job.id} shares a GPU of {host.name}; how much memory it takes is not known"
    needed = guest.memory_at(parts) + other.memory_bytes
    if needed <= host.gpu_memory_bytes:
        return None
    return f"jobs {guest.id} and {other.id} need {needed} bytes of a GPU of {host.name}, which has {host.gpu_memory_bytes}"
