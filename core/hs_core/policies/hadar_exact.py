"""Hadar's round as one program: the most effective throughput that any choice of jobs and GPU models could have.

As `hadar` otherwise, departures and all. GPU models are chosen first and servers afterwards: a gang for which the servers of its
models have no room left goes without, and what is left over goes to whoever fits.
"""

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.hadar import Decision, Terms
from hs_core.mechanism.hadar_exact import exact
from hs_core.mechanism.market import Market, trade
from hs_core.mechanism.profiling import profiled
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    return trade(snapshot, memory, _exactly)


def _exactly(market: Market, fixed: NDArray[np.bool_], round_s: float) -> Decision:
    terms = Terms(round_s=round_s)
    found = exact(market.facts, market.capacity, held=market.held, terms=terms, fixed=fixed)
    return Decision(found.holdings, found.each, found.each)


HADAR_EXACT = profiled(
    Policy(
        name="hadar-exact",
        needs=Needs(every_quantum=True, lengths=True, mixed=True, rounds=True),
        decide=decide,
    )
)
