"""Whose GPUs are whose by what is modelled, and who is charged for them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hs_core.names import JobId
from hs_sim.machines.part import Part
from hs_sim.machines.truth import JobTruth

if TYPE_CHECKING:
    from hs_sim.machines.world import World


class Holding:
    """Of one incarnation."""

    def __init__(self, world: "World", who: tuple[JobId, int, int], job: JobTruth) -> None:
        """`who`: its job, epoch and copy."""
        self._world = world
        self._who = who
        self._job = job

    def begins(self, part: Part) -> None:
        """Its GPUs are its own."""
        if part.occupied_s is None:
            part.occupied_s = self._world.clock.now_s
            self._world.occupied[part] = None
            self._world.speeds.holds(part)

    def use(self, parts: Iterable[Part]) -> None:
        """Now that all are let go they compute; until then they stand, whoever has the GPUs."""
        for part in parts:
            if not part.frozen:
                self._world.truth.occupy(part.gpus, self._who, self._world.clock.now_s)
                self._world.speeds.shared(part)

    def ends(self, part: Part) -> None:
        if part.occupied_s is not None:
            self.charge(part)
            part.occupied_s = None
            self._world.occupied.pop(part, None)
        self._world.speeds.leaves(part)

    def charge(self, part: Part) -> None:
        """Up to now."""
        if part.occupied_s is None:
            return
        now_s, job, model = self._world.clock.now_s, self._job, part.agent.model
        gpu_s = (now_s - part.occupied_s) * part.share
        job.gpu_s[model] = job.gpu_s.get(model, 0.0) + gpu_s
        part.occupied_s = now_s
