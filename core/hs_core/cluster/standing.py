"""What of a verdict still stands where it took a while: nothing is done about who has changed since, or on servers that have."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from hs_core.names import JobId
from hs_core.policy import HostFacts, JobFacts, Plan, Snapshot

Said = TypeVar("Said")


def still(
    plan: Plan, asked: Snapshot, hosts: tuple[HostFacts, ...], jobs: Mapping[JobId, JobFacts]
) -> tuple[Plan, bool]:
    """The plan without what cannot be done any more, and whether that was anything: then the policy is to be asked again.

    `hosts`, `jobs`: as they are shown now. Who has come since is in no plan, and is no matter of this one.
    """
    had = {host.name: host for host in asked.hosts}
    others = {host.name for host in hosts if had.get(host.name) is not host and had.get(host.name) != host}
    others |= had.keys() - {host.name for host in hosts}
    gone, changed = set[JobId](), set[JobId]()
    for then in asked.jobs:
        now = jobs.get(then.id)
        if now is then:
            continue
        if now is None:
            gone.add(then.id)
        elif _place(now) != _place(then):
            changed.add(then.id)
    if not (others or gone or changed):
        return plan, False
    known = {job.id: job.hosts for job in asked.jobs} if others else {}
    for job, home in plan.homes.items():
        if others and home != known[job] and not others.isdisjoint(home):
            changed.add(job)
    away = gone | changed
    again = any(plan.homes.get(job) not in (None, now.hosts) for job in changed if (now := jobs.get(job)))
    return (
        replace(
            plan,
            homes=_without(plan.homes, away),
            tickets=_without(plan.tickets, gone),
            moves=_without(plan.moves, away),
            shapes=_without(plan.shapes, away),
            copies=_without(plan.copies, away),
            accumulation=_without(plan.accumulation, away),
            trials=_without(plan.trials, away),
        ),
        again,
    )


def _without(said: Mapping[JobId, Said], away: set[JobId]) -> Mapping[JobId, Said]:
    if away.isdisjoint(said):
        return said
    return {job: value for job, value in said.items() if job not in away}


def _place(job: JobFacts) -> tuple[object, ...]:
    """What it depends on whether it can go where it was to go."""
    return (
        job.hosts,
        job.started,
        job.movable,
        job.going,
        job.restartable,
        job.held_up,
        job.barred,
        job.shape,
        job.nodes,
        job.gang,
        job.accumulation,
    )
