"""jobTickets (Gandiva_fair, eq 3) of all jobs, made good for what their users lack (`mechanism.lags`).

Among few jobs one by one; where they are many, by the few numbers that most share.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import numpy as np

from hs_core.job_tickets import Ints, JobTickets
from hs_core.mechanism.band import NUMBERS, Band
from hs_core.mechanism.roll import Roll
from hs_core.mechanism.split import Own
from hs_core.mechanism.ticket_sums import add_up, sums
from hs_core.mechanism.weights import LEAST
from hs_core.mechanism.world import At, World
from hs_core.names import JobId

SPARSE = 64  # so many numbers for each job are counted in a table yet
_LEAST = LEAST.as_integer_ratio()

Shares = Mapping[At, Fraction]
"""GPUs that users are entitled to, pool by pool."""
Factors = Mapping[At, Fraction]
"""Of tickets; those left out: 1."""


class Fits(NamedTuple):
    """Shares, fitted to where jobs live by factors of their own (`mechanism.fitting`)."""

    shares: Shares
    factors: Factors


@dataclass(frozen=True, slots=True)
class Weighed:
    tickets: Mapping[JobId, Fraction]
    ats: Sequence[At] = ()  # where `JobTickets`: whose each of its numbers is


def weigh(world: World, fits: Fits, factors: Factors) -> Weighed:
    """The least there is for jobs whose server cannot run them just now, or whose user has no share there."""
    unable = (
        {job.id: LEAST * job.gang for job in world.jobs if job.id in world.unable} if world.unable else {}
    )
    if world.roll is not None and not unable:
        return _at_once(world, world.roll, fits, factors)
    return Weighed(tickets_of(world, fits, factors, world.gpus.keys()) | unable)


def tickets_of(world: World, fits: Fits, factors: Factors, users: Collection[At]) -> dict[JobId, Fraction]:
    """Of these users' jobs in these pools."""
    tickets: dict[JobId, Fraction] = {}
    all_bands = world.bands
    for at in users:
        if (bands := all_bands.get(at)) is None:
            continue
        by_gang = _by_gang(world, fits, factors, at, bands)
        # Most bands have few jobs: item by item they are sooner told than through what would tell many.
        for jobs in bands:
            if len(jobs.widths) == 1:
                number = by_gang[jobs.gangs[0]]
                for job_id in jobs.ids:
                    tickets[job_id] = number
            else:
                for job_id, gang in zip(jobs.ids, jobs.gangs, strict=True):
                    tickets[job_id] = by_gang[gang]
    return tickets


def _at_once(world: World, roll: Roll, fits: Fits, factors: Factors) -> Weighed:
    """The same of all jobs, where they are many: most share a few numbers, one for each user, pool and width of gangs."""
    models, whose, pool = world.models, NUMBERS.users(), world.pools_of_jobs(roll)
    there = pool >= 0
    ids, gang, owner, pool = roll.ids[there], roll.gang[there], roll.owner[there], pool[there]
    widths = np.flatnonzero(np.bincount(gang))
    shape = len(whose), len(models), len(widths)
    kinds, which = _numbered(np.ravel_multi_index((owner, pool, np.searchsorted(widths, gang)), shape))
    owners, pools, places = (numbers.tolist() for numbers in np.unravel_index(kinds, shape))
    ats = [(whose[owner], models[pool]) for owner, pool in zip(owners, pools, strict=True)]
    numbers: list[Fraction] = []
    before, over, under = ("", ""), 1, 1
    for at, gpus in zip(ats, widths[places].tolist(), strict=True):
        if at != before:
            before = at
            over, under = _per_gpu(world, fits, factors, at)
        numbers.append(_ratio(over * gpus, under))
    return Weighed(JobTickets(ids, which, numbers), ats)


def _numbered(keys: Ints) -> tuple[Ints, Ints]:
    """Those that there are, in order; and which of these each is."""
    if keys.max(initial=0) > SPARSE * keys.size:
        return np.unique(keys, return_inverse=True)
    there = np.bincount(keys) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[keys]


def _per_gpu(world: World, fits: Fits, factors: Factors, at: At) -> tuple[int, int]:
    """Tickets of a user's job in a pool for each of its GPUs: a ratio, not in lowest terms."""
    share, factor = fits.shares.get(at), factors.get(at)
    if share is not None and share.numerator:
        over, under = share.as_integer_ratio()
        under *= world.gpus[at]
        fit = fits.factors.get(at)
    else:
        (over, under), fit = _LEAST, None
    for one in (fit, factor):
        if one is not None:
            times, parts = one.as_integer_ratio()
            over, under = over * times, under * parts
    return over, under


def _by_gang(
    world: World, fits: Fits, factors: Factors, at: At, bands: Sequence[Band]
) -> Mapping[int, Fraction]:
    """Tickets of a user's jobs in a pool, by their GPUs."""
    over, under = _per_gpu(world, fits, factors, at)
    widths = bands[0].widths
    if len(bands) > 1:
        widths = widths.union(*[jobs.widths for jobs in bands[1:]])
    return {gang: _ratio(over * gang, under) for gang in widths}


@lru_cache(maxsize=1 << 15)
def _ratio(numerator: int, denominator: int) -> Fraction:
    """In lowest terms, which takes longer to find than to remember."""
    return Fraction(numerator, denominator)


# --- of a server's own jobs together ----------------------------------------------------------------------------------


def of_small(world: World, whose: Sequence[Own], tickets: Mapping[JobId, Fraction]) -> list[Fraction]:
    """Of each of these servers' jobs of one width."""
    if isinstance(tickets, JobTickets):
        return sums([ids_of_small(world, own) for own in whose], tickets)
    rounded: dict[int, int] = {}
    return [
        add_up([tickets[job] for job in _of_width(world.at[name], width)], rounded) for name, width in whose
    ]


def _of_width(band: Band, width: int) -> Iterable[JobId]:
    if len(band.widths) == 1:
        return band.ids
    return compress(band.ids, map(width.__eq__, band.gangs))


def ids_of_small(world: World, own: Own) -> Ints:
    name, width = own
    return world.at[name].by_width[width]
