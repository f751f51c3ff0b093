"""Who is entitled to what: weighted max-min with caps, over pools newest first, and the job tickets that follow (Gandiva_fair, 2.1, 3.2).

All exact. Users of equal demand and tickets are one class, so the sort is over classes and a hundred thousand users cost
what it takes to look at them once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from hs_core.errors import BrokenError
from hs_core.model import JobId, UserName

ZERO = Fraction(0)

NEWEST_FIRST = (
    "GB300", "GB200", "B300", "B200", "GH200", "H200", "H100", "H800", "H20", "L40S", "L40", "L4", "RTX 6000 Ada", "RTX 4090",
    "A100", "A800", "A40", "A30", "A10", "A16", "A2", "RTX A6000", "RTX 3090", "T4", "RTX 2080 Ti", "Titan RTX", "V100S", "V100",
    "P100", "P40", "P4", "GTX 1080 Ti", "M60", "M40", "K80", "K40",
)  # fmt: skip
"""By generation, within one by what it does for training; the pool that jobs are offered first comes first."""

_AGE = {model.casefold(): age for age, model in enumerate(NEWEST_FIRST)}


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
    classes: dict[tuple[Fraction | int, int], list[UserName]] = {}
    weights: dict[tuple[int, int], int] = {}  # equal tickets → their number
    known: dict[int, int] = {}  # the same by identity: most users hold the same few values
    for user, demand in demands.items():
        weight = tickets[user]
        kind = known.get(id(weight))
        if kind is None:
            if weight <= 0:
                raise BrokenError(f"user {user} has {weight} tickets; expected more than 0")
            kind = known[id(weight)] = weights.setdefault(
                (weight.numerator, weight.denominator), len(weights)
            )
        if (demand, kind) in classes:
            classes[demand, kind].append(user)
        else:
            classes[demand, kind] = [user]
    entitled: dict[UserName, Fraction] = {}
    for members, share in _fill(Fraction(capacity), list(weights), classes):
        entitled.update(dict.fromkeys(members, share))
    return entitled


def _fill(
    capacity: Fraction,
    tickets: Sequence[tuple[int, int]],
    classes: Mapping[tuple[Fraction | int, int], list[UserName]],
) -> Iterable[tuple[list[UserName], Fraction]]:
    """Each class and what every member of it gets."""
    # Whole numbers throughout: demands and weights over common denominators.
    demand_unit = lcm(capacity.denominator, *{demand.denominator for demand, _ in classes})
    weight_unit = lcm(*{denominator for _, denominator in tickets})
    left = capacity.numerator * (demand_unit // capacity.denominator)
    scaled = [numerator * (weight_unit // denominator) for numerator, denominator in tickets]
    rows = [
        (demand.numerator * (demand_unit // demand.denominator), scaled[kind], members)
        for (demand, kind), members in classes.items()
    ]
    if any(demand < 0 for demand, _, _ in rows):
        raise BrokenError(f"demands of {min(demand for demand, _ in classes)} GPUs; expected 0 or more")
    weights = sum(weight * len(members) for _, weight, members in rows)
    # A correctly rounded quotient never inverts an order, it only makes ties: those are put in order exactly.
    rows.sort(key=lambda row: row[0] / row[1])
    at = 0
    while at < len(rows):
        tied = at + 1
        while tied < len(rows) and rows[tied][0] / rows[tied][1] == rows[at][0] / rows[at][1]:
            tied += 1
        group = (
            sorted(rows[at:tied], key=lambda row: Fraction(row[0], row[1]))
            if tied > at + 1
            else rows[at:tied]
        )
        for index, (demand, weight, members) in enumerate(group):
            if demand * weights > left * weight:
                shared: dict[int, Fraction] = {}
                for _, other, others in (*group[index:], *rows[tied:]):
                    if other not in shared:
                        shared[other] = Fraction(left * other, weights * demand_unit)
                    yield others, shared[other]
                return
            left -= demand * len(members)
            weights -= weight * len(members)
            yield members, Fraction(demand, demand_unit)
        at = tied


@dataclass(frozen=True, slots=True)
class Demand:
    """GPUs that a user's jobs could use in any of these pools, and in no other (pinned, or too big for its memory)."""

    user: UserName
    models: frozenset[str]
    gpus: int


Entitled = Mapping[tuple[UserName, str], Fraction]


class _Asked(NamedTuple):
    pools: list[tuple[str, int]]
    demands: list[Demand]
    tickets: dict[UserName, Fraction]


_answered: list[tuple[_Asked, Entitled]] = []
"""The newest question and its answer: from one quantum to the next demands are mostly the same."""


def entitle_pools(
    pools: Sequence[tuple[str, int]], demands: Iterable[Demand], tickets: Mapping[UserName, Fraction]
) -> dict[tuple[UserName, str], Fraction]:
    """Each pool in turn, as given (newest first): what a user is entitled to there is demand that later pools no longer see.

    Of a user's demand, what has the fewest later pools to turn to is served first.
    """
    asked = _Asked(list(pools), list(demands), dict(tickets))
    for before, answer in _answered[-1:]:
        if before == asked:
            return dict(answer)
    found = _entitle_pools(*asked)
    _answered[:] = [(asked, dict(found))]
    return found


def _entitle_pools(
    pools: Sequence[tuple[str, int]], demands: Sequence[Demand], tickets: Mapping[UserName, Fraction]
) -> dict[tuple[UserName, str], Fraction]:
    open_: dict[UserName, dict[frozenset[str], Fraction | int]] = {}
    for demand in demands:
        kinds = open_.setdefault(demand.user, {})
        kinds[demand.models] = kinds.get(demand.models, 0) + demand.gpus
    entitled: dict[tuple[UserName, str], Fraction] = {}
    for at, (model, capacity) in enumerate(pools):
        later = {name for name, _ in pools[at + 1 :]}
        wanted: dict[UserName, Fraction | int] = {}
        for user, kinds in open_.items():
            if (asked := sum(gpus for models, gpus in kinds.items() if model in models)) > 0:
                wanted[user] = asked
        for user, share in entitle(capacity, wanted, tickets).items():
            if share > 0:
                entitled[user, model] = share
                if any(model in models and not later.isdisjoint(models) for models in open_[user]):
                    _serve(open_[user], model, later, share)
    return entitled


def _serve(kinds: dict[frozenset[str], Fraction | int], model: str, later: set[str], share: Fraction) -> None:
    for models in sorted((m for m in kinds if model in m), key=lambda m: (len(m & later), sorted(m))):
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
    for job, user, model, gang in jobs:
        share, total = entitled.get((user, model), ZERO), gangs[user, model]
        part = share if gang == total else Fraction(share.numerator * gang, share.denominator * total)
        found[job] = found[job] + part if job in found else part
    return found
