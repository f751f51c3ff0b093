"""Allocations without a program: in some order each job whole to its best type, equal shares, and Gandiva's random pairs."""

from collections.abc import Sequence

import numpy as np

from hs_core.dice import Random
from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.question import (
    Allocation,
    Floats,
    Ints,
    Question,
    isolated_share,
)

PACKS = 1.5  # a late job joins a placed one when both together keep more than this of their speeds alone
WORTH = 1.0  # Gandiva dissolves pairs that keep less


def isolated(question: Question) -> Allocation:
    """Everybody in a cluster of its own, one J-th of this one."""
    return Allocation(alone=np.where(question.can, isolated_share(question), 0.0))


def in_order(question: Question, order: Sequence[int] | Ints, *, blocking: bool = True) -> Allocation:
    """Each job all of its time on the free type where it is fastest; of equals the first type. `order`: positions of jobs, first come first.

    `blocking`: the first whose gang fits into no type's free GPUs ends it (Gavel's FIFO); else later ones may pass it. A job that could
    run only where nothing is free, though there are GPUs elsewhere, holds up nobody. Where jobs share (`question.sharing`), those left over then join a placed job of their gang, the best first, if both keep
    more than 1.5 of their speeds alone; two to a GPU.
    """
    if sorted(order) != list(range(len(question.gang))):
        raise BrokenError(
            f"order has {len(order)} positions; expected each of {len(question.gang)} jobs once"
        )
    free = question.gpus.astype(np.int64).copy()
    alone = np.zeros(question.speed.shape)
    left: list[int] = []
    blocked = False
    for job in (int(at) for at in order):
        if not question.can[job].any():
            continue
        room = question.gang[job] <= free
        blocked = blocked or (blocking and not room.any())
        fits = question.can[job] & room
        if blocked or not fits.any():
            left.append(job)
            continue
        on = int(np.argmax(np.where(fits, question.speed[job], -1.0)))
        alone[job, on] = 1.0
        free[on] -= question.gang[job]
    if question.sharing is None:
        return Allocation(alone=alone)
    return _join(question, alone, left)


def _join(question: Question, alone: Floats, left: Sequence[int]) -> Allocation:
    pairs, rows = [], []
    for job in left:
        hosts, on = np.nonzero(
            (alone > 0) & (question.gang == question.gang[job])[:, None] & question.can[job][None, :]
        )
        kept = [together(question, job, int(host), int(at)) for host, at in zip(hosts, on, strict=True)]
        best = int(np.argmax(kept)) if kept else -1
        if best < 0 or kept[best] <= PACKS:
            continue
        host, at = int(hosts[best]), int(on[best])
        alone[host] = 0.0
        row = np.zeros(alone.shape[1])
        row[at] = 1.0
        pairs.append((min(host, job), max(host, job)))
        rows.append(row)
    if not pairs:
        return Allocation(alone=alone)
    return Allocation(alone=alone, pairs=np.array(pairs, np.int64), paired=np.stack(rows))


def together(question: Question, one: int, other: int, on: int) -> float:
    """What two jobs keep of their speeds alone when they share on that type, summed: 2 without interference; 0: they can't share."""
    assert question.sharing is not None
    kind, speed = question.sharing.kind, question.sharing.speed
    mine, yours = speed[kind[one], kind[other], on], speed[kind[other], kind[one], on]
    if not (mine > 0 and yours > 0 and question.can[one, on] and question.can[other, on]):
        return 0.0
    return float(mine / question.speed[one, on] + yours / question.speed[other, on])


def gandiva(question: Question, dice: Random, together_now: Sequence[tuple[int, int]] = ()) -> Allocation:
    """Gandiva's packing (OSDI'18) as Gavel has it: shares as if isolated while all fit; else random pairs of equal gangs, and equal time for pairs and singles.

    What a pair is worth is seen once it was together: those of before (`together_now`: positions) are kept as long as they are worth it, and a new one is whoever is drawn. A pair is worth it if it keeps 1 or more of the speeds alone, summed over all types: a low bar (0.34 on each of three), as in Gavel.
    """
    if question.sharing is None or question.gang.sum() <= question.gpus.sum():
        return isolated(question)
    pairs = [(min(pair), max(pair)) for pair in together_now if _worth(question, *pair)]
    single = sorted(set(range(len(question.gang))) - {job for pair in pairs for job in pair})
    dice.shuffle(single)
    waiting: dict[int, int] = {}  # gang → job without a partner
    for job in single:
        gang = int(question.gang[job])
        other = waiting.pop(gang, None)
        if other is None:
            waiting[gang] = job
        else:
            pairs.append((min(job, other), max(job, other)))
    paired = {job for pair in pairs for job in pair}
    units = len(question.gang) - len(pairs)
    share = question.gpus[None, :] / (units * question.gang[:, None])
    share = share / np.maximum(1.0, share.sum(axis=1, keepdims=True))
    share = np.where(question.can, share, 0.0)
    alone = np.where([[job not in paired] for job in range(len(share))], share, 0.0)
    if not pairs:
        return Allocation(alone=alone)
    rows = np.array(sorted(pairs), np.int64)
    both = [[together(question, one, other, on) > 0 for on in range(share.shape[1])] for one, other in rows]
    return Allocation(alone=alone, pairs=rows, paired=np.where(both, share[rows[:, 0]], 0.0))


def _worth(question: Question, one: int, other: int) -> bool:
    if question.gang[one] != question.gang[other]:
        return False
    kept = sum(together(question, one, other, on) for on in range(len(question.gpus)))
    return kept >= WORTH
