"""Hadar's Algorithm 2 as it is written: what the greedy loop is held against."""

from functools import cache

import numpy as np

from hs_core.mechanism import hadar
from hs_core.mechanism.hadar_servers import Servers
from hs_core.mechanism.prices import Ints, Jobs, Utility, effective_throughput, prices


def recursive(
    jobs: Jobs, capacity: Ints, *, utility: Utility | None = None, terms: hadar.Terms | None = None
) -> hadar.Decision:
    """Algorithm 2 as written: each job in turn taken or not, memoized over (job, state of the servers), largest total payoff."""
    terms = terms or hadar.Terms()
    utility = utility or effective_throughput(jobs)
    count = len(jobs.workers)
    price = prices(jobs, capacity, utility, terms.round_s)
    table = hadar._table(jobs, hadar.NOBODY, utility, terms)

    @cache
    def best(job: int, taken: tuple[tuple[int, ...], ...]) -> tuple[float, tuple[hadar.Choice, ...]]:
        if job == count:
            return 0.0, ()
        without = best(job + 1, taken)
        servers = Servers.of(capacity, np.array(taken, np.int64).reshape(capacity.shape), price)
        found = hadar.Auction(servers, table, [other == job for other in range(count)]).best()
        if found is None or found.payoff <= 0:
            return without
        servers.take(found.picks)
        rest = best(job + 1, tuple(tuple(row) for row in servers.taken))
        total = found.payoff + rest[0]
        return (total, (found, *rest[1])) if total > without[0] else without

    _, chosen = best(0, tuple((0,) * capacity.shape[1] for _ in range(len(capacity))))
    return hadar._decision(chosen, count)
