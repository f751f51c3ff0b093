"""Orders on their way to gangs, as `hs_agent.gangs` has them: through node 0's agent, which agrees with all of a gang or with none."""

from collections.abc import Callable
from typing import Any

from hs_sim.machines.clock import Clock
from hs_sim.machines.network import Network
from hs_sim.machines.part import Part, Way

RETRY_S = 1.0


class Orders:
    def __init__(self, clock: Clock, network: Network) -> None:
        self._clock, self._network = clock, network

    def give(self, part: Part, number: int | None, act: Callable[..., None], *args: Any) -> None:
        """To all of the gang. Until they are linked only the newest waits; what has no number does not."""
        if number is not None:
            part.newest = number
        self._order(part, number, act, args)

    def _order(self, part: Part, number: int | None, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if number is not None and number != part.newest:
            return  # a newer one was given while it waited
        if part.rank > 0 and part.gang.linked:
            # Over one connection, so in the order in which they were given.
            part.arrives_s = max(part.arrives_s, self._clock.now_s + self._network.delay_s())
            self._clock.at(part.arrives_s, self._obey, part, number, act, args)
        elif part.gang.linked:
            self._obey(part, number, act, args)
        elif part.way is not Way.GONE and number is not None:
            self._clock.after(RETRY_S, self._order, part, number, act, args)

    @staticmethod
    def _obey(part: Part, number: int | None, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if number is not None:
            part.heard = number
        act(part, *args)
