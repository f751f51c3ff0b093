"""From "how long each job shares with jobs of a kind" to "how long which two jobs share", with few different pairs."""

import numpy as np

from hs_core.mechanism.gavel.question import NO_PAIRS, Floats, Ints

LEAST = 1e-9  # of the time: less is nothing


def settle(kind: Ints, shared: Floats) -> tuple[Ints, Floats]:
    """`shared`: jobs x kinds x types, the time of each job beside jobs of a kind; both kinds' totals are equal, and within
    a kind no job has more than half of the total. Returns pairs (P x 2, the smaller position first) and their time (P x types).

    Jobs of both kinds are laid along a line, each as long as its time; whoever lies at the same place shares. Within a kind the
    line is laid against itself, shifted by a half. Two kinds of n and m jobs so have at most n + m - 1 pairs on a type.
    """
    types = shared.shape[2]
    members = [np.flatnonzero(kind == k) for k in range(shared.shape[1])]
    total = np.stack([shared[jobs].sum(axis=0) for jobs in members])  # kind x beside x types
    found: dict[tuple[int, int], Floats] = {}
    for a, b, on in zip(*np.nonzero(total > LEAST), strict=True):
        if a > b:
            continue
        mine = shared[members[a], b, on]
        if a == b:
            pieces = _within(members[a], mine)
        else:
            pieces = _between(members[a], mine, members[b], shared[members[b], a, on])
        for one, other, time in pieces:
            if time > LEAST:
                key = (min(one, other), max(one, other))
                found.setdefault(key, np.zeros(types))[on] += time
    if not found:
        return NO_PAIRS, np.empty((0, types))
    keys = sorted(found)
    return np.array(keys, np.int64), np.stack([found[key] for key in keys])


def _between(ones: Ints, mine: Floats, others: Ints, yours: Floats) -> list[tuple[int, int, float]]:
    # The shorter line, should rounding make a difference: nobody gets more than it was given.
    length = min(mine.sum(), yours.sum())
    ends, other_ends = np.minimum(np.cumsum(mine), length), np.minimum(np.cumsum(yours), length)
    cuts = np.unique(np.concatenate([[0.0], ends, other_ends]))
    return _pieces(cuts, ones, ends, others, other_ends)


def _within(jobs: Ints, time: Floats) -> list[tuple[int, int, float]]:
    """A pair uses both sides' time: half the line against the other half."""
    ends = np.cumsum(time)
    half = ends[-1] / 2
    cuts = np.unique(np.concatenate([[0.0], ends[ends < half], ends[ends >= half] - half, [half]]))
    pieces = _pieces(cuts, jobs, ends, jobs, ends - half)
    return [piece for piece in pieces if piece[0] != piece[1]]


def _pieces(
    cuts: Floats, ones: Ints, ends: Floats, others: Ints, other_ends: Floats
) -> list[tuple[int, int, float]]:
    middle = (cuts[1:] + cuts[:-1]) / 2
    one = ones[np.minimum(np.searchsorted(ends, middle), len(ones) - 1)]
    other = others[np.minimum(np.searchsorted(other_ends, middle), len(others) - 1)]
    return list(zip(one.tolist(), other.tolist(), np.diff(cuts).tolist(), strict=True))
