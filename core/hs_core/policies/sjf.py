"""Shortest job first by expected length, without preemption: who runs keeps its GPUs to its end; of those that wait the shortest that fits starts.

A class that was not measured on any model that its job may have goes first, jobs whose number of steps is not known go last (`Lengths.rank`).
"""

from hs_core.mechanism.later import Later
from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.placing import asked_gpus, by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats, lengths = Seats(snapshot), Lengths(snapshot)
    order = sorted(snapshot.jobs, key=lambda job: (*lengths.rank(job, lengths.total_s(job)), by_arrival(job)))
    kept = seats.kept(order)
    waiting = [job for job in order if job.id not in kept]
    seats.serve(waiting)
    why = Later(lambda: {job.id: _why(job, lengths.why(job)) for job in waiting})
    return seats.verdict({}, why, waiting)


def _why(job: JobFacts, missing: str) -> str:
    """`missing`: what is not known of its length."""
    are, them = ("is", "it") if job.gang == 1 else ("are", "them")
    others = "" if missing else f" and no shorter job waits for {them}"
    starts = f"it starts when {asked_gpus(job)} {are} free{others}: nobody is put aside for it"
    return f"{starts}; {missing}" if missing else starts


SJF = Policy(name="sjf", needs=Needs(preemptive=False, lengths=True), decide=decide)
