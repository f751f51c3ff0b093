"""Free GPUs of a cluster that fills, at prices that rise with it: the cheapest ones for a gang (Hadar, Algorithm 2, FIND_ALLOC)."""

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hs_core.errors import BrokenError
from hs_core.mechanism.prices import Ints, Prices

State = tuple[tuple[int, int], ...]  # of a server: (capacity, taken) of each type
Pick = tuple[int, int, int]  # server, type, GPUs
Unit = tuple[float, int, int, int]  # price, rank of the type among those asked for, type, GPUs


@dataclass(frozen=True, slots=True)
class Offer:
    cost: float
    picks: tuple[Pick, ...]

    @property
    def servers(self) -> int:
        return len({server for server, _, _ in self.picks})


@dataclass(slots=True)
class Servers:
    """Free GPUs and their prices. Servers in the same state are interchangeable, so all work is by state."""

    capacity: list[tuple[int, ...]]
    taken: list[list[int]]
    prices: Prices
    _by_state: dict[State, list[int]] = field(default_factory=dict)
    _price: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for server in range(len(self.capacity)):
            self._by_state.setdefault(self._state(server), []).append(server)

    @staticmethod
    def of(capacity: Ints, taken: Ints, prices_: Prices) -> "Servers":
        return Servers([tuple(row) for row in capacity.tolist()], taken.tolist(), prices_)

    def _state(self, server: int) -> State:
        return tuple(zip(self.capacity[server], self.taken[server], strict=True))

    def price(self, kind: int, capacity: int, taken: int) -> float:
        key = (kind, capacity, taken)
        if key not in self._price:
            least, most = float(self.prices.least[kind]), float(self.prices.most[kind])
            self._price[key] = least * (most / least) ** (taken / capacity)
        return self._price[key]

    def cost(self, picks: Sequence[Pick]) -> float:
        """At today's prices; inf where not all are free."""
        total = 0.0
        for server, kind, gpus in picks:
            capacity, taken = self.capacity[server][kind], self.taken[server][kind]
            if capacity - taken < gpus:
                return np.inf
            total += gpus * self.price(kind, capacity, taken)
        return total

    def take(self, picks: Sequence[Pick]) -> None:
        for server, kind, gpus in picks:
            old = self._by_state[self._state(server)]
            old.remove(server)
            if not old:
                del self._by_state[self._state(server)]
            self.taken[server][kind] += gpus
            if self.taken[server][kind] > self.capacity[server][kind]:
                raise BrokenError(f"server {server} has fewer GPUs of type {kind} than were handed out")
            insort(self._by_state.setdefault(self._state(server), []), server)

    def offers(self, kinds: Sequence[int], gpus: int, nodes: int = 0) -> tuple[Offer, ...]:
        """The cheapest GPUs of these types: in the fewest servers, and anywhere. At equal price the type named first.

        `nodes`: on so many servers, as many on each.
        """
        if nodes:
            each = self._each(kinds, gpus // nodes, nodes)
            return () if each is None else (each,)
        together, apart = self._together(kinds, gpus), self._anywhere(kinds, gpus)
        found = tuple(offer for offer in (together, apart) if offer is not None)
        return found[:1] if len(found) == 2 and found[0].cost <= found[1].cost else found

    def _units(self, state: State, kinds: Sequence[int]) -> list[Unit]:
        """What a server has free, cheapest first."""
        found = []
        for rank, kind in enumerate(kinds):
            capacity, taken = state[kind]
            if capacity > taken:
                found.append((self.price(kind, capacity, taken), rank, kind, capacity - taken))
        found.sort()
        return found

    def _together(self, kinds: Sequence[int], gpus: int) -> Offer | None:
        rooms: list[tuple[int, float, int, int, list[Unit]]] = []
        best: tuple[float, int, int, list[Unit]] | None = None
        for state, servers in self._by_state.items():
            units = self._units(state, kinds)
            room = sum(unit[3] for unit in units)
            if room >= gpus:
                taken = list(_first(units, gpus))
                cost, ranks = (
                    sum(unit[0] * unit[3] for unit in taken),
                    sum(unit[1] * unit[3] for unit in taken),
                )
                if best is None or (cost, ranks, servers[0]) < best[:3]:
                    best = (cost, ranks, servers[0], taken)
            elif best is None and room:
                some = servers[: -(-gpus // room)]
                rooms.extend((-room, *units[0][:2], server, units) for server in some)
        if best is not None:
            return Offer(best[0], tuple((best[2], kind, count) for _, _, kind, count in best[3]))
        # No server holds all: the emptiest first, which makes them the fewest.
        rooms.sort(key=lambda room: room[:4])
        picks: list[Pick] = []
        total, rest = 0.0, gpus
        for room, _, _, server, units in rooms:
            for price, _, kind, count in _first(units, min(rest, -room)):
                picks.append((server, kind, count))
                total += price * count
            rest -= min(rest, -room)
            if not rest:
                return Offer(total, tuple(picks))
        return None

    def _each(self, kinds: Sequence[int], gpus: int, nodes: int) -> Offer | None:
        rooms: list[tuple[float, int, int, tuple[Unit, ...]]] = []
        for state, servers in self._by_state.items():
            units = self._units(state, kinds)
            if sum(unit[3] for unit in units) >= gpus:
                taken = tuple(_first(units, gpus))
                cost = sum(unit[0] * unit[3] for unit in taken)
                ranks = sum(unit[1] * unit[3] for unit in taken)
                rooms.extend((cost, ranks, server, taken) for server in servers[:nodes])
        if len(rooms) < nodes:
            return None
        rooms.sort(key=lambda room: room[:3])
        picks = [(server, kind, count) for *_, server, taken in rooms[:nodes] for _, _, kind, count in taken]
        return Offer(sum(room[0] for room in rooms[:nodes]), tuple(picks))

    def _anywhere(self, kinds: Sequence[int], gpus: int) -> Offer | None:
        units = [
            (price, rank, servers[0], kind, free, servers)
            for state, servers in self._by_state.items()
            for price, rank, kind, free in self._units(state, kinds)
        ]
        units.sort(key=lambda unit: unit[:3])
        picks: list[Pick] = []
        total, rest = 0.0, gpus
        for price, _, _, kind, free, servers in units:
            for server in servers:
                count = min(free, rest)
                picks.append((server, kind, count))
                total += price * count
                rest -= count
                if not rest:
                    return Offer(total, tuple(picks))
        return None


def _first(units: Sequence[Unit], gpus: int) -> Iterator[Unit]:
    for price, rank, kind, free in units:
        if not gpus:
            return
        yield price, rank, kind, min(free, gpus)
        gpus -= min(free, gpus)
