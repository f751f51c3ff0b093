"""PAL (SC'24): GPUs of one model are not equally fast; who feels it most gets the even ones, weighed against spreading over servers.

A GPU's score says how much longer a step of some class of jobs takes on it than on the middling one (1.0). A gang waits for its slowest member, and
for the network where it is spread: its slowdown is the worst score times the penalty for spreading. Each job gets the least slowdown that is left;
the paper walks a table of (locality, score) combinations in order of that product, which finds the same. A gang has equally many GPUs on each of its servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_BINS = 6
STEPS = 100
SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """G GPUs of one model; C classes of jobs."""

    host: Ints  # G: which server
    score: Floats  # C x G: time of a step over that on the middling GPU; best binned
    free: Bools  # G

    def __post_init__(self) -> None:
        gpus = len(self.host)
        if self.free.shape != (gpus,) or self.score.ndim != 2 or self.score.shape[1] != gpus:
            raise BrokenError(
                f"score has shape {self.score.shape}, free {self.free.shape}; expected {gpus} GPUs by host"
            )
        if not (np.isfinite(self.score).all() and (self.score > 0).all()):
            raise BrokenError("score has values that are no slowdowns; expected numbers above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A gang that is to have GPUs, and what it has now: of places that slow it equally it stays where it is."""

    gang: int
    feels: int = 0  # class of the job: row of the scores
    over: tuple[tuple[int, float], ...] = ((1, 1.0),)
    """Numbers of servers over which it may be laid, the fewest first, and what each multiplies its time by: 1 or more."""
    has: tuple[int, ...] = ()  # positions of the GPUs that it is bound to
    home: tuple[int, ...] = ()  # servers that it lives on
    started: bool = False  # leaving them is a move
    able: Bools | None = None  # G: that it may be given; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    gpus: tuple[int, ...]  # positions in the pool
    slowdown: float


def sensitive_first(pool: Pool, wants: Sequence[Want]) -> list[int]:
    """Positions of `wants`: classes that differ most between GPUs first, within a class in the order given."""
    feels = pool.score.max(axis=1) / pool.score.min(axis=1) if pool.score.size else np.ones(len(pool.score))
    return sorted(range(len(wants)), key=lambda at: (-float(feels[wants[at].feels]), at))


def large_first(pool: Pool, wants: Sequence[Want]) -> list[int]:
    """As `sensitive_first` among those with as many GPUs on one server: gangs fit together that would not in that order."""
    return sorted(sensitive_first(pool, wants), key=lambda at: -(wants[at].gang // wants[at].over[0][0]))


def place(
    pool: Pool,
    wants: Sequence[Want],
    *,
    order: Sequence[int] | None = None,
    moves: int | None = None,
) -> list[Place | None]:
    """A place for each, in the `order` of positions, by default that of `sensitive_first`; None: not enough GPUs are left.

    `wants` are who runs this round, by the order of the policy.
    `moves`: how many started ones may leave their servers; None: all.
    Among places of one slowdown: on the fewest servers, where it is, at home, where the fewest others are bound, then the server with the fewest free GPUs that suffices, so
    that large gangs find whole servers later.
    """
    free = pool.free.copy()
    held = np.zeros(len(free), np.bool_)
    for want in wants:
        held[list(want.has)] = True
    places: list[Place | None] = [None] * len(wants)
    for at in sensitive_first(pool, wants) if order is None else order:
        want = wants[at]
        even = all(nodes >= 1 and want.gang % nodes == 0 and times >= 1 for nodes, times in want.over)
        if want.gang < 1 or not even or not 0 <= want.feels < len(pool.score):
            raise BrokenError(
                f"job {at} wants {want}; expected a gang of 1 or more in equal parts, penalties of 1 or more, a class below {len(pool.score)}"
            )
        open_ = free if want.able is None else free & want.able
        if moves is not None and moves <= 0 and want.started:
            open_ = open_ & _among(want.home, int(pool.host.max(initial=-1)) + 1)[pool.host]
        held[list(want.has)] = False
        found = _best(pool.host, pool.score[want.feels], open_, held, want)
        if found is not None:
            places[at] = found
            taken = list(found.gpus)
            free[taken] = False
            if moves is not None and want.started and not set(pool.host[taken].tolist()) <= set(want.home):
                moves -= 1
    return places


def _best(host: Ints, score: Floats, free: Bools, held: Bools, want: Want) -> Place | None:
    best: Place | None = None
    for nodes, times in want.over:
        found = _within(host, score, free, held, want, nodes=nodes)
        if found is not None and (best is None or found.slowdown * times < best.slowdown - SAME):
            best = Place(gpus=found.gpus, slowdown=found.slowdown * times)
    return best


def _within(host: Ints, score: Floats, free: Bools, held: Bools, want: Want, *, nodes: int) -> Place | None:
    """The servers whose best free GPUs are the best; then as `place` says."""
    each = want.gang // nodes
    counts = np.bincount(host[free], minlength=int(host.max(initial=-1)) + 1)
    able = np.flatnonzero(counts >= each)
    if len(able) < nodes:
        return None
    here = np.flatnonzero(free & (counts[host] >= each))
    here = here[np.lexsort((here, held[here], score[here], host[here]))]
    first = np.searchsorted(host[here], able)  # of each server's, the best first
    taken = here[first[:, None] + np.arange(each)]
    away = ~_among(want.home, len(counts))[able]
    worst = np.round(score[taken[:, -1]], 9)
    best = np.lexsort((able, counts[able], held[taken].sum(axis=1), away, worst))[:nodes]
    chosen = taken[best].ravel()
    if want.has and free[list(want.has)].all() and score[list(want.has)].max() <= score[chosen].max() + SAME:
        chosen = np.array(want.has, dtype=np.int64)
    return Place(gpus=tuple(sorted(chosen.tolist())), slowdown=float(score[chosen].max()))


def _among(servers: Sequence[int], count: int) -> Bools:
    """Of so many servers: whether it is one of these."""
    found = np.zeros(count, np.bool_)
    found[[server for server in servers if server < count]] = True
    return found


def binned(score: Floats, most: int = MOST_BINS) -> Floats:
    """Scores (G) as the means of at most `most` groups (k-means of one dimension): noise between nearly equal GPUs is no reason to move anybody.

    The number of groups is the one with the best silhouette, as in the paper; GPUs that are all alike are one group.
    """
    values = np.unique(score)
    if len(values) < 2 or np.ptp(values) <= 0.01 * values.mean():
        return np.full(len(score), score.mean() if len(score) else 1.0)
    best, found = -1.0, score.astype(float)
    for count in range(2, min(most, len(values)) + 1):
        group = _means(score, count)
        quality = _silhouette(score, group)
        if quality > best + SAME:
            best = quality
            found = np.array([score[group == of].mean() for of in group])
    return found


def _means(score: Floats, count: int) -> Ints:
    """Lloyd's steps from even quantiles: the same question, the same answer."""
    middle = np.quantile(score, (np.arange(count) + 0.5) / count)
    group = np.zeros(len(score), np.int64)
    for _ in range(STEPS):
        group = np.argmin(np.abs(score[:, None] - middle[None, :]), axis=1)
        moved = np.array(
            [score[group == at].mean() if (group == at).any() else middle[at] for at in range(count)]
        )
        if np.allclose(moved, middle, rtol=0, atol=SAME):
            break
        middle = moved
    return group


def _silhouette(score: Floats, group: Ints) -> float:
    """How much nearer each is to its own group than to the next: 1 at best. From sorted sums, not from all pairs."""
    names = np.unique(group)
    if len(names) < 2:
        return -1.0
    far = np.stack([_mean_distance(score, score[group == name]) for name in names])
    own = np.searchsorted(names, group)
    size = np.bincount(own)[own]
    at = np.arange(len(score))
    inside = far[own, at] * size / np.maximum(1, size - 1)  # itself not counted
    far[own, at] = np.inf
    outside = far.min(axis=0)
    largest = np.maximum(inside, outside)
    width = np.where(
        (size > 1) & (largest > 0), (outside - inside) / np.where(largest > 0, largest, 1.0), 0.0
    )
    return float(width.mean())


def _mean_distance(points: Floats, others: Floats) -> Floats:
    ordered = np.sort(others)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    below = np.searchsorted(ordered, points)
    total = points * below - sums[below] + (sums[-1] - sums[below]) - points * (len(ordered) - below)
    mean: Floats = total / len(ordered)
    return mean
