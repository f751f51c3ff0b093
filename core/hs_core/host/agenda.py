"""Whose turn it is in which quantum of the cluster, as far as the controller said; without its word, what it said before."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import floor

from hs_core.names import JobId
from hs_core.wanted import Turn, Wanted

REMEMBERED = 16
"""Turns by quantum number. A quantum that nobody spoke of repeats the one a multiple of so many before it: servers that
heard the same turns agree, even where one of them heard fewer of them before."""

JITTER = 1e-6  # of a quantum


@dataclass(slots=True, kw_only=True)
class Agenda:
    synced: bool = False  # quanta begin when the cluster's do
    standing: Turn = field(default_factory=Turn)  # at an own cadence: until another is said
    quantum: int = 0  # the present one
    known: dict[int, Turn] = field(default_factory=dict)  # the last ones, and the next

    @property
    def without_word(self) -> bool:
        """Nobody said whose turn it is in this quantum."""
        return self.synced and self.quantum not in self.known

    def turn(self, fenced: Collection[JobId], alone: Collection[JobId] = ()) -> Turn:
        """`fenced`: jobs that do not run without the controller's word. Local sharing always goes on, and has all of those that live on this host `alone`
        where it had a say before: who came last would have no turn among those that are repeated."""
        if not self.synced:
            return self.standing
        said = self.known.get(self.quantum)
        if said is not None:
            return said
        last = max(self.known, default=self.quantum)
        before = self.known.get(last - (last - self.quantum) % REMEMBERED, Turn())
        left_out = {*fenced, *(alone if before.local else ())}
        return replace(before.among([g for g in before.gangs if g not in left_out]), local=True)

    def hear(self, wanted: Wanted, said_s: float, now_s: float) -> tuple[int, float] | None:
        """Quanta that began since the last word, and when the next one begins; None: the host keeps its own cadence.

        A message may be late, so that the next quantum (or later ones) began already, or early: then it is still the one before.
        Negative: the controller's numbers went back, it begins anew. A quantum that was begun a moment too early is not
        taken back.
        """
        self.standing = wanted.turn
        was_synced, self.synced = self.synced, wanted.edge_in_s is not None
        if wanted.edge_in_s is None:
            self.known.clear()
            return None
        next_s = said_s + wanted.edge_in_s
        passed = floor((now_s - next_s) / wanted.quantum_s + JITTER) + 1
        present, next_s = wanted.quantum + passed, next_s + passed * wanted.quantum_s
        self._remember(wanted)
        begun = present - self.quantum
        if not was_synced:
            begun = max(1, begun)
        elif begun == -1:
            return 0, next_s + wanted.quantum_s
        self.quantum = present
        return begun, next_s

    def _remember(self, wanted: Wanted) -> None:
        self.known[wanted.quantum] = wanted.turn
        self.known[wanted.quantum + 1] = wanted.turn if wanted.next_turn is None else wanted.next_turn
        last = wanted.quantum + 1
        self.known = {q: turn for q, turn in self.known.items() if last - REMEMBERED < q <= last}
