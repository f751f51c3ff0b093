"""What users are entitled to, added up over time: only so can it be said whether one who came a minute ago lacks anything."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from hs_controller.rows import Account


class Dues:
    """Mutable; no clock. GPU-seconds of each account, of which there are some more the later it is asked."""

    def __init__(self) -> None:
        self._gpus: Mapping[Account, float] = MappingProxyType({})
        self.since_s = 0.0
        """When that began to count."""
        self._gpu_s: dict[Account, float] = {}

    @property
    def accounts(self) -> AbstractSet[Account]:
        """Of which there is something to take, or will be."""
        return self._gpu_s.keys() | self._gpus.keys()

    def entitle(self, gpus: Mapping[Account, float], now_s: float) -> None:
        """From now on. The very same mapping says nothing new."""
        if gpus is not self._gpus:
            self._add_up(now_s)
            self._gpus = gpus

    def _add_up(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self.since_s)
        for account, gpus in self._gpus.items():
            if gpus > 0:
                self._gpu_s[account] = self._gpu_s.get(account, 0.0) + gpus * passed_s
        self.since_s = now_s

    def take(self, now_s: float) -> Mapping[Account, float]:
        """All that has come together until now, which it counts no longer."""
        self._add_up(now_s)
        taken, self._gpu_s = self._gpu_s, {}
        return taken

    def untaken(self, account: Account, now_s: float) -> float:
        passed_s = max(0.0, now_s - self.since_s)
        return self._gpu_s.get(account, 0.0) + self._gpus.get(account, 0.0) * passed_s
