"""When quanta begin on servers: on some as the cluster's do, with turns that come one ahead; on the others at their own cadence."""

from collections.abc import Iterator

from hs_core.cluster.contents import Contents
from hs_core.cluster.last_said import LOCAL
from hs_core.names import HostName


class Cadence:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._book = contents.book
        self._edges = contents.edges
        self._restless = contents.restless
        self._said = contents.said
        self._sent = contents.sent

    def quantum_ended(self, now_s: float) -> bool:
        """Whether an edge was reached; a Wake that only asked for something else is none."""
        was_s = self._edges.at_s
        if not self._edges.passed(now_s):
            if (
                self._edges.at_s != was_s
            ):  # the clock was set back: hosts with a common edge are told the new one
                for name in {*self._book.spanned, *self._said.in_step}:
                    self._sent.pop(name, None)
                    self._restless.add(name)
            return False
        self._contents.event.meta = True
        self._restless |= self._contents.untold
        self._said.turns, self._said.woken = self._said.planned_turns, self._said.waking
        self._restless.update(name for name, parts in self._book.spanned.items() if parts > 0)
        self._restless |= self._said.in_step
        # Also those that have no such part any more, until their own cadence costs nobody a turn that they were told of.
        self._restless.update(self.told_of_edges())
        return True

    def told_of_edges(self) -> Iterator[HostName]:
        return (name for name, last in self._sent.items() if last.edge_in_s is not None)

    def is_in_step(self, name: HostName) -> bool:
        """Its quanta begin when the cluster's do, and turns come one ahead."""
        if self._edges.at_s is None:
            return False
        return self._book.spanned.get(name, 0) > 0 or name in self._said.in_step or self._is_owed_a_turn(name)

    def _is_owed_a_turn(self, name: HostName) -> bool:
        """It has heard whose turn the next quantum is, and that is another one than is now: told at once what is decided next, it would not have it.

        Where the server's own stride has a say, who misses a turn comes first by that.
        """
        last = self._sent.get(name)
        if last is None or last.edge_in_s is None:
            return False
        here = self._book.at_host.get(name, ())
        now, then = (
            turns.get(name, LOCAL).among(here) for turns in (self._said.turns, self._said.planned_turns)
        )
        return bool(then.gangs) and not then.local and now != then
