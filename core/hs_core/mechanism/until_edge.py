"""What becomes of users' shares until the next edge: what was decided about them at the one before.

Who comes within a quantum is placed at once, and shares are divided among all who are there then. What else follows from that (trades, amends, tickets
fitted to homes, who is better off elsewhere) is decided at the quantum's end, once for all who have come and gone in it; until then what was given
for amends stays a part of the share, and tickets stay scaled as they were.
"""

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

from hs_core.mechanism.job_weights import Factors, Fits, Shares
from hs_core.mechanism.world import At


def dump(entitled: Shares, fits: Fits, factors: Factors) -> dict[str, Any]:
    """JSON-able. `fits`: shares with amends made, and fitted to homes; `factors`: by which jobs weigh more or less than that."""
    mended = fits.shares
    kept = {
        "given": _by_pool({at: share for at, share in mended.items() if at not in entitled}),
        "amends": _by_pool(_ratios(mended, entitled)),
        "fits": _by_pool(fits.factors),
    }
    return weighed_anew(kept, factors)


def weighed_anew(kept: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    """As `dump` gave it, with other factors."""
    return {name: numbers for name, numbers in {**kept, "factors": _by_pool(factors)}.items() if numbers}


def load(kept: Mapping[str, Any], entitled: Shares, models: Collection[str]) -> tuple[Fits, Factors]:
    """`fits` and `factors` where users are entitled to this now. `models`: of the pools that are left."""
    given, amends, fits, factors = (
        _by_user(kept.get(name, {})) for name in ("given", "amends", "fits", "factors")
    )
    given = {(user, model): share for (user, model), share in given.items() if model in models}
    return Fits({**given, **_times(entitled, amends)}, fits), factors


def _ratios(shares: Shares, of: Shares) -> dict[At, Fraction]:
    """Where it is another share than that, by how much."""
    return {at: share / was for at, share in shares.items() if (was := of.get(at)) and share is not was}


def _times(shares: Shares, ratios: Mapping[At, Fraction]) -> Shares:
    if not ratios:
        return shares
    return {at: share * ratios[at] if at in ratios else share for at, share in shares.items()}


def _by_pool(numbers: Mapping[At, Fraction]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for (user, model), number in numbers.items():
        found.setdefault(model, {})[user] = [*number.as_integer_ratio()]
    return found


def _by_user(kept: Mapping[str, Any]) -> dict[At, Fraction]:
    return {
        (user, model): Fraction(*ratio) for model, ratios in kept.items() for user, ratio in ratios.items()
    }
