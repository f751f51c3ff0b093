"""Servers' own strides: who is in which, with how many tickets."""

from collections.abc import Mapping
from fractions import Fraction
from itertools import compress
from operator import is_not

import numpy as np

from hs_core.job_tickets import JobTickets
from hs_core.names import JobId
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.ledger import as_floats
from hs_sim.quanta.rows import Floats, Ints, Rows
from hs_sim.quanta.turns import Turns


class Strides:
    """Jobs with one server are in its stride. Until some turn leaves GPUs to one of them (`keep`) nobody is, and only who would be is known. Mutable."""

    def __init__(self, fleet: Fleet, turns: Turns) -> None:
        self._fleet = fleet
        self._turns = turns
        count = len(fleet.jobs)
        self.rows = Rows(len(fleet.servers), count)
        self.kept = False
        self._would: dict[int, float | None] = {}  # be in one, as they came, and what each carries
        self._tickets: Floats = np.ones(count)  # as last told
        self._told: Mapping[JobId, Fraction] = {}  # the same, as it was said …
        self._weights: dict[JobId, Fraction] = {}  # … and of every job that anything was said of

    def comes(self, job: int, carry: float | None) -> None:
        """It lives on one server now. `carry`: what it had carried off from another."""
        if self.kept:
            self._add(job, carry)
        else:
            self._would[job] = carry

    def leaves(self, job: int) -> float | None:
        """Its server, if it is on one: what it carries. Where the policy hands out all turns, that is nothing."""
        if job in self._would:
            del self._would[job]
            return 0.0
        row = self.rows.row_of(job)
        return self.rows.remove(job, carries=bool(self._turns.local[row])) if row >= 0 else None

    def keep(self) -> None:
        """From now on some server shares GPUs out itself: with all that have come, in that order."""
        self.kept = True
        for job, carry in self._would.items():
            self._add(job, carry)
        self.rows.begin([job for job in self._would if self._fleet.started[job]])
        self._would.clear()

    def weigh(self, tickets: Mapping[JobId, Fraction]) -> None:
        if tickets is self._told or not self.kept:
            return
        self._told = tickets
        if isinstance(tickets, JobTickets):
            self._weights.clear()  # what they are told next is compared by value
            self._set_tickets(tickets.ids - 1, tickets.floats())
            return
        # Most have the very same as before.
        news = list(map(is_not, tickets.values(), map(self._weights.get, tickets)))
        changed = dict(compress(tickets.items(), news))
        if not changed:
            return
        self._weights.update(changed)
        jobs = np.fromiter(changed, dtype=np.int64, count=len(changed)) - 1
        self._set_tickets(jobs, as_floats(changed.values()))

    def _set_tickets(self, jobs: Ints, values: Floats) -> None:
        self._tickets[jobs] = values
        here = self.rows.row[jobs] >= 0
        self.rows.set_tickets(jobs[here], values[here])

    def _add(self, job: int, carry: float | None) -> None:
        fleet = self._fleet
        self.rows.add(
            job,
            fleet.home[job][0],
            int(fleet.per_node[job]),
            float(self._tickets[job]),
            kin=fleet.jobs[job].user,
            carry=carry,
        )
