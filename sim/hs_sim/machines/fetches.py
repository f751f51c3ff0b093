"""Checkpoints on their way from one simulated server to another, tried again where they cannot be had."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hs_core.events.host import CheckpointFetched, Fetch, FetchFailed, Lack
from hs_core.wanted import NOBODY, Source, WantedJob
from hs_sim.machines.gang import share_of
from hs_sim.machines.truth import Saved

if TYPE_CHECKING:
    from hs_sim.machines.agent import Agent
    from hs_sim.machines.world import World

RETRIES, RETRY_S = 5, 1.0


class Fetches:
    def __init__(self, world: "World") -> None:
        self._world = world

    def start(self, agent: "Agent", order: Fetch) -> None:
        self._try(agent, agent.life, order.wanted, 0)

    def _try(self, agent: "Agent", life: int, wanted: WantedJob, tries: int) -> None:
        world, source = self._world, wanted.source
        if source is None or not agent.up or agent.life != life or not agent.awaits(wanted):
            return
        # Copies have one node each.
        parts = [(part.peer.host, part.generation, 0) for part in source.parts]
        if source.peer == NOBODY or source.look:
            if self._looked(agent, wanted, source):
                return
            own = source.peer.host == agent.name and source.rank == wanted.node_rank
            if own and source.peer != NOBODY:
                # One part of it, where no other server sees it: its processes find out what is left, if anything is.
                if agent.disk.stored(wanted.job, source.generation, source.rank) is None:
                    gone = Saved(source.epoch, source.step, source.rank, torn=True)
                    agent.disk.store(wanted.job, source.generation, gone)
                self._tell(agent, wanted, source.generation, source.step)
                return
            if source.peer == NOBODY:
                self._again(agent, wanted, tries, "no such checkpoint in its folder", Lack.GONE)
                return
        needed = parts or [(source.peer.host, source.generation, source.rank)]
        lenders = [world.agents[host] for host, _, _ in needed]
        reached = all(
            lender is agent or (lender.up and world.network.through(agent.name, lender.name))
            for lender in lenders
        )
        held = [
            lender.disk.stored(wanted.job, generation, rank)
            for lender, (_, generation, rank) in zip(lenders, needed, strict=True)
        ]
        torn = any(
            found is not None and found.torn and lender is not agent
            for found, lender in zip(held, lenders, strict=True)
        )
        if not reached or torn or None in held or agent.disk_full:
            names = ", ".join(lender.name for lender in lenders)
            if not reached:
                self._again(agent, wanted, tries, f"{names} cannot be reached", Lack.UNREACHED)
            elif torn:
                self._again(agent, wanted, tries, f"{names}: torn", Lack.DAMAGED)
            else:
                lack = Lack.UNREACHED if agent.disk_full else Lack.GONE
                self._again(agent, wanted, tries, "no such checkpoint there", lack)
            return
        at = [found for found in held if found is not None]
        self._adds_up(wanted, [found.step for found in at])
        size = world.job_of(wanted).sim.state_bytes / max(1, len(wanted.nodes))
        come = sum(lender is not agent for lender in lenders)
        seconds = size * come / world.costs.network_bytes_per_s + world.network.delay_s()
        # An elastic job's node may take up what one of another rank wrote, and has it as its own from then on.
        epoch, step = (wanted.epoch, source.step) if source.parts else (at[0].epoch, at[0].step)
        got = Saved(epoch, step, wanted.node_rank, wanted.copy, torn=not source.parts and at[0].torn)
        world.clock.after(seconds, self._arrived, agent, life, wanted, got, tries)

    def _looked(self, agent: "Agent", wanted: WantedJob, source: Source) -> bool:
        """In its folder, which servers see whether those that wrote there are up or not where its user named it. Those before it write there no more. Copies have others."""
        self._world.checkpoints.claim(wanted.job, wanted.epoch)
        shelf = {
            at: saved
            for at, saved in agent.disk.shelf(wanted.job).items()
            if saved.copy < 0 and not saved.torn
        }
        newest = max(
            (
                number
                for number, _ in shelf
                if number >= source.generation
                and all((number, rank) in shelf for rank in range(source.nodes))
            ),
            default=-1,
        )
        if newest < 0 and source.may_be_none:
            self._tell(agent, wanted, -1, 0)
            return True
        if newest < 0:
            return False
        found = shelf[newest, source.rank]
        agent.disk.store(wanted.job, newest, found._replace(rank=wanted.node_rank))
        self._tell(agent, wanted, newest, found.step)
        return True

    def _again(self, agent: "Agent", wanted: WantedJob, tries: int, why: str, lack: Lack) -> None:
        if tries < RETRIES and lack is not Lack.DAMAGED:
            self._world.clock.after(RETRY_S, self._try, agent, agent.life, wanted, tries + 1)
        else:
            job, epoch, now_s = wanted.job, wanted.epoch, agent.now_s()
            agent.post(FetchFailed(now_s=now_s, job=job, epoch=epoch, why=why, lack=lack))

    def _lent(self, agent: "Agent", wanted: WantedJob, source: Source) -> bool:
        """Agents send nothing but what the controller lends; of what makes up an average this host reads its own where it lies."""
        agents = self._world.agents
        if source.parts:
            return all(
                agents[part.peer.host].lends(wanted.job, part.epoch, part.generation)
                for part in source.parts
                if part.peer.host != agent.name
            )
        return agents[source.peer.host].lends(wanted.job, source.epoch, source.generation)

    def _adds_up(self, wanted: WantedJob, steps: Sequence[int]) -> None:
        """What copies did since they began is no less than it is taken to be; more, where an agent died before it heard of a copy's last steps."""
        source = wanted.source
        assert source is not None
        base = source.step - sum(part.steps for part in source.parts)
        said = [base + part.steps for part in source.parts] or steps
        if any(step < least for step, least in zip(steps, said, strict=True)):
            self._world.broken(f"copies of job {wanted.job} stand at {steps}; they are taken to be at {said}")

    def _arrived(self, agent: "Agent", life: int, wanted: WantedJob, got: Saved, tries: int) -> None:
        source = wanted.source
        if source is None or not agent.up or agent.life != life or not agent.awaits(wanted):
            return
        # Asked now: the lender may hear of it a moment after this host.
        if not self._lent(agent, wanted, source):
            self._again(agent, wanted, tries, "it is not lent there", Lack.GONE)
            return
        agent.disk.store(wanted.job, source.generation, got)
        self._tell(agent, wanted, source.generation, got.step)

    def _tell(self, agent: "Agent", wanted: WantedJob, generation: int, step: int) -> None:
        all_bytes = self._world.job_of(wanted).sim.state_bytes if generation >= 0 else 0
        agent.post(
            CheckpointFetched(
                now_s=agent.now_s(),
                job=wanted.job,
                epoch=wanted.epoch,
                generation=generation,
                step=step,
                size_bytes=share_of(all_bytes, max(1, len(wanted.nodes)), wanted.node_rank),
            )
        )
