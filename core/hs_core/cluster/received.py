"""GPU-seconds received by (user, GPU model) over the last while, from counters as they were reported."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from hs_core.model import UserName

Key = tuple[UserName, str]


@dataclass(slots=True)
class _Series:
    times_s: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)  # GPU-seconds up to that time


class Received:
    """Its clock only goes forward: when the wall clock is set back, time stands still here, never runs backwards."""

    def __init__(self, horizon_s: float = 3600.0, grain_s: float = 1.0) -> None:
        self._horizon_s = horizon_s
        self._grain_s = grain_s
        self._series: dict[Key, _Series] = {}
        self._clock_s = 0.0
        self._wall_s: float | None = None

    def credit(self, key: Key, gpu_s: float, now_s: float) -> None:
        clock_s = self._tick(now_s)
        series = self._series.setdefault(key, _Series([clock_s], [0.0]))
        total = series.totals[-1] + gpu_s
        if len(series.times_s) > 1 and clock_s - series.times_s[-2] < self._grain_s:
            series.times_s[-1], series.totals[-1] = clock_s, total
        else:
            series.times_s.append(clock_s)
            series.totals.append(total)
        if len(series.times_s) > 2 * self._horizon_s / self._grain_s:
            self._trim(series)

    def mean_gpus(self, window_s: float, now_s: float) -> tuple[Mapping[Key, float], float]:
        """Mean GPUs over the window, and the seconds that it really covers."""
        clock_s = self._tick(now_s)
        covered_s = min(window_s, self._horizon_s, clock_s)
        if covered_s <= 0:
            return {}, 0.0
        means = {k: self._since(s, clock_s - covered_s) / covered_s for k, s in sorted(self._series.items())}
        return means, covered_s

    def _tick(self, now_s: float) -> float:
        if self._wall_s is not None:
            self._clock_s += max(0.0, now_s - self._wall_s)
        self._wall_s = now_s
        return self._clock_s

    @staticmethod
    def _since(series: _Series, start_s: float) -> float:
        times, totals = series.times_s, series.totals
        after = bisect_right(times, start_s)
        if after == 0:
            return totals[-1] - totals[0]
        if after == len(times):
            return 0.0
        part = (start_s - times[after - 1]) / (times[after] - times[after - 1])
        at_start = totals[after - 1] + part * (totals[after] - totals[after - 1])
        return totals[-1] - at_start

    def _trim(self, series: _Series) -> None:
        keep = max(0, bisect_right(series.times_s, self._clock_s - self._horizon_s) - 1)
        del series.times_s[:keep]
        del series.totals[:keep]
