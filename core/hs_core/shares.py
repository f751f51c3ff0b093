"""Who is entitled to what: weighted max-min with caps, over pools newest first, and the job tickets that follow (Gandiva_fair, 2.1, 3.2).

All exact (`hs_core.waterline`).
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from hs_core.errors import BrokenError
from hs_core.names import JobId, UserName
from hs_core.newest import Newest
from hs_core.waterline import Waterline, fraction_of, one_by_one

ZERO = Fraction(0)
FEW = 64  # users: for no more, arrays are not worth it

NEWEST_FIRST = (
    "GB300", "GB200", "B300", "B200", "GH200", "H200", "H100", "H800", "H20", "L40S", "L40", "L4", "RTX 6000 Ada", "RTX 4090",
    "A100", "A800", "A40", "A30", "A10", "A16", "A2", "RTX A6000", "RTX 3090", "T4", "RTX 2080 Ti", "Titan RTX", "V100S", "V100",
    "P100", "P40", "P4", "GTX 1080 Ti", "M60", "M40", "K80", "K40",
)  # fmt: skip
"""By generation, within one by what it does for training; the pool that jobs are offered first comes first."""

_AGE = {model.casefold(): age for age, model in enumerate(NEWEST_FIRST)}


@lru_cache(maxsize=1024)
def pool_rank(model: str) -> tuple[int, str]:
    """Sorts pools newest first; those nobody has heard of come last, by name.

    A model is known by its own name or by a driver's longer one: "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB".
    """
    words = f" {model.casefold().replace('-', ' ')} "
    ages = [age for name, age in _AGE.items() if f" {name} " in words]
    # The longest name that occurs: an "RTX A6000" is no "A6000", an "RTX 6000 Ada" none of the others.
    age = max(ages, key=lambda age: len(NEWEST_FIRST[age])) if ages else len(NEWEST_FIRST)
    return age, model


def entitle(
    capacity: Fraction | int, demands: Mapping[UserName, Fraction | int], tickets: Mapping[UserName, Fraction]
) -> dict[UserName, Fraction]:
    """e[u] = min(D[u], λ t[u]) with λ such that the sum is min(capacity, Σ D). O(n log n)."""
    if capacity < 0:
        raise BrokenError(f"a capacity of {capacity} GPUs; expected 0 or more")
    if not demands:
        return {}
    if len(tickets) == len(demands) and [*tickets] == [*demands]:
        held = [*tickets.values()]  # most often both list the same users in the same order
    else:
        held = list(map(tickets.__getitem__, demands))
    if len(held) < FEW:
        return dict(zip(demands, one_by_one(capacity, list(demands.values()), held), strict=True))
    shares = Waterline(Fraction(capacity), demands.values(), held).shares()
    return dict(zip(demands, shares, strict=True))


class Demand(NamedTuple):
    """GPUs that a user's jobs could use in any of these pools, and in no other (pinned, or too big for its memory)."""

    user: UserName
    models: frozenset[str]
    gpus: int


Entitled = Mapping[tuple[UserName, str], Fraction]


class _Asked(NamedTuple):
    pools: list[tuple[str, int]]
    demands: list[Demand]
    tickets: dict[UserName, Fraction]


def entitle_pools(
    pools: Sequence[tuple[str, int]], demands: Iterable[Demand], tickets: Mapping[UserName, Fraction]
) -> dict[tuple[UserName, str], Fraction]:
    """Each pool in turn, as given (newest first): what a user is entitled to there is demand that later pools no longer see.

    Of a user's demand, what has the fewest later pools to turn to is served first.
    """
    return dict(_entitled(_Asked(list(pools), list(demands), dict(tickets))))


def _entitle_pools(asked: _Asked) -> Entitled:
    pools, demands, tickets = asked
    open_: dict[UserName, dict[frozenset[str], Fraction | int]] = {}
    for demand in demands:
        kinds = open_.setdefault(demand.user, {})
        kinds[demand.models] = kinds.get(demand.models, 0) + demand.gpus
    entitled: dict[tuple[UserName, str], Fraction] = {}
    for at, (model, capacity) in enumerate(pools):
        later = {name for name, _ in pools[at + 1 :]}
        wanted = {
            user: gpus for user, kinds in open_.items() if (gpus := _wanted(kinds, model)).numerator > 0
        }
        for user, share in entitle(capacity, wanted, tickets).items():
            if share.numerator > 0:
                entitled[user, model] = share
                if later:
                    _serve(open_[user], model, later, share)
    return entitled


_entitled = Newest(_entitle_pools)


def _wanted(kinds: Mapping[frozenset[str], Fraction | int], model: str) -> Fraction | int:
    """GPUs of that model that a user's jobs could use."""
    if len(kinds) == 1:  # of most users
        ((models, gpus),) = kinds.items()
        return gpus if model in models else 0
    there = [gpus for models, gpus in kinds.items() if model in models]
    return there[0] if len(there) == 1 else sum(there)


def _serve(kinds: dict[frozenset[str], Fraction | int], model: str, later: set[str], share: Fraction) -> None:
    there = [models for models in kinds if model in models]
    if all(map(later.isdisjoint, there)):
        return  # nobody asks for what is left of it
    if len(there) == 1:
        had = kinds[there[0]]
        # As had - share, reduced once: this is done for every user in every pool.
        (had_over, had_under), (over, under) = had.as_integer_ratio(), share.as_integer_ratio()
        left = had_over * under - over * had_under
        assert left >= 0, f"{share - had} GPUs of {model} are entitled beyond demand"
        kinds[there[0]] = fraction_of(left, had_under * under)
        return
    if len(there) > 1:
        there.sort(key=lambda models: (len(models & later), sorted(models)))
    for models in there:
        served = min(share, kinds[models])
        kinds[models] -= served
        share -= served
    assert share == 0, f"{share} GPUs of {model} are entitled beyond demand"


def job_tickets(
    entitled: Mapping[tuple[UserName, str], Fraction], jobs: Iterable[tuple[JobId, UserName, str, int]]
) -> dict[JobId, Fraction]:
    """Jobs as (job, user, model, gang): ticketsPerGPU[u, g] = e[u, g] / Σ gangs of u in g; jobTickets = gang times that (eqs 1, 3).

    A job on several models is there once for each.
    """
    jobs = list(jobs)
    gangs: dict[tuple[UserName, str], int] = {}
    for _, user, model, gang in jobs:
        gangs[user, model] = gangs.get((user, model), 0) + gang
    found: dict[JobId, Fraction] = {}
    known: dict[tuple[UserName, str, int], Fraction] = {}  # many jobs of a user are as wide as others
    for job, user, model, gang in jobs:
        part = known.get((user, model, gang))
        if part is None:
            share, total = entitled.get((user, model), ZERO), gangs[user, model]
            part = share if gang == total else Fraction(share.numerator * gang, share.denominator * total)
            known[user, model, gang] = part
        found[job] = found[job] + part if job in found else part
    return found
