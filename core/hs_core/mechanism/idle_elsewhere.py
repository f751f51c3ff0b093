"""In words: that a job waits with its process on a server that is full, while one where it would fit has idle GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hs_core.mechanism.placing import Home, best_fit, room_needed
from hs_core.model import Migrate
from hs_core.names import HostName
from hs_core.policy import HostFacts, JobFacts
from hs_core.words import listed

IDLE = "GPUs of "
"""How what is said begins."""
WITHIN_A_ROUND = "nobody is moved within a round"
NEVER = "nobody is moved under this policy"


class IdleElsewhere:
    """Of a decision that is made. Jobs that are alike to servers are looked at once."""

    def __init__(
        self, hosts: Sequence[HostFacts], free: Mapping[HostName, int], *, moves_left: int, stays: str
    ) -> None:
        """`free`: GPUs of each server that nobody has in this quantum; `moves_left`: of started jobs, that the budget allows; `stays`: why no decision like this moves any, empty: it may."""
        self._hosts = [host for host in hosts if free[host.name] > 0]
        self._free, self._moves_left, self._stays = free, moves_left, stays
        self._models = {host.name: host.model for host in hosts}
        self._found: dict[tuple[object, ...], tuple[Home, bool]] = {}

    def say(self, job: JobFacts, home: Home) -> str:
        """Which servers, and what keeps it from going there; empty: it has no process, or no others have room for it."""
        if not job.started or not self._hosts:
            return ""
        there, of_another_model = self._room(job, home)
        if not there:
            return ""
        return f"{IDLE}{listed(there)} are idle, but {self._keeps(job, of_another_model=of_another_model)}"

    def _room(self, job: JobFacts, home: Home) -> tuple[Home, bool]:
        """Servers of its own model, if any have room."""
        models = {self._models[name] for name in home}
        own = (models.pop(),) if len(models) == 1 else ()
        like = *room_needed(job, job.gpu_types), own
        if like not in self._found:
            near = best_fit(replace(job, gpu_types=own), self._hosts, self._free) if own else ()
            self._found[like] = near or best_fit(job, self._hosts, self._free), not near
        return self._found[like]

    def _keeps(self, job: JobFacts, *, of_another_model: bool) -> str:
        if job.rooted:
            return "its process cannot leave its own server"
        if job.migrate is Migrate.NEVER:
            return "it may not go to another server (migrate: never)"
        if of_another_model and job.migrate is Migrate.SAME_TYPE:
            return "it may not go to GPUs of another model (migrate: same-type)"
        if self._stays:
            return self._stays
        if not job.movable:
            return "its process cannot be moved just now"
        if self._moves_left <= 0:
            return "as many jobs have moved lately as may (migrations_per_hour)"
        return "it is not moved there now"
