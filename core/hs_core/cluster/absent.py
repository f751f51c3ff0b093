"""Servers of which nothing is heard: since when, and what is taken to be so of them meanwhile."""

from collections.abc import Iterable, Iterator

from hs_core.names import HostName

LATE_S = 1.0  # that a controller which is not held up may be with what it decides about servers that are away


class Absent:
    """Mutable. `fence_after_s`: 0: nobody is given up."""

    def __init__(self, lease_s: float, fence_after_s: float) -> None:
        self._lease_s, self._fence_after_s = lease_s, fence_after_s
        self.since_s: dict[HostName, float] | None = None  # None: the term has seen no event yet
        self.expected: dict[HostName, tuple[float, float]] = {}
        """From when until when they are taken to be on their way back."""
        self.unknown: set[HostName] = (
            set()
        )  # expected, and not heard of in this term: nothing need be the matter with them
        self.fenced: set[HostName] = set()  # for so long that nothing goes on there that said `fence`
        self._spared_s: dict[HostName, float] = {}  # not given up until then

    def begin(self, names: Iterable[HostName], now_s: float) -> None:
        """A new term has heard of nobody: its own beginning is all that time away can be counted from."""
        self.since_s = dict.fromkeys(names, now_s)
        self.unknown = set(self.since_s)
        self.expected |= dict.fromkeys(self.since_s, (now_s, now_s + self._lease_s))

    def leaves(self, name: HostName, now_s: float) -> None:
        assert self.since_s is not None
        self.since_s[name] = now_s
        self.expected[name] = (now_s, now_s + self._lease_s)

    def forget(self, name: HostName) -> None:
        """It is here, or no part of the cluster any more."""
        if self.since_s is not None:
            self.since_s.pop(name, None)
        self.expected.pop(name, None)
        self.unknown.discard(name)
        self._spared_s.pop(name, None)
        self.fenced.discard(name)

    def expect_no_more(self, now_s: float) -> tuple[bool, set[HostName]]:
        """Whether there were some of whom that was to be so by now, and who of them was never heard of. Where the clock was set back, that is at once."""
        if not self.expected:
            return False, set()
        late = [name for name, (from_s, until_s) in self.expected.items() if not from_s <= now_s < until_s]
        for name in late:
            del self.expected[name]
        silent = self.unknown.intersection(late)
        self.unknown -= silent
        return bool(late), silent

    # --- giving up --------------------------------------------------------------------------------------------------

    def deadlines(self) -> Iterator[float]:
        """When those are given up that are not back by then."""
        if self._fence_after_s > 0 and self.since_s:
            for name, since_s in self.since_s.items():
                if name not in self.fenced:
                    yield self._given_up_s(name, since_s)

    def _given_up_s(self, name: HostName, since_s: float) -> float:
        due_s = since_s + self._fence_after_s + self._lease_s
        return max(due_s, self._spared_s.get(name, due_s))

    def give_up(self, now_s: float) -> Iterator[tuple[HostName, float]]:
        """Who is, and how long it has been away: one after the other, as what is lost with one depends on who was given up before."""
        if self._fence_after_s <= 0 or not self.since_s:
            return
        for name, left_s in list(self.since_s.items()):
            since_s = min(left_s, now_s)  # the clock was set back: counted anew, never too soon
            self.since_s[name] = since_s
            if name in self._spared_s:
                self._spared_s[name] = min(self._spared_s[name], now_s + self._lease_s)
            due_s = self._given_up_s(name, since_s)
            if name in self.fenced or now_s < due_s:
                continue
            if now_s > due_s + LATE_S and name not in self._spared_s:
                # The controller stood still when it was due, or the clock was set on: who is back by now is heard first.
                self._spared_s[name] = now_s + self._lease_s
            else:
                self.fenced.add(name)
                yield name, now_s - since_s
