"""Jobs of a stride queue between two settlements, and where on their stride those of one kind are put: equally far apart."""

from collections.abc import Collection, Hashable, Sequence
from fractions import Fraction
from math import floor
from typing import Any, Generic, TypeVar

from hs_core.mechanism.exact import ONE
from hs_core.mechanism.phases import apart, gaps

K = TypeVar("K", bound=Hashable)


class Entry(Generic[K]):
    """A job between two settlements; `lag` is pass - virtual time, None for one that came since."""

    __slots__ = ("carry", "gang", "job", "kin", "lag", "order", "stride", "tickets")

    def __init__(self, job: K, gang: int, tickets: Fraction, order: tuple[Any, ...], kin: Hashable) -> None:
        self.job = job
        self.gang = gang
        self.tickets = tickets
        self.stride = gang / tickets
        self.order = order
        self.kin = kin
        self.carry: Fraction | None = None
        self.lag: Fraction | None = None


def kind_of(entry: Entry[Any]) -> Hashable:
    return (entry.kin, entry.gang, entry.tickets)


def space_out(alike: Sequence[Entry[Any]]) -> None:
    """Of one kind, by order. What one of them owes the others stays so."""
    phases = [entry.lag / entry.stride % 1 for entry in alike if entry.lag is not None]
    for entry, by in zip(alike, apart(phases, ONE), strict=True):
        assert entry.lag is not None
        entry.lag += by * entry.stride


def spread(entries: Collection[Entry[K]]) -> None:
    """Give every newcomer its place: what it carries, else the widest gaps between those of its kind."""
    newcomers: dict[Hashable, list[Entry[K]]] = {}
    for entry in entries:
        if entry.lag is not None:
            continue
        if entry.carry is not None:
            entry.lag = entry.carry * entry.stride
        else:
            newcomers.setdefault(kind_of(entry), []).append(entry)
    if not newcomers:
        return
    phases: dict[Hashable, list[Fraction]] = {kind: [] for kind in newcomers}
    for entry in entries:
        of = kind_of(entry)
        if entry.lag is not None and of in phases:
            phase = entry.lag / entry.stride
            phases[of].append(phase - floor(phase))
    for kind, group in newcomers.items():
        places = gaps(phases[kind], len(group), ONE)
        for entry, phase in zip(sorted(group, key=lambda e: e.order), places, strict=True):
            entry.lag = phase * entry.stride
