"""One stop (or save) that all ranks are to take at one step: proposed, accepted by every rank, committed, done."""

from dataclasses import dataclass, field
from typing import Literal

from hs_core.gang.bound import Bound
from hs_core.gang.crew import Crew
from hs_core.reports import Tier

MAX_MARGIN = 1 << 16


@dataclass(slots=True, kw_only=True)
class Agreement:
    id: int
    kind: Literal["stop", "save"]
    tier: Tier
    generation: int
    at_step: int
    margin: int
    was_stopped: bool  # asked of ranks that stand still: a failure leaves them standing
    whole: int  # newest generation that all ranks have written, as far as that is known; -1: none
    last_step: int = 0  # beyond it no rank goes; 0: there is none
    raised: bool = False  # a rank was past a proposal
    committed: bool = False
    accepted: set[int] = field(default_factory=set)  # ranks
    done: set[int] = field(default_factory=set)

    @property
    def leaves(self) -> bool:
        """Whoever has done it goes no further by itself."""
        return self.kind == "stop" and self.tier is Tier.CHECKPOINT

    def binds(self, bound: Bound | None) -> bool:
        """A rank that says this is still to take part in it, or has."""
        return self.leaves and self.committed and bound is not None and bound.generation == self.generation

    @property
    def can_take_back(self) -> bool:
        """In place a stop can be taken back past the commit, too: some ranks may stand already, and others never get to that step."""
        return self.kind == "stop" and not (self.committed and self.tier is Tier.CHECKPOINT)

    def is_before(self, crew: Crew) -> bool:
        """Not all ranks have got to its step, as far as they have said."""
        return any(rank.step < self.at_step for rank in crew.ranks.values())

    def propose(self, crew: Crew) -> None:
        self.accepted.clear()
        if self.last_step:
            self.at_step = min(self.at_step, self.last_step)
        crew.send_all(
            type=self.kind,
            id=self.id,
            at_step=self.at_step,
            tier=self.tier.value,
            generation=self.generation,
            whole=self.whole,
        )
        if crew.world == 1:
            # A rank alone never rejects: asking first would cost it a round trip.
            self.accept(crew, 0)

    def accept(self, crew: Crew, number: int) -> None:
        self.accepted.add(number)
        if self.accepted == crew.everyone:
            self.committed = True
            crew.send_all(type="commit", id=self.id, at_step=self.at_step)

    def propose_later(self, crew: Crew, step: int) -> None:
        """A rank is past the proposal, at `step`."""
        # What was known of the ranks may be a second old: the first reject tells, and says nothing of their speed yet.
        if self.raised:
            self.margin = min(self.margin * 2, MAX_MARGIN)
        self.raised = True
        self.at_step = max(step, self.at_step, crew.newest_step) + self.margin
        self.propose(crew)

    def propose_at(self, crew: Crew, step: int) -> None:
        """A rank stands there and goes no further."""
        self.at_step = step
        self.propose(crew)

    def check(self, crew: Crew) -> None:
        everyone = crew.everyone
        assert self.accepted <= everyone, f"accepted by strangers: {self}"
        assert not self.committed or self.accepted == everyone, f"committed without all: {self}"
        assert self.done <= everyone, f"done by strangers: {self}"
        assert not self.done or self.committed, f"done before the commit: {self}"
