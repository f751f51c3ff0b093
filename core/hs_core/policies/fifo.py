"""First in, first out, as YARN and Kubernetes do by default: consolidated placement, the head of the line blocks, no preemption.

A job that could never run here does not block: the head is the earliest that could. Time-sliced jobs of another policy that was
in office before keep their servers and queue up there.
"""

from hs_core.mechanism.idle_elsewhere import NEVER
from hs_core.mechanism.placing import asked_gpus, by_arrival
from hs_core.mechanism.slots import Slots
from hs_core.names import JobId
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    slots = Slots(snapshot)
    jobs = sorted(snapshot.jobs, key=by_arrival)
    why: dict[JobId, str] = {}
    # Who has GPUs keeps them, before others come from a server that is drained; then who has a process, which cannot go elsewhere,
    # and who has been given GPUs and is to come up there: one that came earlier may have been paused, or waited for another, until now.
    for job in sorted(
        (job for job in jobs if job.started or job.coming),
        key=lambda job: (job.id not in snapshot.running, slots.should_leave(job), job.coming),
    ):
        slots.offer(job)
    head: JobFacts | None = None
    ahead = 0
    for job in jobs:
        if (
            slots.runs(job)
            or not slots.reachable(job)
            or slots.outrun(job, slots.home(job))
            or (
                (slots.waits_for_repair(job) or not slots.has_home(job))
                and (job.started or slots.nowhere.why(job))
            )
        ):
            continue
        if head is not None:
            why[job.id] = _behind(head, ahead)
            ahead += 1
        elif not (slots.offer(job) or slots.rehome(job)):
            head, ahead = job, 1
            why[job.id] = (
                f"first in line: waits until {asked_gpus(job, at_home=job.started)} {'is' if job.gang == 1 else 'are'} free"
            )
    return slots.verdict({}, why, stays=NEVER)


def _behind(head: JobFacts, ahead: int) -> str:
    """`ahead`: how many are, with the first."""
    waits = f"waits for {asked_gpus(head, at_home=head.started)}"
    if ahead == 1:
        return f"job {head.id} is ahead of it and {waits}"
    return f"{ahead} jobs are ahead of it; the first, job {head.id}, {waits}"


FIFO = Policy(name="fifo", needs=Needs(work_conserving=False, preemptive=False), decide=decide)
