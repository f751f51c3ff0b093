"""By what jobs weigh until the next edge: what was decided of users' shares at the one before.

Who comes within a quantum is placed at once. What follows for others (trades, amends, who is better off elsewhere) is decided at the quantum's end,
once for all who have come and gone in it, and until then jobs weigh as they did. Of users who had no share in a pool it is what they are entitled to there.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hs_core.mechanism.job_weights import Factors, Shares
from hs_core.mechanism.world import At


def dump(mended: Shares, fits: Shares, factors: Factors) -> dict[str, Any]:
    """JSON-able. GPUs with amends made, and fitted to homes; and what the latter are multiplied with."""
    others = {at: share for at, share in fits.items() if share is not mended.get(at)}
    return {"mended": _by_pool(mended), "fits": _by_pool(others), "factors": _by_pool(factors)}


def weighed_anew(kept: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    """As `dump` gave it, with other factors."""
    return {**kept, "factors": _by_pool(factors)}


def load(kept: Mapping[str, Any], entitled: Shares) -> tuple[Shares, Shares, Factors]:
    """What `dump` was given. `entitled`: now."""
    mended = {**entitled, **_by_user(kept.get("mended", {}))}
    return mended, {**mended, **_by_user(kept.get("fits", {}))}, _by_user(kept.get("factors", {}))


def _by_pool(numbers: Mapping[At, Fraction]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for (user, model), number in numbers.items():
        found.setdefault(model, {})[user] = [*number.as_integer_ratio()]
    return found


def _by_user(kept: Mapping[str, Any]) -> dict[At, Fraction]:
    return {
        (user, model): Fraction(*ratio) for model, ratios in kept.items() for user, ratio in ratios.items()
    }
