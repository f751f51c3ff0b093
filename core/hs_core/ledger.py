"""GPU-seconds received, from counters that are cumulative per (job, epoch, GPU model): repeats, losses and reordering can't charge twice.

A counter only grows, so of two reports the larger one is the newer; what a report adds is what it is above the largest seen. A lost
report is made good by the next. The windowed mean comes from a bounded ring of samples of each total.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, isfinite
from types import MappingProxyType

from hs_core.errors import BrokenError
from hs_core.names import JobId, UserName

RING = 512  # samples kept of each (user, model)
SAMPLES_PER_WINDOW = 256  # a window is not looked at closer than this


@dataclass(slots=True)
class Charge:
    """What one (job, epoch) has received of one GPU model so far, by its largest report. Mutable."""

    user: UserName
    gpu_s: float


class Ledger:
    """Mutable; no I/O, no clock. `now_s` may be any clock, as long as it is the same in all calls."""

    def __init__(
        self,
        began_s: float,
        window_s: float = 60.0,
        totals: Mapping[tuple[UserName, str], float] = MappingProxyType({}),
    ) -> None:
        """`totals`: GPU-seconds that were received before it began, and are in none of its windows."""
        if not window_s > 0:
            raise BrokenError(f"a window of {window_s} s; expected more than 0")
        self._began_s = began_s
        self._window_s = window_s
        self._charges: dict[JobId, dict[tuple[int, str], Charge]] = {}  # by epoch and model
        self._users = dict(totals)
        self._rings = {at: deque([(began_s, total)], maxlen=RING) for at, total in totals.items()}

    def report(
        self, job: JobId, epoch: int, user: UserName, model: str, *, gpu_s: float, now_s: float
    ) -> float:
        """A cumulative counter was reported, of the job's GPUs of that model; the answer is the GPU-seconds it adds (0 for what is known or absurd)."""
        if not isfinite(gpu_s) or gpu_s < 0:
            return 0.0
        charges = self._charges.get(job)
        if charges is None:
            charges = self._charges[job] = {}
        known = charges.get((epoch, model))
        if known is None:
            charges[epoch, model] = Charge(user, gpu_s)
            added = gpu_s
        else:
            if known.user != user:
                raise BrokenError(f"job {job} epoch {epoch} is charged to {known.user}; a report says {user}")
            added = gpu_s - known.gpu_s
            if added <= 0:
                return 0.0
            known.gpu_s = gpu_s
        at = (user, model)
        self._users[at] = self._users.get(at, 0.0) + added
        self._sample(at, now_s)
        return added

    def _sample(self, at: tuple[UserName, str], now_s: float) -> None:
        """Keep (time, total), thinned so that the ring spans the window."""
        total = self._users[at]
        ring = self._rings.get(at)
        if ring is None:
            ring = self._rings[at] = deque([(self._began_s, 0.0)], maxlen=RING)
        if len(ring) > 1 and (
            now_s <= ring[-1][0] or now_s - ring[-2][0] < self._window_s / SAMPLES_PER_WINDOW
        ):
            # Too close to the one before, or a wall clock that was set back: the newest total at the latest time.
            ring[-1] = (max(now_s, ring[-1][0]), total)
        else:
            ring.append((max(now_s, ring[-1][0]), total))

    def forget(self, job: JobId) -> None:
        """The job has ended and its epochs are fenced off: totals of users stay, its own counters go."""
        self._charges.pop(job, None)

    def totals(self) -> Mapping[tuple[UserName, str], float]:
        return dict(self._users)

    def covered_s(self, now_s: float, window_s: float | None = None) -> float:
        """What a mean over the window really covers: less in the beginning, or where it asks for more than the ring keeps."""
        window_s = self._window_s if window_s is None else window_s
        if not window_s > 0:
            raise BrokenError(f"a window of {window_s} s; expected more than 0")
        full = [ring[0][0] for ring in self._rings.values() if len(ring) == RING]
        return min(window_s, max(0.0, now_s - max([self._began_s, *full])))

    def received_gpus(self, now_s: float, window_s: float | None = None) -> dict[tuple[UserName, str], float]:
        """Mean GPUs of each (user, model) over the last `covered_s`."""
        covered_s = self.covered_s(now_s, window_s)
        return {
            at: self._received(at, now_s - covered_s) / covered_s if covered_s else 0.0 for at in self._users
        }

    def _received(self, at: tuple[UserName, str], start_s: float) -> float:
        """GPU-seconds since then; between two samples they came in evenly."""
        ring = list(self._rings[at])
        index = bisect_right(ring, start_s, key=lambda sample: sample[0])
        if index == len(ring):
            return 0.0
        if index == 0:
            return ring[-1][1] - ring[0][1]
        (t0, v0), (t1, v1) = ring[index - 1], ring[index]
        return ring[-1][1] - (v0 + (v1 - v0) * (start_s - t0) / (t1 - t0))

    def check(self) -> None:
        """Nothing charged is negative, and users hold what their jobs were charged (as far as those are remembered)."""
        charged: dict[tuple[UserName, str], list[float]] = {}
        for job, charges in self._charges.items():
            for (epoch, model), charge in charges.items():
                if charge.gpu_s < 0:
                    raise BrokenError(f"job {job} epoch {epoch} was charged {charge.gpu_s} GPU-seconds")
                charged.setdefault((charge.user, model), []).append(charge.gpu_s)
        for at, parts in charged.items():
            total = fsum(parts)
            if total > self._users.get(at, 0.0) + 1e-6 * (1.0 + total):
                raise BrokenError(
                    f"{at[0]} holds {self._users.get(at, 0.0)} GPU-seconds of {at[1]}, its jobs {total}"
                )
