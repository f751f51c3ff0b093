"""Hadar (IPDPS'24): in each round jobs buy GPUs whose prices rise as they are taken; a gang may have GPUs of several models.

Departures. A gang is spread as its user allowed: over `--nodes` servers, or any number of them, with as many GPUs on each, while the paper spreads it GPU by GPU.
GPUs that are left when no job is worth its price go to those that fit all the same, most worth per GPU first: none idles.
Within a round whoever has GPUs keeps them, and nobody moves. Who has not said its steps is taken as long as the median job that has.
"""

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.hadar import Decision, Terms
from hs_core.mechanism.hadar import decide as sell
from hs_core.mechanism.market import Market, trade
from hs_core.mechanism.profiling import profiled
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    return trade(snapshot, memory, _greedily)


def _greedily(market: Market, fixed: NDArray[np.bool_], round_s: float) -> Decision:
    terms = Terms(round_s=round_s, fill=True)
    return sell(market.facts, market.capacity, held=market.held, terms=terms, fixed=fixed)


HADAR = profiled(
    Policy(
        name="hadar", needs=Needs(every_quantum=True, lengths=True, mixed=True, rounds=True), decide=decide
    )
)
