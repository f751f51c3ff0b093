"""Themis (NSDI'20): GPUs whose leases ended go to the jobs that are furthest from finish-time fairness, by an auction among those.

Departure: bids are made here from measured speeds, not by the jobs. Nobody can lie about them, so there are no hidden payments, whose
purpose that is; gangs being whole or absent, they could not be paid in GPUs either.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.finish import Lives
from hs_core.mechanism.gavel.question import Floats, Ints, Question
from hs_core.solve import Entries, ip

WORST = 0.2  # of the jobs take part: 1 - f with the paper's f = 0.8
FINE = 1e6  # steps of a bid
EFFORT = 0.5
GAP = 1e-3


class Way(StrEnum):
    NONE = "none"
    AUCTION = "auction"
    LEFT = "left over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    """Of each job (J)."""

    on: Ints  # type; -1: none
    way: tuple[Way, ...]
    rho: Floats  # before: if it waits one more lease
    bid: Floats  # rho if it gets what it gets; as before, if nothing


def waiting_rho(question: Question, lives: Lives, lease_s: float) -> Floats:
    """J: finish time over `alone_s` of a job that waits for another lease, and then has its fastest type to itself, whoever has that now."""
    fastest = question.speed.max(axis=1, initial=0.0)
    left = np.divide(lives.steps_left, fastest, out=np.full(len(fastest), np.inf), where=fastest > 0)
    rho: Floats = (lives.age_s + lease_s + left) / lives.alone_s
    return rho


def running_rho(question: Question, lives: Lives, lease_s: float) -> Floats:
    """J x T: the same for one that runs there for the lease, and then has its fastest type."""
    speed, fastest = question.speed, question.speed.max(axis=1, initial=0.0)[:, None]
    done = np.minimum(lives.steps_left[:, None], speed * lease_s)
    rest = lives.steps_left[:, None] - done
    here_s = np.divide(done, speed, out=np.full(speed.shape, lease_s), where=speed > 0)
    later = np.divide(rest, fastest, out=np.where(rest > 0, np.inf, 0.0), where=fastest > 0)
    # Until a lease ends nobody moves: what is done sooner ends sooner.
    here = np.where(rest > 0, lease_s, here_s)
    rho: Floats = np.where(
        question.can, (lives.age_s[:, None] + here + later) / lives.alone_s[:, None], np.inf
    )
    return rho


def auction(question: Question, lives: Lives, lease_s: float, *, worst: float = WORST) -> Leases:
    """`question.gpus`: free GPUs; its jobs hold none. The `worst` part of the jobs by rho (at least one) bids; winners are those who make the product
    of 1/rho largest (proportional fairness), found by CP-SAT to 0.1 %. What is left over goes to the others, the worst first, each to its fastest
    type: no GPU stays free that a job could use.
    """
    if not (0 < worst <= 1 and lease_s > 0):
        raise BrokenError(
            f"worst is {worst} and lease_s {lease_s}; expected a part in (0, 1] and seconds above 0"
        )
    if (lives.alone_s <= 0).any():
        raise BrokenError("alone_s has 0; expected seconds above 0")
    wait, run = waiting_rho(question, lives, lease_s), running_rho(question, lives, lease_s)
    able = np.flatnonzero(question.can.any(axis=1))
    order = able[np.argsort(-wait[able], kind="stable")]
    bidders = order[: max(1, int(np.ceil(worst * len(order))))]
    free = np.floor(question.gpus).astype(np.int64)
    on = np.full(len(question.gang), -1)
    on[bidders] = _winners(question, wait[bidders], run[bidders], bidders, free)
    way = np.where(on >= 0, Way.AUCTION, Way.NONE).tolist()
    for type_ in range(len(free)):
        free[type_] -= question.gang[on == type_].sum()
    for job in order:
        if not free.any():
            break
        fits = question.can[job] & (question.gang[job] <= free)
        if on[job] < 0 and fits.any():
            on[job] = int(np.argmax(np.where(fits, question.speed[job], -1.0)))
            free[on[job]] -= question.gang[job]
            way[job] = Way.LEFT
    bid = np.where(on >= 0, run[np.arange(len(on)), np.maximum(on, 0)], wait)
    return Leases(on=on, way=tuple(Way(one) for one in way), rho=wait, bid=bid)


def _winners(question: Question, wait: Floats, run: Floats, bidders: Ints, free: Ints) -> Ints:
    """A type for each bidder, or -1: the largest sum of log(rho waiting / rho running) that fits."""
    won = np.full(len(bidders), -1)
    with np.errstate(divide="ignore"):
        gain = np.log(wait)[:, None] - np.log(run)
    row, col = np.nonzero((gain > 0) & np.isfinite(gain) & (question.gang[bidders][:, None] <= free[None, :]))
    worth = np.rint(gain[row, col] * FINE).astype(np.int64)
    if not len(row):
        return won
    gang = question.gang[bidders][row]
    each = np.arange(len(row))
    matrix = Entries(
        np.concatenate([row, len(bidders) + col]),
        np.concatenate([each, each]),
        np.concatenate([np.ones(len(row)), gang]).astype(float),
        (len(bidders) + len(free), len(row)),
    )
    bound = np.concatenate([np.ones(len(bidders), np.int64), free])
    found = ip(-worth, a_ub=matrix, b_ub=bound, gap=GAP, effort=EFFORT)
    taken = found.x.astype(bool) if found is not None else _by_density(row, col, gang, worth, free)
    won[row[taken]] = col[taken]
    return won


def _by_density(row: Ints, col: Ints, gang: Ints, worth: Ints, free: Ints) -> np.ndarray:
    """Bids by worth for each GPU, as they fit."""
    left, seen = free.copy(), set[int]()
    taken = np.zeros(len(row), bool)
    for at in np.argsort(-worth / gang, kind="stable"):
        if int(row[at]) not in seen and gang[at] <= left[col[at]]:
            taken[at] = True
            seen.add(int(row[at]))
            left[col[at]] -= gang[at]
    return taken
