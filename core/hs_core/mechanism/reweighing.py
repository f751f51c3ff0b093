"""Tickets between two decisions: what users lack makes their jobs heavier or lighter, and those that take turns with gangs are told."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from operator import mul
from typing import Protocol

import numpy as np

from hs_core.job_tickets import Floats, Ints, JobTickets
from hs_core.mechanism.crowd import Crowd
from hs_core.mechanism.job_weights import Factors, Fits, ids_of_small, of_small, tickets_of
from hs_core.mechanism.lags import STEPS, Lags
from hs_core.mechanism.split import Few, Key
from hs_core.mechanism.user_turns import Both
from hs_core.mechanism.world import At, World
from hs_core.names import HostName, JobId


class Scales(Protocol):
    """Of one decision. Mutable: they know what was weighed last."""

    def weigh(self, lags: Lags, told: Ints) -> Mapping[JobId, Fraction]:
        """Jobs that have other tickets than those that these factors, in steps, gave them; who takes turns has theirs from now on."""


class OneByOne:
    """Among few jobs."""

    def __init__(
        self,
        world: World,
        fits: Fits,
        tickets: Mapping[JobId, Fraction],
        table: Few | Crowd | Both,
        shared: Sequence[HostName],
    ) -> None:
        """`shared`: servers with a part of a gang over several."""
        self._world = world
        self._fits = fits
        self._tickets = tickets
        self._table = table
        self._shared = {*shared}

    def weigh(self, lags: Lags, told: Ints) -> Mapping[JobId, Fraction]:
        changed = tickets_of(self._world, self._fits, lags.factors(), lags.named(lags.steps != told))
        self._tickets = {**self._tickets, **changed}
        if self._shared or isinstance(self._table, Both):
            self._table.weigh(self._turns(changed))
        return changed

    def _turns(self, changed: Mapping[JobId, Fraction]) -> Mapping[Key, Fraction]:
        """Of those that may have turns of their own, and of small jobs that have theirs together."""
        homes = [self._world.homes[job] for job in changed]
        servers = {home[0] for home in homes if len(home) == 1 and home[0] in self._shared}
        whose = [(name, width) for name in sorted(servers) for width in self._world.at[name].widths]
        turns: dict[Key, Fraction] = {job: self._tickets[job] for job in changed}
        turns.update(zip(whose, of_small(self._world, whose, self._tickets), strict=True))
        return turns


class AtOnce:
    """Among very many, over arrays: most share a few numbers, and a factor makes others of some of these."""

    def __init__(
        self,
        world: World,
        tickets: JobTickets,
        ats: Sequence[At],
        factors: Factors,
        table: Few | Crowd | Both,
    ) -> None:
        """`ats`: whose each number of `tickets` is, with its factor in it already."""
        self._world = world
        self._tickets = tickets
        self._ats = ats
        self._factors = factors
        self._table = table
        # Of each number's user in that pool, among `Lags.whom`; the last: nowhere.
        self._place: Ints | None = None
        self._under: Ints  # factors of the numbers as they were decided, in steps

    def weigh(self, lags: Lags, told: Ints) -> Mapping[JobId, Fraction]:
        if self._place is None:
            places = {at: place for place, at in enumerate(lags.whom)}
            self._place = np.array([places.get(at, len(places)) for at in self._ats], dtype=np.int64)
            self._under = np.append(lags.steps_of(self._factors), STEPS)[self._place]
        before = self._tickets
        over, under = np.append(lags.steps, STEPS)[self._place], self._under

        def numbers() -> list[Fraction]:
            return list(map(mul, before.numbers, map(Fraction, over.tolist(), under.tolist())))

        now = JobTickets(before.ids, before.which, numbers, before.known * (over / under))
        self._tell(now)
        some = np.append(lags.steps != told, False)[self._place][before.which]
        return JobTickets(now.ids[some], now.which[some], lambda: now.numbers, now.known)

    def _tell(self, now: JobTickets) -> None:
        if isinstance(self._table, Crowd):
            if self._table.whose:
                self._table.weigh_all(self._add_up(now.known))
            return
        gangs, small = self._table.gangs, self._table.small
        has = zip(gangs, map(now.numbers.__getitem__, now.which_of(gangs).tolist()), strict=True)
        self._table.weigh({**dict(has), **dict(zip(small, of_small(self._world, small, now), strict=True))})

    def _add_up(self, known: Floats) -> Floats:
        """Tickets of all who take turns."""
        entity, which = self._members
        assert isinstance(self._table, Crowd)
        return np.bincount(entity, weights=known[which], minlength=len(self._table.whose)).astype(
            np.float64, copy=False
        )

    @cached_property
    def _members(self) -> tuple[Ints, Ints]:
        """Jobs of all who take turns: whose each is, and the number of its tickets."""
        assert isinstance(self._table, Crowd)
        jobs: list[Ints] = [
            ids_of_small(self._world, key) if isinstance(key, tuple) else np.array([key], dtype=np.int64)
            for key in self._table.whose
        ]
        entity = np.repeat(np.arange(len(jobs)), list(map(len, jobs)))
        return entity, self._tickets.which_of(np.concatenate(jobs))
