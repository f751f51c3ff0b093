"""In words: that GPUs which a job would have are others' for as long as their class is measured on them."""

from collections.abc import Collection, Mapping

from hs_core.mechanism.placing import Home, best_fit, room_needed
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Snapshot
from hs_core.words import listed


class BehindTrials:
    """Of a decision that is made."""

    def __init__(self, snapshot: Snapshot, free: Mapping[HostName, int]) -> None:
        """`free`: GPUs of each server that nobody has in this quantum."""
        self._snapshot = snapshot
        self._measured: dict[HostName, list[JobId]] = {}
        self._room = dict(free)
        self._found: dict[tuple[object, ...], Home] = {}  # by what is alike to servers
        jobs = {job.id: job for job in snapshot.jobs} if snapshot.reserved else {}
        for id_, home in sorted(snapshot.reserved.items()):
            for name in home if id_ in jobs else ():
                if name in self._room:
                    self._measured.setdefault(name, []).append(id_)
                    self._room[name] += jobs[id_].per_node

    def say(self, job: JobFacts, home: Home | None) -> str:
        """Which jobs; empty: without them it would have no room either. `home`: None where it may have any."""
        if not self._measured or job.id in self._snapshot.reserved:
            return ""
        there = self._fits(job) if home is None else home
        if not there or any(self._room[name] < job.per_node for name in there):
            return ""
        measured = sorted({id_ for name in there for id_ in self._measured.get(name, ())})
        return _text(measured, there) if measured else ""

    def _fits(self, job: JobFacts) -> Home:
        like = room_needed(job, job.gpu_types)
        if like not in self._found:
            self._found[like] = best_fit(job, self._snapshot.hosts, self._room)
        return self._found[like]


def _text(measured: Collection[JobId], there: Home) -> str:
    jobs, have = ("job", "has") if len(measured) == 1 else ("jobs", "have")
    return (
        f"{jobs} {listed([*measured])}, whose class is being measured, {have} GPUs of {listed(there)}"
        " for a short run"
    )
