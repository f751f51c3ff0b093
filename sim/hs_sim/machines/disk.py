"""What lies on a server: checkpoints, and data sets that jobs have read there. It outlives agents and reboots."""

from collections.abc import Container

from hs_core.datasets import after_use
from hs_core.model import Dataset, JobSpec
from hs_core.names import JobId
from hs_sim.machines.truth import Saved, Shelf

KEPT = 2  # generations of a job's checkpoints on a server (`hs_job.checkpoint`)


class Disk:
    def __init__(self, folders: dict[JobId, Shelf], cache_bytes: int) -> None:
        self._folders = folders  # that users named, and all servers see
        self._cache_bytes = cache_bytes  # for data sets
        self._datasets: tuple[Dataset, ...] = ()
        self.stores: dict[JobId, Shelf] = {}  # this server's own

    def wipe(self) -> None:
        self.stores.clear()
        self._datasets = ()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def shelf(self, job: JobId) -> Shelf:
        """What lies here of it, or in the folder that its user named."""
        shared = self._folders.get(job)
        return self.stores.setdefault(job, {}) if shared is None else shared

    def store(self, job: JobId, generation: int, saved: Saved) -> None:
        """Beside what other ranks of that generation have here, as `hs_agent.carrier` does: each has files of its own."""
        self.shelf(job)[generation, saved.rank] = saved

    def stored(self, job: JobId, generation: int, rank: int) -> Saved | None:
        shelf = self._folders.get(job) or self.stores.get(job, {})
        return shelf.get((generation, rank))

    def prune(self, job: JobId, newest: int) -> None:
        """Who writes a generation keeps so many, as `hs_job` does; not of what copies wrote, which have folders of their own."""
        there = self.shelf(job)
        own = [key for key, saved in there.items() if saved.copy < 0]
        before = sorted({number for number, _ in own if number <= newest})[:-KEPT]
        for key in own:
            if key[0] in before:
                del there[key]

    def forget_copies(self, job: JobId, epoch: int) -> None:
        """What copies of that incarnation wrote, or fetched to begin with: they have folders of their own (`hs_agent.launch`)."""
        shelf = self.stores.get(job, {})
        for at in [at for at, saved in shelf.items() if saved.copy >= 0 and saved.epoch == epoch]:
            del shelf[at]

    def keep_only(self, jobs: Container[JobId]) -> None:
        for job in [job for job in self.stores if job not in jobs]:
            del self.stores[job]

    # --- data sets --------------------------------------------------------------------------------------------------

    def missing_bytes(self, spec: JobSpec) -> int:
        """Of its data set, where nobody has read it here; from now on it lies here."""
        if not spec.dataset:
            return 0
        missing = all(data.name != spec.dataset for data in self._datasets)
        data = Dataset(name=spec.dataset, bytes=spec.dataset_bytes)
        self._datasets = after_use(self._datasets, data, self._cache_bytes)
        return data.bytes if missing else 0
