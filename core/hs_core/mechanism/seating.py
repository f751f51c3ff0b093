"""The servers on which a job that was chosen has its GPUs.

It stays where it is if that server is in its model and has room (Gavel, OSDI'20, 5: no move without need); else it goes where it takes GPUs from the fewest that could have stayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hs_core.mechanism.floor import floor
from hs_core.mechanism.placing import Home, is_cold
from hs_core.mechanism.slots import Slots
from hs_core.mechanism.spreading import largest, measured, numbers
from hs_core.names import HostName
from hs_core.policy import HostFacts, JobFacts, Snapshot

BEARABLE = 0.9
"""The part of its speed that a job keeps over more servers, at least, if it is to be spread. Tiresias goes by the skew of a model's tensors, and has no such number."""


class Seating:
    def __init__(self, snapshot: Snapshot, *, spreads: bool) -> None:
        """`spreads`: jobs that may be laid over any number of servers are, where one has no room and they bear it."""
        self._snapshot = snapshot
        self._spreads = spreads
        self._floor = floor(snapshot.hosts)
        self._hosts = self._floor.hosts

    def seat(
        self,
        slots: Slots,
        job: JobFacts,
        models: Sequence[str],
        claims: Mapping[HostName, int],
        *,
        target: Home = (),
    ) -> bool:
        """`claims`: GPUs of each server that others are to have who could stay there; `target`: where it is to go if it can. False if none has room."""
        if not slots.may_find_some(job):
            return False
        home = slots.home(job)
        if target and (target == home or all(_may_enter(slots, job, self._hosts[name]) for name in target)):
            text = f"its GPUs of this round are on {', '.join(target)}"
            if self._spreads and job.spreads:
                laid = slots.spread(job, target, f"{over(len(target))}: so it is slowed least")
            else:
                laid = slots.take(job, target, text)
            if laid:
                return True
        drained = self._floor.drained and any(not self._hosts[name].accepts for name in home)
        if slots.model_of(job) in models and not drained and slots.take(job, home, ""):
            return True
        if self._spreads and job.spreads:
            return any(self._lay(slots, job, model, claims) for model in models)
        for model in models:
            there = self._least_disturbing(slots, job, model, claims)
            if there and slots.take(job, there, f"its GPUs of this round are {model} on {', '.join(there)}"):
                return True
        return drained and bool(models) and slots.take(job, home, "")

    def _lay(self, slots: Slots, job: JobFacts, model: str, claims: Mapping[HostName, int]) -> bool:
        """Over the fewest servers that have room, as long as it bears that."""
        able = self._floor.fitting(replace(job, nodes=job.gang), model)
        counts = numbers(job, largest(able))
        for nodes in counts:
            bears, why = self._bears(job, model, nodes, counts[0])
            there = self._least_disturbing(slots, replace(job, nodes=nodes), model, claims) if bears else ()
            if there and slots.spread(job, there, why):
                return True
        return False

    def _bears(self, job: JobFacts, model: str, nodes: int, fewest: int) -> tuple[bool, str]:
        """Who was measured to lose by it is not spread over more servers than it must be (Tiresias, 3.3); and how it runs so."""
        if nodes <= fewest:
            return True, f"{over(nodes)}, as few as can be"
        tight, loose = (measured(self._snapshot, job, model, count) for count in (fewest, nodes))
        text = f"{over(nodes)}: fewer had no room"
        if not (tight and loose):
            return True, f"{text}, and how much slower it is so was not measured"
        text += f", and it does {loose:.3g} steps/s so, {tight:.3g} {over(fewest)}"
        return loose >= BEARABLE * tight, text

    def _least_disturbing(
        self, slots: Slots, job: JobFacts, model: str, claims: Mapping[HostName, int]
    ) -> Home:
        """Servers of the pool where it takes GPUs from the fewest that could stay, then the fullest, those that have its data, then by name; () if none."""
        able = self._floor.fitting(job, model)
        if len(able) < job.nodes or not slots.ways(job, (model,)):
            return ()
        per_node, nodes, free, found = job.per_node, job.nodes, slots.free, []
        for host in able:
            name = host.name
            left = free(name) - per_node
            if left >= 0:
                claimed = claims.get(name, 0) - left
                found.append((max(0, claimed), left, is_cold(job, host), name))
        if len(found) < nodes:
            return ()
        if nodes == 1:
            return (min(found)[-1],)
        found.sort()
        return tuple([name for _, _, _, name in found[:nodes]])


def over(servers: int) -> str:
    return "over one server" if servers == 1 else f"over {servers} servers"


def _may_enter(slots: Slots, job: JobFacts, host: HostFacts) -> bool:
    return slots.may_go(job, host) and host.name not in job.barred
