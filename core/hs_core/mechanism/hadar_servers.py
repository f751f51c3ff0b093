"""Free GPUs of a cluster that fills, at prices that rise with it: the cheapest ones for a gang (Hadar, Algorithm 2, FIND_ALLOC)."""

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hs_core.errors import BrokenError
from hs_core.mechanism.prices import Ints, Prices

State = tuple[tuple[int, int], ...]  # of a server: (capacity, taken) of each type
Pick = tuple[int, int, int]  # server, type, GPUs


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

    def offers(self, kinds: Sequence[int], gpus: int) -> tuple[Offer, ...]:
        """The cheapest GPUs of these types: in the fewest servers, and anywhere."""
        together, apart = self._together(kinds, gpus), self._anywhere(kinds, gpus)
        found = tuple(offer for offer in (together, apart) if offer is not None)
        return found[:1] if len(found) == 2 and found[0].cost <= found[1].cost else found

    def _units(self, state: State, kinds: Sequence[int]) -> list[tuple[float, int, int]]:
        """(price, type, free GPUs) of a server, cheapest first."""
        found = []
        for kind in kinds:
            capacity, taken = state[kind]
            if capacity > taken:
                found.append((self.price(kind, capacity, taken), kind, capacity - taken))
        found.sort()
        return found

    def _together(self, kinds: Sequence[int], gpus: int) -> Offer | None:
        rooms: list[tuple[int, float, int, list[tuple[float, int, int]]]] = []
        best: tuple[float, int, list[tuple[float, int, int]]] | None = None
        for state, servers in self._by_state.items():
            units = self._units(state, kinds)
            room = sum(unit[2] for unit in units)
            if room >= gpus:
                cost = sum(price * count for price, _, count in _first(units, gpus))
                if best is None or (cost, servers[0]) < best[:2]:
                    best = (cost, servers[0], units)
            elif best is None and room:
                rooms.append((-room, units[0][0], servers[0], units))
                rooms.extend((-room, units[0][0], server, units) for server in servers[1 : -(-gpus // room)])
        if best is not None:
            cost, server, units = best
            return Offer(cost, tuple((server, kind, count) for _, kind, count in _first(units, gpus)))
        # No server holds all: the emptiest first, which makes them the fewest.
        rooms.sort(key=lambda room: room[:3])
        picks: list[Pick] = []
        total, rest = 0.0, gpus
        for room, _, server, units in rooms:
            for price, kind, count in _first(units, min(rest, -room)):
                picks.append((server, kind, count))
                total += price * count
            rest -= min(rest, -room)
            if not rest:
                return Offer(total, tuple(picks))
        return None

    def _anywhere(self, kinds: Sequence[int], gpus: int) -> Offer | None:
        units = [
            (price, servers[0], kind, free, servers)
            for state, servers in self._by_state.items()
            for price, kind, free in self._units(state, kinds)
        ]
        units.sort(key=lambda unit: unit[:3])
        picks: list[Pick] = []
        total, rest = 0.0, gpus
        for price, _, kind, free, servers in units:
            for server in servers:
                count = min(free, rest)
                picks.append((server, kind, count))
                total += price * count
                rest -= count
                if not rest:
                    return Offer(total, tuple(picks))
        return None


def _first(units: Sequence[tuple[float, int, int]], gpus: int) -> Iterator[tuple[float, int, int]]:
    for price, kind, free in units:
        if not gpus:
            return
        yield price, kind, min(free, gpus)
        gpus -= min(free, gpus)
