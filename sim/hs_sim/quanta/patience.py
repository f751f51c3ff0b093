"""How long a change among very many jobs may wait for the next decision, where its policy says how they go on: each costs more there, and is less."""

from numpy import inf

from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.since import Since

APART_JOBS = 10_000  # for each so many a change waits for a quantum more
# The same for rates that became known: classes are many, and each is known at another time.
LEARNT_JOBS = 2_000
ENDED_JOBS = 4_000  # the same for ends: servers fill the GPUs, and what is left to do is to even out
# The same beyond the first 2,000 for ends that have left nothing idle, and users as many; and for gangs that have come where they were sent.
MANY_JOBS, EVENED_JOBS = 2_000, 400
IDLE_PART = 1024  # of all GPUs: one of so many may be idle by them


class Patience:
    """Quanta since the last decision, and what was idle in them. What is asked by `quantum` is whether that may wait for the next one. Mutable."""

    def __init__(self, fleet: Fleet, since: Since) -> None:
        self._fleet = fleet
        self._since = since
        self._gpus = int(fleet.servers.gpus.sum())
        self._decided_at = 0
        self._least_idle = inf  # GPUs

    def decided(self, quantum: int) -> None:
        self._decided_at = quantum
        self._least_idle = inf

    def age(self, quantum: int) -> int:
        return quantum - self._decided_at

    def changes(self, quantum: int) -> bool:
        return self._up_to(quantum, APART_JOBS)

    def learnt(self, quantum: int) -> bool:
        return self._up_to(quantum, LEARNT_JOBS)

    def ends(self, quantum: int, busy: int) -> bool:
        """`busy`: GPUs, in the quantum before."""
        idle = self._gpus - busy
        self._least_idle = min(self._least_idle, idle)
        if self._up_to(quantum, ENDED_JOBS):
            return True
        few = idle - self._least_idle <= self._gpus // IDLE_PART
        return few and self.arrivals(quantum) and not self._since.users_left

    def arrivals(self, quantum: int) -> bool:
        """Of jobs at homes that they were given."""
        return self.age(quantum) < max(0, len(self._fleet.live) - MANY_JOBS) // EVENED_JOBS

    def _up_to(self, quantum: int, jobs: int) -> bool:
        """For each so many of all that are here, a quantum."""
        return self.age(quantum) < len(self._fleet.live) // jobs
