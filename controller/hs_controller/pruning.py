"""What is too old to be kept: now and then it is taken out of the journal, some of it at a time."""

import contextlib

from hs_controller.clock import Clock
from hs_controller.config import Config
from hs_controller.mind import KEYS_KEPT, KEYS_KEPT_S
from hs_controller.outdated import Kept
from hs_controller.sqlite import StoreUnavailableError
from hs_controller.store import Store
from hs_core.cluster import ClusterMachine

EVERY_S = 60.0
AGAIN = 3  # times as long as it took, from its beginning, where there is more: jobs may be submitted and cancelled by the thousand a second
FINE_S = 7200.0  # usage is kept sample by sample for so long
DAY_S = 86_400.0


class Pruning:
    def __init__(self, store: Store, config: Config, clock: Clock) -> None:
        self._store, self._config, self._clock = store, config, clock
        self.last_s = clock.now_s()
        self._next_in_s = EVERY_S  # after that

    async def look(self, machine: ClusterMachine) -> None:
        """Whether it is due. Ended jobs that live ones wait for stay, however old they are."""
        now_s, config = self._clock.now_s(), self._config
        if now_s - self.last_s < self._next_in_s:
            return
        self.last_s, self._next_in_s = now_s, EVERY_S
        kept = Kept(
            events=config.event_limit,
            deeds=config.deed_limit,
            ended=config.ended_limit,
            awaited=machine.awaited,
            requests=KEYS_KEPT,
            requests_before_s=now_s - KEYS_KEPT_S,
            fine_before_s=now_s - FINE_S,
            coarse_before_s=now_s - config.usage_days * DAY_S,
        )
        with contextlib.suppress(StoreUnavailableError):  # the next commit says so
            more = await self._store.write(lambda journal: journal.prune(kept))
            if more:
                self._next_in_s = min(EVERY_S, AGAIN * (self._clock.now_s() - now_s))
