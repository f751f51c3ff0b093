"""Checkpoints of all jobs, wherever they lie: on servers' disks, or in folders that users named and all servers see."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hs_core.model import spans
from hs_core.names import HostName, JobId
from hs_sim.machines.truth import Shelf, Truth

if TYPE_CHECKING:
    from hs_sim.machines.agent import Agent


class Checkpoints:
    def __init__(self, truth: Truth, agents: Mapping[HostName, "Agent"]) -> None:
        self._truth, self._agents = truth, agents
        self.folders: dict[JobId, Shelf] = {}  # that users named
        self._claimed: dict[JobId, int] = {}  # there, by this incarnation: none before it writes any more

    def within_reach(self, job: JobId, nodes: int, connected: Iterable[HostName]) -> int:
        """Newest step of which these servers have a whole checkpoint: each rank's part of one, which may be there several times; where ranks are alike, as many.

        Of what came before the one that is known to be safe a server counts with one part: that it has another's as well, since parts changed places, nobody is told.
        """
        found = self._truth.by_id.get(job)
        alike = found is not None and spans(found.spec)
        parts: dict[tuple[int, int, int], set[int | HostName]] = {}  # by step, who wrote it, generation
        servers: dict[tuple[int, int, int], set[HostName]] = {}
        step = found.acknowledged if found is not None else -1
        stores = [agent.disk.stores.get(job, {}) for agent in self._agents.values()]
        # Who was stopped before its first step wrote the same step once more.
        written = (
            generation for store in stores for (generation, _), saved in store.items() if saved.step == step
        )
        safe = (step, max(written, default=-1))
        for name in connected:
            for (generation, _), saved in self._agents[name].disk.stores.get(job, {}).items():
                if saved.torn:
                    continue
                whole = (saved.step, saved.epoch, generation)
                parts.setdefault(whole, set()).add(name if alike else saved.rank)
                servers.setdefault(whole, set()).add(name)
        older = {
            (step, epoch, generation)
            for (step, epoch, generation), names in servers.items()
            if (step, generation) < safe and len(names) < nodes
        }
        parts = {whole: held for whole, held in parts.items() if whole not in older}
        for (generation, rank), saved in self.folders.get(job, {}).items():
            parts.setdefault((saved.step, saved.epoch, generation), set()).add(rank)
        return max((step for (step, _, _), held in parts.items() if len(held) >= nodes), default=-1)

    # --- what becomes of them ---------------------------------------------------------------------------------------

    def lose(self, agent: "Agent") -> None:
        """Of jobs of which something lay there nothing is safe before they have written again: what others have left of them nobody need know."""
        jobs = [self._truth.by_id[job] for job, shelf in agent.disk.stores.items() if shelf]
        agent.wipe()
        for job in jobs:
            job.acknowledged = -1
            job.gone_with.add(agent.name)

    def tear(self, agent: "Agent") -> None:
        """The newest generation of every job that has written some there, or fetched them: from the one before it a job on one server can go on all the same."""
        for job, shelf in agent.disk.stores.items():
            own = {at: saved for at, saved in shelf.items() if saved.copy < 0 and not saved.torn}
            newest = max((generation for generation, _ in own), default=-1)
            torn = {at: saved for at, saved in own.items() if at[0] == newest}
            if not torn:
                continue
            shelf.update({at: saved._replace(torn=True) for at, saved in torn.items()})
            of, step = self._truth.by_id[job], max(saved.step for saved in torn.values())
            left = max((saved.step for at, saved in own.items() if at not in torn), default=-1)
            of.torn_step = max(of.torn_step, step)
            of.acknowledged = min(of.acknowledged, left if of.spec.nodes == 1 and not spans(of.spec) else -1)

    # --- folders that users named ------------------------------------------------------------------------------------

    def claim(self, job: JobId, epoch: int) -> None:
        """Its folder, as `hs_job.checkpoint` and `hs_agent.carrier` do."""
        if job in self.folders:
            self._claimed[job] = max(epoch, self._claimed.get(job, 0))

    def newest_in_folder(self, job: JobId) -> int:
        """Also of those whose servers are cut off: a number is given once."""
        return max((generation for generation, _ in self.folders.get(job, ())), default=-1)

    def may_write(self, job: JobId, epoch: int) -> bool:
        return self._claimed.get(job, 0) <= epoch
