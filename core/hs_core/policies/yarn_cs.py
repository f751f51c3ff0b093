"""YARN's capacity scheduler as Hadar compares with it (IPDPS'24, IV-B): a queue for each user, by tickets, first in, first out inside.

The queue that uses least per ticket is next. Nobody is preempted. A job that does not fit lets later ones of its queue pass (backfilling).
"""

from fractions import Fraction

from hs_core.mechanism.placing import asked_gpus, by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.names import UserName
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict
from hs_core.words import counted


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    seats = Seats(snapshot)
    jobs = sorted(snapshot.jobs, key=by_arrival)
    kept = seats.kept(jobs)
    used = dict.fromkeys(sorted({job.user for job in jobs}), 0)
    queues: dict[UserName, list[JobFacts]] = {}
    for job in jobs:
        if job.id in kept:
            used[job.user] += job.gang
        else:
            queues.setdefault(job.user, []).append(job)

    def load(user: UserName) -> tuple[Fraction, UserName]:
        return used[user] / snapshot.tickets[user], user

    waiting: list[JobFacts] = []
    while queues:
        user = min(queues, key=load)
        started = next((job for job in queues[user] if seats.choose_any(job)), None)
        if started is None:
            waiting += queues.pop(user)
            continue
        queues[user].remove(started)
        used[user] += started.gang
        if not queues[user]:
            del queues[user]
    why = {
        job.id: f"it waits until {asked_gpus(job, at_home=job.started)} {'is' if job.gang == 1 else 'are'} free, and those come first whose jobs"
        f" use least for their tickets: {job.user}'s use {counted(used[job.user], 'GPU')}"
        for job in waiting
    }
    return seats.verdict({}, why, waiting)


YARN_CS = Policy(name="yarn-cs", needs=Needs(preemptive=False), decide=decide)
