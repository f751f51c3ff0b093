"""On which GPU models a job could run in a round."""

from dataclasses import replace

from hs_core.mechanism.estimates import estimated
from hs_core.mechanism.floor import floor
from hs_core.mechanism.slots import Slots
from hs_core.names import JobId
from hs_core.policy import JobFacts, Snapshot

MEASURED = 5  # quanta in which a class is measured where a job of it has come; what shares its GPUs all the time never is


class Choices:
    """What was asked once is remembered: until GPUs are handed out, nothing changes about where a job could go."""

    def __init__(self, snapshot: Snapshot, *, spreads: bool) -> None:
        """`spreads`: jobs that may be laid over any number of servers are."""
        self.models = floor(snapshot.hosts).models  # newest first
        self._snapshot = snapshot
        self._spreads = spreads
        self._estimates = estimated(snapshot, self.models)
        self._known: dict[JobId, tuple[str, ...]] = {}

    def of(self, job: JobFacts, slots: Slots) -> tuple[str, ...]:
        """Where it could run in this round if it were alone: where it comes up first or is being measured, then as `Estimates.fastest` has it."""
        return () if slots.runs(job) else self.suits(job, slots)

    def suits(self, job: JobFacts, slots: Slots) -> tuple[str, ...]:
        """The same, though it may have its GPUs for something else in this round (`Snapshot.reserved`), or where it is going."""
        found = self._known.get(job.id)
        if found is None:
            able = self._pools_for(job, slots)
            found = self._estimates.fastest(job.job_class, able)
            if (here := self._first_here(job, slots)) in found:
                found = (here, *(model for model in found if model != here))
            self._known[job.id] = found
        return found

    def forget(self) -> None:
        """GPUs were handed out."""
        self._known.clear()

    def _pools_for(self, job: JobFacts, slots: Slots) -> tuple[str, ...]:
        """As it asks, or over any number of servers where it may be laid so."""
        if not (self._spreads and job.spreads):
            return slots.pools_for(job)
        laid = (replace(job, nodes=nodes) for nodes in job.spreads)
        found = {model for form in laid for model in slots.pools_for(form)}
        return tuple(model for model in self.models if model in found)

    def _first_here(self, job: JobFacts, slots: Slots) -> str | None:
        """The model of its home, where it comes up for the first time, or has come up and is being measured: it is not sent to one that was before it is known which is faster.

        Who has run and comes up elsewhere goes where its GPUs of this round are, as those who run do: to wait until it is up would cost it those and a move besides.
        """
        here, asked = slots.model_of(job), self._snapshot
        if not here or slots.waits_for_repair(job):
            return None
        is_new = asked.now_s - job.settled_s < MEASURED * asked.quantum_s
        is_newcomer = job.coming and not job.attained_gpu_s
        return here if is_newcomer or (is_new and (job.job_class, here) not in asked.rates) else None
