"""Lottery with backfilling (Gandiva_fair, 3.1, the first baseline of table 2).

Every quantum winners are drawn by tickets over gang size, without replacement; one that does not fit is skipped and the
next is drawn, until nothing more fits. Unfair to large gangs by construction: they win only while enough GPUs are left.

Asked again within a quantum nobody loses what it won: GPUs that came free since are drawn for.
"""

from hs_core.dice import roll
from hs_core.mechanism.idle_elsewhere import NEVER
from hs_core.mechanism.lottery import Urn, won_before
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.slots import Slots
from hs_core.mechanism.weights import weigh_per_gpu
from hs_core.policy import Memory, Needs, Policy, Snapshot, Verdict


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    slots = Slots(snapshot)
    dice = roll(snapshot.seed, "lottery", snapshot.quantum)
    per_gpu = weigh_per_gpu(snapshot)
    jobs = sorted((job for job in snapshot.jobs if job.user in per_gpu), key=by_arrival)
    won = won_before(snapshot, memory, slots)
    urn = Urn([per_gpu[job.user] for job in jobs])
    while urn:
        lot = urn.draw(dice)
        urn.take_out(lot)
        if slots.offer(jobs[lot]) and jobs[lot].id not in won:
            won.append(jobs[lot].id)
    why = {
        job.id: "it did not win this quantum's lottery, or did not fit beside the winners"
        for job in snapshot.jobs
    }
    return slots.verdict({"quantum": snapshot.quantum, "won": won}, why, stays=NEVER)


LOTTERY = Policy(name="lottery", needs=Needs(every_quantum=True, moves=False), decide=decide)
