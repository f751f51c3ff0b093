"""What users were entitled to and had received, moment after moment: for the page, of the last hours, since the controller runs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_controller.mind import Mind
from hs_controller.pieces import Pieces
from hs_controller.rows import Account
from hs_core.names import UserName

POINTS = 360
EVERY_S = (2.0, 20.0)  # as long as a quantum, but not shorter or longer
MOST = 24  # users that are told of at once
DIGITS = 4
LATE = 1.5  # times as many GPUs as there are: more comes of no report that is a moment late

Floats = NDArray[np.float32]


class History:
    """Mutable. Two numbers of four bytes for each user in each pool at each moment, as there may be thousands of these."""

    def __init__(self, quantum_s: float) -> None:
        self.every_s = min(EVERY_S[1], max(EVERY_S[0], quantum_s))
        self._looks = 0
        self._at_s = np.zeros(POINTS)  # by look, round and round, like all that follows
        self._row: dict[Account, int] = {}
        self._free: list[int] = []  # rows of those of whom there is nothing to tell any more
        self._entitled: Floats = np.zeros((0, POINTS), dtype=np.float32)  # GPUs, by row
        self._received: Floats = np.zeros((0, POINTS), dtype=np.float32)  # on average since the look before
        self._gpu_s: Mapping[Account, float] = {}  # that were received before the last look

    def look(self, mind: Mind, now_s: float) -> None:
        if mind.machine.looks_on:
            return  # what users are entitled to is not known: nobody is drawn as entitled to nothing
        at, entitled = self._looks % POINTS, mind.machine.entitled()
        gpu_s = {account: usage.gpu_s for account, usage in mind.ledger.totals.items()}
        since_s = max(1e-9, now_s - self._at_s[at - 1])
        self._entitled[:, at] = self._received[:, at] = 0.0
        self._at_s[at] = now_s
        for account, gpus in entitled.items():
            if gpus > 0:
                row = self._row_of(account)  # which may have made more of them
                self._entitled[row, at] = gpus
        if self._looks:
            there = Counter(gpu.model for host in mind.machine.hosts() for gpu in host.gpus)
            for account, now in gpu_s.items():
                if (grown := now - self._gpu_s.get(account, 0.0)) > 0:
                    row = self._row_of(account)
                    received, most = grown / since_s, there[account[1]]
                    # A server that was away, or the controller was, tells at once what was received meanwhile.
                    self._received[row, at] = most if 0 < LATE * most < received else received
        self._gpu_s = gpu_s
        self._looks += 1
        if at == 0:
            self._let_go()

    def _row_of(self, account: Account) -> int:
        row = self._row.get(account)
        if row is None:
            if not self._free:
                rows = len(self._entitled)
                more = np.zeros((max(8, rows), POINTS), dtype=np.float32)
                self._entitled = np.concatenate([self._entitled, more])
                self._received = np.concatenate([self._received, more])
                self._free = list(reversed(range(rows, rows + len(more))))
            row = self._row[account] = self._free.pop()
        return row

    def _let_go(self) -> None:
        there = np.maximum(self._entitled, self._received).max(axis=1).tolist()
        for account, row in list(self._row.items()):
            if not there[row]:
                del self._row[account]
                self._free.append(row)

    def _most(self) -> set[UserName]:
        """Who has and is entitled to most now, or had last."""
        at = (self._looks - 1) % POINTS
        has: dict[UserName, float] = {}
        for account, row in self._row.items():
            gpus = float(self._entitled[row, at] + self._received[row, at])
            has[account[0]] = has.get(account[0], 0.0) + gpus
        return set(sorted(has, key=lambda user: (-has[user], user))[:MOST])

    async def told(self, users: Iterable[UserName] = ()) -> dict[str, Any]:
        """A series for each user and GPU model: GPUs entitled to at each moment, and received on average since the one before.

        Of these users; of the `MOST` who have most where none is named.
        """
        wanted = set(users) or self._most()
        order = np.arange(max(0, self._looks - POINTS), self._looks) % POINTS
        accounts = sorted(account for account in self._row if account[0] in wanted)
        which = np.ix_(np.array([self._row[account] for account in accounts], dtype=np.int64), order)
        # Copies: it goes on while this is told.
        at_s, entitled, received = self._at_s[order], self._entitled[which], self._received[which]
        received[:, :1] = 0.0  # since when, nobody knows any more
        pieces, series = Pieces(), []
        for account, due, got in zip(accounts, entitled, received, strict=True):
            if due.any() or got.any():
                series.append(
                    {
                        "user": account[0],
                        "gpu_model": account[1],
                        "entitled": _rounded(due),
                        "received": _rounded(got),
                    }
                )
            await pieces.rest()
        return {"every_s": self.every_s, "at": at_s.round(3).tolist(), "series": series}


def _rounded(gpus: Floats) -> list[float]:
    found: list[float] = gpus.astype(np.float64).round(DIGITS).tolist()
    return found
