"""What a plan must never say, and the fewest changes that lead from what runs to what is planned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hs_core.errors import BrokenError
from hs_core.model import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Plan, Snapshot


def check(snapshot: Snapshot, plan: Plan) -> None:
    """Raises BrokenError if the plan breaks a law. A policy that does so is stopped before anybody acts on it."""
    hosts = {host.name: host for host in snapshot.hosts}
    jobs = {job.id: job for job in snapshot.jobs}
    _check_homes(plan, hosts, jobs)
    _check_tickets(plan)
    _check_turns(plan, hosts, jobs)


def _check_homes(plan: Plan, hosts: Mapping[HostName, HostFacts], jobs: Mapping[JobId, JobFacts]) -> None:
    for job_id, name in plan.homes.items():
        job, host = jobs.get(job_id), hosts.get(name)
        if job is None:
            raise BrokenError(f"job {job_id} has a home on {name}; the snapshot has no such job")
        if host is None:
            raise BrokenError(f"job {job_id} has a home on {name}; the snapshot has no such server")
        if name != job.host:
            _check_entrance(job, host)
    for job in jobs.values():
        if job.started and job.host in hosts and plan.homes.get(job.id) != job.host:
            raise BrokenError(
                f"job {job.id} runs on {job.host} and is planned on {plan.homes.get(job.id)}; it cannot move"
            )


def _check_entrance(job: JobFacts, host: HostFacts) -> None:
    """A job that is new to a host must fit it; one that is there stays, whatever became of the host."""
    if not host.connected or not host.accepts:
        raise BrokenError(
            f"job {job.id} is placed on {host.name}, which is {'drained' if host.connected else 'away'}"
        )
    if job.gang > host.gpus:
        raise BrokenError(
            f"job {job.id} needs {job.gang} GPUs and is placed on {host.name}, which has {host.gpus}"
        )
    if job.gpu_types and host.model not in job.gpu_types:
        raise BrokenError(
            f"job {job.id} is for {' or '.join(job.gpu_types)} and is placed on {host.name} ({host.model})"
        )
    if job.gpu_memory_bytes > host.gpu_memory_bytes:
        raise BrokenError(
            f"job {job.id} needs {job.gpu_memory_bytes} bytes of GPU memory and is placed on {host.name}, "
            f"which has {host.gpu_memory_bytes}"
        )


def _check_tickets(plan: Plan) -> None:
    for job_id in plan.homes:
        if job_id not in plan.tickets:
            raise BrokenError(f"job {job_id} has a home and no tickets")
    for job_id, tickets in plan.tickets.items():
        if job_id not in plan.homes:
            raise BrokenError(f"job {job_id} has tickets and no home")
        if tickets <= 0:
            raise BrokenError(f"job {job_id} has {tickets} tickets; expected more than 0")


def _check_turns(plan: Plan, hosts: Mapping[HostName, HostFacts], jobs: Mapping[JobId, JobFacts]) -> None:
    if unknown := sorted(plan.turns.keys() - hosts.keys()):
        raise BrokenError(f"a turn for {unknown[0]}; the snapshot has no such server")
    if missing := sorted(hosts.keys() - plan.turns.keys()):
        raise BrokenError(f"no turn for {missing[0]}")
    for name, turn in plan.turns.items():
        if len(set(turn.gangs)) != len(turn.gangs):
            raise BrokenError(f"a job is twice in the turn of {name}: {list(turn.gangs)}")
        for job_id in turn.gangs:
            if plan.homes.get(job_id) != name:
                raise BrokenError(
                    f"job {job_id} is in the turn of {name}; its home is {plan.homes.get(job_id)}"
                )
        needed = sum(jobs[job_id].gang for job_id in turn.gangs)
        if needed > hosts[name].gpus:
            raise BrokenError(
                f"a GPU of {name} is promised twice: its turn needs {needed}, it has {hosts[name].gpus}"
            )
    _check_unsliceable(plan, hosts, jobs)


def _check_unsliceable(
    plan: Plan, hosts: Mapping[HostName, HostFacts], jobs: Mapping[JobId, JobFacts]
) -> None:
    bound: dict[HostName, list[JobFacts]] = {}
    for job in jobs.values():
        if job.started and job.running and not job.sliceable and job.host is not None and job.host in hosts:
            bound.setdefault(job.host, []).append(job)
    for name, stuck in bound.items():
        # Where GPUs were lost under them, not all can go on: that is no fault of the plan.
        if plan.turns[name].local or sum(job.gang for job in stuck) > hosts[name].gpus:
            continue
        if left_out := [job.id for job in stuck if job.id not in plan.turns[name].gangs]:
            raise BrokenError(f"job {left_out[0]} cannot be suspended and is not in the turn of {name}")


class Step(StrEnum):
    STOP = "stop"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Change:
    step: Step
    job: JobId
    host: HostName


def diff(running: Mapping[HostName, Collection[JobId]], wanted: Plan) -> tuple[Change, ...]:
    """The fewest changes, losers before winners: a GPU is never promised to both, nor a job to two hosts.

    A turn that leaves GPUs to the host's own stride says nothing of the jobs that are not in its gangs.
    """
    stops: list[Change] = []
    for host, jobs in sorted(running.items()):
        turn = wanted.turns.get(host)
        for job in sorted(jobs):
            at_home = wanted.homes.get(job) == host
            if not at_home or turn is None or not (turn.local or job in turn.gangs):
                stops.append(Change(Step.STOP, job, host))
    runs = [
        Change(Step.RUN, job, host)
        for host, turn in sorted(wanted.turns.items())
        for job in turn.gangs
        if job not in running.get(host, ())
    ]
    return (*stops, *runs)
