"""The trades of a decision: found anew only where something that they go by is another than in the decision before."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from hs_core.mechanism import trade
from hs_core.mechanism.rates import Bids, Speeds
from hs_core.mechanism.world import At, World
from hs_core.newest import Own

# A market that is at rest, and what it goes by. Nothing comes of it but time.
_at_rest = Own[list[tuple[tuple[Any, ...], trade.Outcome]]](list)


def settle(
    world: World, base: Mapping[At, Fraction], speeds: Speeds, standing: Sequence[Any]
) -> trade.Outcome:
    """`standing`: trades, as `trade.dump` gave them in the decision before."""
    bids = Bids(world, speeds)
    goes_by = (base, standing, world.demands, bids.classes, speeds, world.models)
    at_rest = _at_rest()
    if at_rest and at_rest[0][0] == goes_by:
        return at_rest[0][1]
    outcome = _market(world, base, bids, standing).settle(world.models, world.snapshot.now_s)
    if outcome.at_rest:
        at_rest[:] = [(goes_by, outcome)]
    return outcome


def hold(world: World, base: Mapping[At, Fraction], speeds: Speeds, standing: Sequence[Any]) -> trade.Outcome:
    """The same without new trades: between two edges."""
    if not standing:
        return trade.Outcome((), (), {at: gpus for at, gpus in base.items() if gpus})
    return _market(world, base, Bids(world, speeds), standing).hold()


def _market(world: World, base: Mapping[At, Fraction], bids: Bids, standing: Sequence[Any]) -> trade.Market:
    return trade.Market(
        base,
        trade.load(standing),
        world.needs(),
        bids,
        awaited=bids.awaited,
        steps=bids.steps,
        within=bids.within,
    )
