"""Jobs that end without the controller's word even where no agent is left to end them: `hs_agent.leases` and the shims that read them."""

from typing import TYPE_CHECKING

from hs_core.model import OnPartition
from hs_core.names import JobId
from hs_core.reports import LOST, Exit
from hs_core.wanted import Wanted
from hs_sim.machines.part import Way

if TYPE_CHECKING:
    from hs_sim.machines.agent import Agent
    from hs_sim.machines.clock import Clock

EVERY_S = 2.0  # leases are written so often, and are so much longer than the agent's own patience
DIE_S = 0.2

FENCED = Exit(signal=15, why=f"{LOST}: fenced: no word from the controller, as its lease says")

Key = tuple[JobId, int]


class Leases:
    """Of one host: they lie on its disk, so they outlive its agents."""

    def __init__(self, agent: "Agent", clock: "Clock") -> None:
        self._agent, self._clock = agent, clock
        self._until_s: dict[Key, float] = {}  # by the simulation's clock
        self._jobs: frozenset[Key] = frozenset()
        self._after_s = 0.0
        self._heard_s: float | None = None
        self._written_s = float("-inf")
        self._looking = False

    def agent_died(self) -> None:
        """The next one knows what was written, and not yet whose leases it is to renew."""
        self._jobs, self._after_s, self._heard_s = frozenset(), 0.0, None
        self._written_s = float("-inf")

    def wanted(self, wanted: Wanted, late_s: float) -> None:
        jobs = frozenset((w.job, w.epoch) for w in wanted.jobs if w.spec.on_partition is OnPartition.FENCE)
        if (jobs, wanted.fence_after_s) != (self._jobs, self._after_s):
            self._jobs, self._after_s = jobs, wanted.fence_after_s
            self._written_s = float("-inf")
        self.heard(late_s)

    def heard(self, late_s: float) -> None:
        """The controller said something so long ago."""
        now_s = self._clock.now_s
        self._heard_s = max(now_s - late_s, self._heard_s or 0.0)
        if self._jobs and now_s - self._written_s >= EVERY_S:
            self._written_s = now_s
            for key in self._jobs & self._agent.parts.keys():
                self.write(key)

    def write(self, key: Key) -> None:
        """Also right before a launch."""
        if key not in self._jobs or self._heard_s is None:
            return
        if self._after_s <= 0:
            self._until_s.pop(key, None)
            return
        self._until_s[key] = self._heard_s + self._after_s + EVERY_S
        if not self._looking:
            self._looking = True
            self._clock.at(self._until_s[key], self._look)

    def _look(self) -> None:
        """What every shim does for itself."""
        self._looking = False
        for key, until_s in list(self._until_s.items()):
            part = self._agent.parts.get(key)
            if part is None or part.way is Way.GONE:
                del self._until_s[key]
            elif until_s <= self._clock.now_s:
                del self._until_s[key]
                self._clock.after(DIE_S, part.gang.end, part, FENCED)
        if self._until_s:
            self._looking = True
            self._clock.at(min(self._until_s.values()), self._look)
