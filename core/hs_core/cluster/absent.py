"""Servers of which nothing is heard: since when, and what is taken to be so of them meanwhile."""

from collections.abc import Iterable

from hs_core.names import HostName


class Absent:
    """Mutable."""

    def __init__(self) -> None:
        self.since_s: dict[HostName, float] | None = None  # None: the term has seen no event yet
        self.expected: dict[HostName, tuple[float, float]] = {}
        """From when until when they are taken to be on their way back."""
        self.unknown: set[HostName] = (
            set()
        )  # expected, and not heard of in this term: nothing need be the matter with them
        self.spared_s: dict[HostName, float] = {}  # not given up until then
        self.fenced: set[HostName] = set()  # for so long that nothing goes on there that said `fence`

    def begin(self, names: Iterable[HostName], now_s: float, lease_s: float) -> None:
        """A new term has heard of nobody: its own beginning is all that time away can be counted from."""
        self.since_s = dict.fromkeys(names, now_s)
        self.unknown = set(self.since_s)
        self.expected |= dict.fromkeys(self.since_s, (now_s, now_s + lease_s))

    def leaves(self, name: HostName, now_s: float, lease_s: float) -> None:
        assert self.since_s is not None
        self.since_s[name] = now_s
        self.expected[name] = (now_s, now_s + lease_s)

    def forget(self, name: HostName) -> None:
        """It is here, or no part of the cluster any more."""
        if self.since_s is not None:
            self.since_s.pop(name, None)
        self.expected.pop(name, None)
        self.unknown.discard(name)
        self.spared_s.pop(name, None)
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
