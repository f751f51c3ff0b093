"""A round placed afresh and as tight as can be, with servers renamed so that the fewest jobs move (Tesserae, 3.2 and 3.3)."""

from hs_core.mechanism.floor import floor
from hs_core.mechanism.placing import Home, by_arrival, fits, takes_new
from hs_core.mechanism.precedence import Chosen
from hs_core.mechanism.renaming import rename
from hs_core.mechanism.seating import Seating
from hs_core.mechanism.slots import Slots
from hs_core.names import HostName, JobId
from hs_core.policy import Snapshot


def placed_afresh(snapshot: Snapshot, slots: Slots, seating: Seating, chosen: Chosen) -> dict[JobId, Home]:
    """Homes of the chosen that can leave theirs; those that cannot have their GPUs afterwards."""
    hosts = floor(snapshot.hosts).hosts
    for job, model in sorted(chosen.values(), key=lambda entry: by_arrival(entry[0])):
        if not slots.may_leave(job):
            seating.seat(slots, job, (model,), {})
    groups: dict[tuple[str, int, int, int], list[HostName]] = {}
    room: dict[HostName, int] = {}
    for host in sorted(snapshot.hosts, key=lambda host: host.name):
        if takes_new(host):
            room[host.name] = free = slots.free(host.name)
            groups.setdefault((host.model, free, host.gpus, host.gpu_memory_bytes), []).append(host.name)
    planned: dict[JobId, Home] = {}
    left = [entry for entry in chosen.values() if not slots.runs(entry[0])]
    for job, model in sorted(
        left, key=lambda entry: (-entry[0].per_node, -entry[0].gang, by_arrival(entry[0]))
    ):
        able = [
            name
            for name, free in room.items()
            if free >= job.per_node and hosts[name].model == model and fits(job, hosts[name])
        ]
        if len(able) >= job.nodes:
            planned[job.id] = home = tuple(sorted(able, key=lambda name: (room[name], name))[: job.nodes])
            for name in home:
                room[name] -= job.per_node
    names: dict[HostName, HostName] = {}
    for (_, free, _, _), servers in groups.items():
        names |= rename(servers, free, planned, snapshot)
    return {job: tuple(names[name] for name in home) for job, home in planned.items()}
