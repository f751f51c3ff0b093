"""Which physical GPUs a new plan gets, so that the fewest jobs move (Tesserae, Algorithms 2, 3 and 5).

Turning an old node's content into a new one's costs, for each process of a job in both plans that moves out or in, 0.5 / GPUs of the job.
That is separable, but for pairs of nodes that share a job: cost = all out + all in - what stays. So only those pairs are looked at, what stays
is a sum of minima unless packed GPUs couple it, and one sparse matching takes the place of a dense one over all pairs. Nodes and GPUs
whose content is the same in both plans are matched at once: that never costs more, since what stays is a measure of common content.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hs_core import solve
from hs_core.errors import BrokenError
from hs_core.mechanism.tesserae.small import small_assignments

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FREE = -1
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Moves:
    """Node l of the new plan is physical node `node[l]`, and its GPU p is that node's GPU `gpu[l, p]`."""

    node: Ints  # (N,)
    gpu: Ints  # (N, G)
    cost: float  # migrations, those of parts of a job in proportion
    moved: Ints  # jobs in both plans whose set of GPUs changes, ascending

    def plan(self, new: Ints) -> Ints:
        """`new` (N, G, 2) on physical GPUs."""
        there = np.empty_like(new)
        there[self.node[:, None], self.gpu] = new
        return there


@dataclass(frozen=True, slots=True)
class _Plans:
    """Both plans with only the jobs that are in both, numbered from 0; FREE elsewhere, the smaller number first."""

    old: Ints  # (N, G, 2)
    new: Ints
    names: Ints  # (M,) the jobs' own numbers
    out: Floats  # (M,) what a process of the job costs that moves out: 0.5 / GPUs in the old plan
    into: Floats  # (M,)

    @property
    def kept(self) -> Floats:
        """(M + 1,) what a process that stays saves; the last: nothing, so that FREE can be an index."""
        return np.concatenate([self.out + self.into, [0.0]])


def least_moves(old: Ints, new: Ints, keep: Bools | None = None) -> Moves:
    """The cheapest renaming of nodes, and of GPUs within them, from plan `old` to plan `new`, each (N, G, 2) job numbers or FREE.

    All nodes are of one pool and one size; a job is at most once on a GPU. Nodes in `keep` (N,), such as those with a GPU out of service, keep
    their names and those of their GPUs. Consolidated jobs stay consolidated, as nodes are renamed as a whole. Raises BrokenError where
    shapes differ.
    """
    plans = _common(old, new)
    node, gpu = _names(old)
    open_ = np.arange(len(old)) if keep is None else np.flatnonzero(~keep)
    part = replace(plans, old=plans.old[open_], new=plans.new[open_])
    chosen = _matched(part)
    node[open_] = open_[chosen]
    gpu[open_] = _renamed(part.old[chosen], part.new, plans.kept)[0]
    return _moves(plans, node, gpu)


def settle(old: Ints, new: Ints, keep: Bools | None = None) -> Moves:
    """`least_moves`, unless fewer jobs move when no GPU is renamed.

    The cost counts parts of jobs, so its optimum may, rarely, touch more jobs than taking the new plan's GPUs by name.
    """
    best, plain = least_moves(old, new, keep), by_name(old, new)
    return plain if len(plain.moved) < len(best.moved) else best


def by_name(old: Ints, new: Ints) -> Moves:
    """The new plan as it stands: a job moves if its set of GPUs differs."""
    return _moves(_common(old, new), *_names(old))


def least_moves_of_gpus(old: Ints, new: Ints) -> Moves:
    """Algorithm 5: GPUs renamed freely over all nodes, for plans without packing. Jobs may end up spread over nodes.

    Every GPU counts as a node of its own: `node` of the answer is (N * G,), from GPU 0 of node 0 on.
    """
    nodes, gpus, _ = old.shape
    if (old >= 0).all(axis=-1).any() or (new >= 0).all(axis=-1).any():
        raise BrokenError("a plan has two jobs on one GPU; matching single GPUs takes plans without packing")
    return least_moves(old.reshape(nodes * gpus, 1, 2), new.reshape(nodes * gpus, 1, 2))


def _common(old: Ints, new: Ints) -> _Plans:
    if old.shape != new.shape or old.ndim != 3 or old.shape[2] != 2:
        raise BrokenError(f"plans have shapes {old.shape} and {new.shape}; expected (nodes, GPUs, 2) both")
    names = np.intersect1d(old[old >= 0], new[new >= 0])
    parts = []
    for plan in (old, new):
        at = np.searchsorted(names, plan)
        at[at == len(names)] = 0
        known = (names[at] == plan) if len(names) else np.zeros(plan.shape, bool)
        parts.append(np.sort(np.where(known, at, FREE), axis=2))
    gpus = [np.bincount(part[part >= 0], minlength=len(names)) for part in parts]
    return _Plans(parts[0], parts[1], names, 0.5 / gpus[0], 0.5 / gpus[1])


def _worth(plan: Ints, each: Floats) -> float:
    return float(each[plan[plan >= 0]].sum())


def _counts(plan: Ints) -> tuple[Ints, Ints, Ints]:
    """(node, job, processes), sorted by job."""
    node, _, _ = np.nonzero(plan >= 0)
    key, count = np.unique(plan[plan >= 0] * len(plan) + node, return_counts=True)
    return key % len(plan), key // len(plan), count


def _joined(left: Ints, right: Ints, keys: int) -> tuple[Ints, Ints]:
    """All (i, j) with left[i] == right[j]; both sorted, values below `keys`."""
    many = np.bincount(right, minlength=keys)
    begin = np.concatenate([[0], np.cumsum(many)])[left]
    width = many[left]
    i = np.repeat(np.arange(len(left)), width)
    step = np.arange(len(i)) - np.repeat(np.cumsum(width) - width, width)
    return i, begin[i] + step


def _summed(at: Ints, to: Ints, values: Floats, nodes: int) -> tuple[Ints, Floats]:
    """Keys at * nodes + to, ascending, and the sum of values of each."""
    keys, inverse = np.unique(at * nodes + to, return_inverse=True)
    return keys, np.bincount(inverse, values, len(keys)).astype(float)


def _stays(plans: _Plans) -> tuple[Ints, Floats]:
    """Pairs of nodes that share jobs, as old * N + new, and what stays when one becomes the other."""
    nodes, jobs = len(plans.old), len(plans.names)
    from_node, from_job, from_count = _counts(plans.old)
    to_node, to_job, to_count = _counts(plans.new)
    i, j = _joined(from_job, to_job, jobs)
    most = np.minimum(from_count[i], to_count[j]) * plans.kept[from_job[i]]
    pairs, stays = _summed(from_node[i], to_node[j], most, nodes)
    packed_from: Bools = np.any(np.all(plans.old >= 0, axis=2), axis=1)
    packed_to: Bools = np.any(np.all(plans.new >= 0, axis=2), axis=1)
    # With two jobs on a GPU not all minima can be had at once.
    coupled = np.flatnonzero(packed_from[pairs // nodes] | packed_to[pairs % nodes])
    if len(coupled):
        at, to = pairs[coupled] // nodes, pairs[coupled] % nodes
        stays[coupled] = _renamed(plans.old[at], plans.new[to], plans.kept)[1]
    return pairs, stays


def _matched(plans: _Plans) -> Ints:
    """(N,) the old node of each new one."""
    nodes = len(plans.old)
    node = np.full(nodes, FREE, np.int64)
    from_, to = _alike(plans)
    node[to] = from_
    rows, columns = np.delete(np.arange(nodes), from_), np.flatnonzero(node == FREE)
    pairs, stays = _stays(replace(plans, old=plans.old[rows], new=plans.new[columns]))
    some = np.flatnonzero(stays > TINY)
    entries = solve.Entries(
        pairs[some] // max(len(rows), 1),
        pairs[some] % max(len(rows), 1),
        stays[some],
        (len(rows), len(columns)),
    )
    got, want = solve.match(entries)
    node[columns[want]] = rows[got]
    # Who shares nothing keeps its name where it can.
    open_ = np.ones(nodes, bool)
    open_[node[node != FREE]] = False
    same = np.flatnonzero((node == FREE) & open_)
    node[same] = same
    open_[same] = False
    node[node == FREE] = np.flatnonzero(open_)
    return node


def _alike(plans: _Plans) -> tuple[Ints, Ints]:
    """Old and new nodes of the same content, one to one; nodes with nothing on them are left out."""
    nodes = len(plans.old)
    both = np.concatenate([plans.old, plans.new])
    content = np.sort(both[..., 0] * (len(plans.names) + 1) + both[..., 1], axis=1)
    kind = np.unique(content, axis=0, return_inverse=True)[1].reshape(-1)
    # Empty nodes are alike to nobody: a kind of their own each.
    kind = np.where(np.any(_busy(both), axis=1), kind, len(kind) + np.arange(len(kind)))
    old, new = (part * nodes + _ranks(part) for part in (kind[:nodes], kind[nodes:]))
    _, from_, to = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    return from_, to


def _ranks(values: Ints) -> Ints:
    """How many equal ones stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - first
    return ranks


def _renamed(old: Ints, new: Ints, kept: Floats) -> tuple[Ints, Floats]:
    """For P pairs of nodes (P, G, 2): the old GPU of each new one (P, G), and what stays (P,)."""
    pairs, gpus, _ = old.shape
    base = len(kept)
    was, is_ = old[..., 0] * base + old[..., 1], new[..., 0] * base + new[..., 1]
    before = np.tri(gpus, k=-1, dtype=bool)
    rank_was = ((was[:, :, None] == was[:, None, :]) & before).sum(axis=2)
    rank_is = ((is_[:, :, None] == is_[:, None, :]) & before).sum(axis=2)
    # Alike first: [new GPU, old GPU]; empty ones wait until the end.
    alike = (is_[:, :, None] == was[:, None, :]) & (rank_is[:, :, None] == rank_was[:, None, :])
    alike &= _busy(new)[:, :, None]
    source = np.where(np.any(alike, axis=2), alike.argmax(axis=2), FREE)
    saved = np.where(source >= 0, kept[new].sum(axis=2), 0.0).sum(axis=1)
    used: Bools = np.any(alike, axis=1)
    rest = np.flatnonzero(np.any((source < 0) & _busy(new), axis=1) & np.any(~used & _busy(old), axis=1))
    if len(rest):
        common = _common_content(old[rest], new[rest], kept)
        common[source[rest] >= 0] = 0.0
        common *= ~used[rest][:, None, :]
        _matched_rest(common, rest, source, saved)
    used = np.zeros((pairs, gpus), bool)
    at, to = np.nonzero(source >= 0)
    used[at, source[at, to]] = True
    # Both lists have the same length in each pair, in the same order of pairs.
    source[source < 0] = np.nonzero(~used)[1]
    return source, saved


def _busy(plans: Ints) -> Bools:
    """(…, 2) → (…) whether there is any job on a GPU."""
    found: Bools = np.any(plans >= 0, axis=-1)
    return found


def _common_content(old: Ints, new: Ints, kept: Floats) -> Floats:
    """(P, G, G) what stays when an old GPU becomes a new one: [new, old]."""
    worth = kept[new]
    found = np.zeros((len(old), old.shape[1], old.shape[1]))
    for slot in range(2):
        for other in range(2):
            same = (new[:, :, None, slot] == old[:, None, :, other]) & (new[:, :, None, slot] >= 0)
            found += worth[:, :, None, slot] * same
    return found


def _matched_rest(common: Floats, rest: Ints, source: Ints, saved: Floats) -> None:
    """Matches in `common` (of pairs `rest`) into `source` and `saved`: at once where nobody has a choice, else by assignments."""
    some = common > 0
    plain = (some.sum(axis=1) <= 1).all(axis=1) & (some.sum(axis=2) <= 1).all(axis=1)
    at, new, old = np.nonzero(some & plain[:, None, None])
    source[rest[at], new] = old
    np.add.at(saved, rest[at], common[at, new, old])
    hard = np.flatnonzero(~plain & np.any(some, axis=(1, 2)))
    if not len(hard):
        return
    chosen = small_assignments(common[hard])
    got = np.take_along_axis(common[hard], chosen[..., None], axis=2)[..., 0]
    at, new = np.nonzero(got > 0)
    source[rest[hard[at]], new] = chosen[at, new]
    np.add.at(saved, rest[hard[at]], got[at, new])


def _names(plan: Ints) -> tuple[Ints, Ints]:
    """Nodes and GPUs as they are called."""
    nodes, gpus, _ = plan.shape
    return np.arange(nodes), np.tile(np.arange(gpus), (nodes, 1))


def _moves(plans: _Plans, node: Ints, gpu: Ints) -> Moves:
    there = plans.old[node[:, None], gpu]
    stays = np.any(plans.new[..., None] == there[:, :, None, :], axis=3) & (plans.new >= 0)
    kept = np.bincount(plans.new[stays], minlength=len(plans.names))
    total = _worth(plans.old, plans.out) + _worth(plans.new, plans.into)
    cost = max(0.0, total - float(kept @ plans.kept[:-1]))
    moved = (kept < np.rint(0.5 / plans.into)) | (plans.out != plans.into)
    return Moves(node, gpu, 0.0 if cost < TINY * len(kept) else cost, plans.names[moved])
