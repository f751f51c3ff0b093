"""The GPUs that a round has given out, remembered until it ends: whoever has them keeps them when the policy is asked again."""

from collections.abc import Collection, Mapping, Sequence

from hs_core.mechanism.placing import Home, by_arrival
from hs_core.mechanism.slots import Slots
from hs_core.names import HostName, JobId
from hs_core.policy import Plan, Snapshot


def given(
    plan: Plan, on_its_way: Mapping[JobId, Home], reserved: Collection[JobId] = ()
) -> dict[str, list[str]]:
    """JSON-able. `reserved`: these have their GPUs for something else than the round."""
    chosen = {job for turn in plan.turns.values() for job in turn.gangs}.difference(reserved)
    homes = {job: plan.homes[job] for job in chosen} | dict(on_its_way)
    return {str(job): list(homes[job]) for job in sorted(homes)}


def keep(snapshot: Snapshot, slots: Slots, homes: Mapping[str, Sequence[str]]) -> dict[JobId, Home]:
    """Hands out again what the round has given out already; the answer is who is on its way there."""
    on_its_way: dict[JobId, Home] = {}
    for job in sorted(snapshot.jobs, key=by_arrival):
        home = tuple(HostName(name) for name in homes.get(str(job.id), ()))
        if not home or not slots.reachable(job):
            continue
        if job.going is not None and job.going.hosts == home and slots.goes(job):
            on_its_way[job.id] = home  # also back to the servers that it leaves: copies that are averaged
        elif home == slots.home(job):
            slots.take(job, home, "")
        elif job.started and not job.movable:
            slots.reserve(job, home)
            on_its_way[job.id] = home
    return on_its_way
