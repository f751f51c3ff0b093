"""Which pending job joins which placed one on its GPUs: a matching of largest total weight (Tesserae, Algorithm 4).

Two jobs may share if they need equally many GPUs and their weight, the sum of both normalized throughputs, is above 1. Edges at or below 1
are left out before matching, not after as in the paper: there they could win a place and then be dropped. Weights depend on classes of
jobs, so the matching is a transportation LP between classes, whose corners are whole numbers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core import solve
from hs_core.errors import BrokenError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """Placed or pending jobs in order of priority; those that must not share (priority, deadline) are left out."""

    job_class: Ints  # (n,) index into the weights
    gpus: Ints  # (n,) of the gang

    def __post_init__(self) -> None:
        if self.job_class.shape != self.gpus.shape:
            raise BrokenError(
                f"classes and GPUs have lengths {len(self.job_class)} and {len(self.gpus)}; expected one length"
            )


@dataclass(frozen=True, slots=True)
class Packing:
    placed: Ints  # (p,) indices of the placed side, ascending
    pending: Ints  # (p,) who joins them
    weight: float  # of all pairs


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Jobs of one class and gang."""

    job_class: Ints
    gpus: Ints
    count: Ints
    order: Ints  # jobs by kind, by priority within
    begin: Ints  # of each kind in `order`


def pack(placed: Side, pending: Side, weights: Floats) -> Packing:
    """`weights` (C, C): of a placed and a pending class; 0 where they don't fit together.

    Among equal jobs those of higher priority are paired first. The optimum is that of the matching over single jobs.
    """
    hosts, guests = _kinds(placed), _kinds(pending)
    weight = weights[hosts.job_class[:, None], guests.job_class]
    at, to = np.nonzero((hosts.gpus[:, None] == guests.gpus) & (weight > 1))
    if not len(at):
        return Packing(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)
    columns = np.arange(len(at))
    rows = solve.Entries(
        np.concatenate([at, len(hosts.count) + to]),
        np.concatenate([columns, columns]),
        np.ones(2 * len(at)),
        (len(hosts.count) + len(guests.count), len(at)),
    )
    answer = solve.lp(-weight[at, to], a_ub=rows, b_ub=np.concatenate([hosts.count, guests.count]))
    flow = np.rint(answer.x).astype(np.int64)
    if np.abs(answer.x - flow).max() > 1e-6:
        raise BrokenError("the transportation program's corner is not whole; expected a corner")
    left, right = _drawn(hosts, at, flow), _drawn(guests, to, flow)
    order = np.argsort(left)
    return Packing(left[order], right[order], float(flow @ weight[at, to]))


def pack_singly(weights: Floats) -> Packing:
    """The same where every pair has its own weight, (placed, pending); 0: they must not share."""
    rows, columns = solve.assign(np.where(weights > 1, weights, 0.0), most=True)
    kept = weights[rows, columns] > 1
    rows, columns = rows[kept], columns[kept]
    return Packing(rows, columns, float(weights[rows, columns].sum()))


def _kinds(side: Side) -> _Kinds:
    most = int(side.gpus.max(initial=0)) + 1
    found, inverse, count = np.unique(
        side.job_class * most + side.gpus, return_inverse=True, return_counts=True
    )
    order = np.argsort(inverse, kind="stable")
    return _Kinds(found // most, found % most, count, order, np.cumsum(count) - count)


def _drawn(kinds: _Kinds, at: Ints, flow: Ints) -> Ints:
    """The jobs of each edge, edge after edge: as many as its flow of the kind `at`, each job once."""
    by_kind = np.argsort(at, kind="stable")
    amounts = flow[by_kind]
    before = np.cumsum(amounts) - amounts
    first = np.searchsorted(at[by_kind], at[by_kind])
    start = np.empty(len(at), np.int64)
    start[by_kind] = kinds.begin[at[by_kind]] + before - before[first]
    step = np.arange(flow.sum()) - np.repeat(np.cumsum(flow) - flow, flow)
    jobs: Ints = kinds.order[np.repeat(start, flow) + step]
    return jobs
