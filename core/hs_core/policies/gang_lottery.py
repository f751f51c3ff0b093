"""Gang-aware lottery (Gandiva_fair, 3.1, the second baseline of table 2).

Lotteries by tickets over gang size, with replacement: a winner runs if it fits (and runs not already), else it waits, and those who wait
come first in the next quanta, each win once. So wins follow tickets whatever the gang; only chance is unfair. Asked again within a
quantum nobody loses what it won: those who wait, and then the lottery, have GPUs that came free since.

Limits keep memory and time bounded: a job waits for at most `WINS` of its wins (all jobs for about `WAITING`), and after
`DRAWS` draws per job GPUs that are still free go to whoever fits, drawn among them.
"""

from collections import Counter

from hs_core.dice import Random, roll
from hs_core.mechanism.idle_elsewhere import NEVER
from hs_core.mechanism.lottery import Urn, won_before
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.slots import Slots
from hs_core.mechanism.weights import weigh_per_gpu
from hs_core.names import JobId
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict

WINS = 64
WAITING = 2_000
DRAWS = 20


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    slots = Slots(snapshot)
    dice = roll(snapshot.seed, "gang-lottery", snapshot.quantum)
    per_gpu = weigh_per_gpu(snapshot)
    jobs = sorted((job for job in snapshot.jobs if job.user in per_gpu), key=by_arrival)
    won = won_before(snapshot, memory, slots)
    here = {job.id: job for job in jobs}
    waiting = _serve(slots, [job for job in memory.get("waiting", ()) if job in here], here)
    urn = Urn([per_gpu[job.user] for job in jobs])
    _draw(slots, dice, urn, jobs, waiting)
    why = {job.id: "it did not win this quantum's lottery" for job in snapshot.jobs}
    why |= dict.fromkeys(waiting, "it won a lottery and comes first as soon as it fits")
    won += [job.id for job in jobs if slots.has_turn(job) and job.id not in won]
    return slots.verdict({"quantum": snapshot.quantum, "won": won, "waiting": waiting}, why, stays=NEVER)


def _serve(slots: Slots, waiting: list[JobId], jobs: dict[JobId, JobFacts]) -> list[JobId]:
    """First come, first served; one win each; the rest goes on waiting."""
    return [job_id for job_id in waiting if slots.runs(jobs[job_id]) or not slots.offer(jobs[job_id])]


def _draw(slots: Slots, dice: Random, urn: Urn, jobs: list[JobFacts], waiting: list[JobId]) -> None:
    wins = Counter(waiting)
    most = min(WINS, max(2, WAITING // max(1, len(jobs))))
    left = DRAWS * len(jobs)
    # Within a quantum GPUs only get fewer: what does not fit now need not be asked again.
    open_ = list(jobs)
    while open_ := _open(slots, open_):
        if left <= 0:
            open_ = [job for job in open_ if slots.fits_now(job) and not slots.runs(job)]
            slots.offer(dice.choice(open_))
            continue
        left -= 1
        winner = jobs[urn.draw(dice)]
        if (slots.runs(winner) or not slots.offer(winner)) and wins[winner.id] < most:
            wins[winner.id] += 1
            waiting.append(winner.id)


def _open(slots: Slots, jobs: list[JobFacts]) -> list[JobFacts]:
    """Empty if nothing more fits; else the last one does."""
    while jobs and (slots.runs(jobs[-1]) or not slots.fits_now(jobs[-1])):
        jobs.pop()
    return jobs


GANG_LOTTERY = Policy(name="gang-lottery", needs=Needs(every_quantum=True, moves=False), decide=decide)
