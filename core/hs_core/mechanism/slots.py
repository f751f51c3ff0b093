"""The GPUs of one quantum, handed out job by job: what policies that decide every turn themselves are made of."""

from collections.abc import Mapping

from hs_core.events import Turn
from hs_core.mechanism.placing import best_fit, by_arrival, is_lost, settled_homes, weigh, why_nowhere
from hs_core.model import HostName, JobId
from hs_core.policy import JobFacts, Memory, Plan, Snapshot, Verdict


class Slots:
    """Homes and turns while they are being made. A home, once given, stays (nothing moves yet)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._hosts = {host.name: host for host in snapshot.hosts}
        self._homes = settled_homes(snapshot)
        self._free = {host.name: host.gpus for host in snapshot.hosts}
        self._gangs: dict[HostName, list[JobId]] = {name: [] for name in self._hosts}
        self._in_turn: set[JobId] = set()
        # What cannot be suspended comes first. Nobody can tell a server that is away anything: what ran there goes on.
        for job in sorted(snapshot.jobs, key=by_arrival):
            if job.running and not self.reachable(job):
                self._take(job, self._homes.get(job.id))
        for job in sorted(snapshot.jobs, key=by_arrival):
            if job.started and job.running and not job.sliceable:
                self._take(job, self._homes.get(job.id))

    def reachable(self, job: JobFacts) -> bool:
        """Not so if its home is away: it is neither offered GPUs nor in anybody's way."""
        home = self._homes.get(job.id)
        return self._hosts[home].connected if home is not None else not is_lost(job, self._snapshot)

    def runs(self, job: JobFacts) -> bool:
        return job.id in self._in_turn

    def fits_now(self, job: JobFacts) -> bool:
        return self._where(job) is not None

    def offer(self, job: JobFacts) -> bool:
        """Give the job its GPUs for this quantum, at home or wherever it fits best; False if there are none."""
        if self.runs(job):
            return True
        return self._take(job, self._where(job))

    def _where(self, job: JobFacts) -> HostName | None:
        home = self._homes.get(job.id)
        if not self.reachable(job):
            return None
        if home is None:
            return best_fit(job, self._snapshot.hosts, self._free)
        return home if self._free[home] >= job.gang else None

    def _take(self, job: JobFacts, host: HostName | None) -> bool:
        if host is None or self.runs(job) or self._free[host] < job.gang:
            return False
        self._homes[job.id] = host
        self._free[host] -= job.gang
        self._gangs[host].append(job.id)
        self._in_turn.add(job.id)
        return True

    def verdict(self, memory: Memory, why: Mapping[JobId, str]) -> Verdict:
        """`why` is completed for those that cannot run at all."""
        weights = weigh(self._snapshot, self._homes)
        turns = {name: Turn(gangs=tuple(sorted(gangs)), local=False) for name, gangs in self._gangs.items()}
        return Verdict(
            plan=Plan(
                homes={job: (home,) for job, home in self._homes.items()},
                turns=turns,
                tickets=weights.tickets,
            ),
            memory=memory,
            why={job.id: self._why(job, why) for job in self._snapshot.jobs if not self.runs(job)},
            entitled=weights.entitled,
        )

    def _why(self, job: JobFacts, why: Mapping[JobId, str]) -> str:
        home = self._homes.get(job.id)
        if is_lost(job, self._snapshot):
            return f"its server {job.host} is not part of the cluster now"
        if home is None:
            return why_nowhere(job, self._snapshot.hosts) or why.get(job.id, "waiting for free GPUs")
        if not self._hosts[home].connected:
            return f"its server {home} is away"
        if self._hosts[home].gpus < job.gang:
            return f"its server {home} has only {self._hosts[home].gpus} GPUs in health, it needs {job.gang}"
        return why.get(job.id, f"waiting for its turn on {home}")
