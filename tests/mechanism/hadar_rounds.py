"""Rounds of Hadar's, and the best that could be made of them."""

import numpy as np
from hypothesis import strategies as st

from hs_core.mechanism.hadar import Holdings, Terms
from hs_core.mechanism.prices import Ints, Jobs

FREE = Terms(restart_s=0.0, apart=0.0)


def jobs(rates: object, workers: object, iterations: object, *, age_s: float = 0.0) -> Jobs:
    work = np.asarray(iterations, float)
    return Jobs(
        rates=np.asarray(rates, float),
        workers=np.asarray(workers),
        iterations=work,
        left=work,
        age_s=np.full(len(work), age_s),
    )


@st.composite
def cases(draw: st.DrawFn, most: int = 6) -> tuple[Jobs, Ints]:
    dice = np.random.default_rng(draw(st.integers(0, 10**6)))
    count, types, servers = (draw(st.integers(1, top)) for top in (most, 3, 4))
    rates = dice.uniform(0.5, 2, (count, types)) * np.array([4, 2, 1])[:types]
    rates[dice.random((count, types)) < 0.1] = 0
    iterations = np.exp(dice.uniform(5, 10, count))
    facts = Jobs(
        rates=rates,
        workers=dice.integers(1, 5, count),
        iterations=iterations,
        left=iterations * dice.uniform(0.1, 1, count),
        age_s=dice.uniform(0, 5000, count),
    )
    return facts, dice.integers(0, 4, (servers, types))


def whole_gangs(facts: Jobs, capacity: Ints, holdings: Holdings) -> None:
    taken = holdings.taken(*capacity.shape)
    assert (taken <= capacity).all()
    assert (holdings.gpus > 0).all()
    held = np.bincount(holdings.job, holdings.gpus, len(facts.workers))
    assert set(np.unique(held[held > 0] - facts.workers[held > 0]).tolist()) <= {0}
    assert (facts.rates[holdings.job, holdings.kind] > 0).all()


def columns(holdings: Holdings) -> list[list[int]]:
    return [column.tolist() for column in (holdings.job, holdings.server, holdings.kind, holdings.gpus)]
