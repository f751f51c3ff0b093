"""A round of SJF-BSBF or SJF-FFS: who runs goes on; of those that wait the shortest starts, on free GPUs or beside a running job.

Non-preemptive, at most two jobs on a GPU (sections IV, V). How long jobs are is as in `sjf`; how much two slow each other is measured while they
share (`Snapshot.interference`), and until then taken to be `UNMEASURED`.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from hs_core.mechanism.estimates import estimated
from hs_core.mechanism.lengths import Lengths
from hs_core.mechanism.placing import asked_gpus, by_arrival, fits, models_of, takes_new
from hs_core.mechanism.sharing import UNMEASURED, Interference, Pending, Running, fitting, table, willing
from hs_core.mechanism.slots import Slots
from hs_core.names import HostName, JobId
from hs_core.pairs import misfit
from hs_core.policy import HostFacts, JobFacts, Memory, Snapshot, Verdict
from hs_core.words import counted

Beside = Mapping[HostName, Mapping[JobId, int]]
"""By server of the guest's home, by node rank: partner → GPUs that it shares with it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A running job beside which a waiting one could start."""

    partner: JobFacts
    mean_s: float  # of both jobs' ends
    step: int  # index of the accumulation steps 1, 2, 4, …


Choose = Callable[["Round", JobFacts, str, Sequence[JobFacts]], list[Offer]]
"""Of running jobs on one GPU model, alone on their GPUs, those beside which the job may start, the best first."""

Alone = Callable[["Round", JobFacts], str]
"""For people: why the job starts beside nobody."""


class Round:
    def __init__(self, snapshot: Snapshot, memory: Memory) -> None:
        self.snapshot = snapshot
        self.lengths = Lengths(snapshot)
        self._hosts = {host.name: host for host in snapshot.hosts}
        self._jobs = {job.id: job for job in snapshot.jobs}
        self._models = models_of(snapshot.hosts)
        self._estimates = estimated(snapshot, self._models)
        self._beside: dict[JobId, Beside] = {}
        for number, beside in memory.get("guests", {}).items():
            if (kept := self._kept(JobId(int(number)), beside)) is not None:
                self._beside[JobId(int(number))] = kept
        self._parts: dict[JobId, int] = {}  # of jobs that are about to start
        self._slots = Slots(snapshot, self._beside)
        self._open: dict[str, list[JobFacts]] = {}  # by model: beside whom others may start, by arrival
        self._holds: dict[tuple[object, ...], frozenset[HostName]] = {}  # servers that hold jobs like these

    def _kept(self, number: JobId, beside: Mapping[str, Mapping[str, int]]) -> Beside | None:
        """With the partners that are still there; None: it shares with nobody any more, or has to be placed anew."""
        job = self._jobs.get(number)
        if job is None or set(job.hosts) != set(beside) or not self._hosts.keys() >= set(job.hosts):
            return None
        found: dict[HostName, dict[JobId, int]] = {}
        for name in job.hosts:
            partners = {JobId(int(other)): gpus for other, gpus in beside[name].items()}
            found[name] = {other: gpus for other, gpus in partners.items() if self._runs_at(other, name)}
            if not self._has_gpus(job) and found[name] != partners:
                return None
        return found if any(found.values()) else None

    def _runs_at(self, number: JobId, name: HostName) -> bool:
        partner = self._jobs.get(number)
        return partner is not None and name in partner.hosts

    def decide(self, choose: Choose, alone: Alone) -> Verdict:
        self._keep()
        for job in self.snapshot.jobs:
            self._opens(job)
        lengths = self.lengths
        waiting = sorted(
            (job for job in self.snapshot.jobs if not self._slots.runs(job)),
            key=lambda job: (*lengths.rank(job, lengths.total_s(job)), by_arrival(job)),
        )
        for job in waiting:
            if self._start(job):
                self._opens(job)
            elif self._has_gpus(job):
                self._share_again(job, choose)
            else:
                self._share(job, choose)
        left = (job for job in waiting if not self._slots.runs(job))
        why = {job.id: self._why(job, ahead, alone) for ahead, job in enumerate(left)}
        verdict = self._slots.verdict(self._memory(), why)
        return replace(verdict, plan=replace(verdict.plan, accumulation=self._parts))

    def _has_gpus(self, job: JobFacts) -> bool:
        """A process, or GPUs on which one is coming up."""
        return job.started or job.id in self.snapshot.running

    def _keep(self) -> None:
        """Who has GPUs keeps them, guests included; so does who has a process, which cannot go elsewhere, and then who has been given some and is to come up there. Who leaves a server that is drained has GPUs that the others leave."""
        started = [
            job
            for job in sorted(self.snapshot.jobs, key=by_arrival)
            if self._has_gpus(job) or job.coming or job.id in self._beside
        ]
        running, beside_them = self.snapshot.running, self._beside_them()
        holds = running | beside_them

        def leaves(job: JobFacts) -> bool:
            return job.id not in beside_them and self._slots.should_leave(job)

        for job in sorted(
            started,
            key=lambda job: (job.id not in holds, leaves(job), job.id in self._beside, job.coming),
        ):
            beside = self._beside.get(job.id)
            if beside is None:
                self._slots.offer(job)
            elif job.movable and not self._has_gpus(job) and self._start(job):
                del self._beside[job.id]  # free GPUs come first, as long as it has no process
            elif not self._stands(job, beside) or not self._slots.share(job, beside):
                del self._beside[job.id]
                if self._has_gpus(job):
                    self._slots.offer(job)

    def _beside_them(self) -> frozenset[JobId]:
        """Beside whom guests run. A guest may also have GPUs of its own, which are not to go to who stands there, or comes from elsewhere."""
        guests = [beside for guest, beside in self._beside.items() if guest in self.snapshot.running]
        return frozenset(partner for beside in guests for partners in beside.values() for partner in partners)

    def _stands(self, job: JobFacts, beside: Beside) -> bool:
        """The partners have their turns, too, and until both run their memory may turn out to be more than it was taken to be."""
        return all(
            self._slots.lends(self._jobs[partner], name) >= gpus
            and misfit(self.snapshot, self._hosts[name], job, job.accumulation, self._jobs[partner]) is None
            for name, partners in beside.items()
            for partner, gpus in partners.items()
        )

    def _start(self, job: JobFacts) -> bool:
        """On free GPUs of the fastest model that has them, as far as is known (`Estimates.fastest`)."""
        slots = self._slots
        if self._has_gpus(job):
            return slots.offer(job) or self._leaves(job)
        if not slots.reachable(job) or (slots.has_home(job) and not job.movable):
            return slots.offer(job)
        found = self._estimates.fastest(job.job_class, tuple(self._models))
        started = any(slots.start(job, model) for model in found) or (
            slots.has_home(job) and slots.offer(job)
        )
        if started and job.accumulation != 1:
            self._parts[job.id] = 1
        return started

    def _leaves(self, job: JobFacts) -> bool:
        """It waits with a process, or a checkpoint, where another policy left it, or since it was paused, and its GPUs are others': for free ones elsewhere."""
        if job.id in self.snapshot.running or not self._slots.reachable(job):
            return False
        able = self._slots.ways(job, tuple(self._models))
        why = "its GPUs are others', and there some are free"
        return any(
            self._slots.start(job, model, why) for model in self._estimates.fastest(job.job_class, able)
        )

    # --- sharing --------------------------------------------------------------------------------------------------

    def _share(self, job: JobFacts, choose: Choose) -> None:
        """The best partners until its gang is filled; where no GPU model fills it, it waits. Free GPUs are not mixed in (Algorithm 1)."""
        if not job.memory_bytes or not self._slots.reachable(job) or not (job.movable or not job.hosts):
            return
        offers: list[tuple[float, int, Offer, str]] = []
        for model in self._models:
            if alone := self._partners(job, model):
                found = choose(self, job, model, alone)
                offers += [(offer.mean_s, at, offer, model) for at, offer in enumerate(found)]
        offers.sort(key=lambda entry: entry[:2])
        filled = self._fill(job, [(offer, model) for _, _, offer, model in offers])
        if filled is None:
            return
        beside, step = filled
        if self._joins(job, beside) and (step, job.accumulation) != (0, 1):
            self._parts[job.id] = 1 << step  # each incarnation begins with whole mini-batches

    def _share_again(self, job: JobFacts, choose: Choose) -> None:
        """One that has a process, as those have that another policy let take turns: beside the jobs on whose GPUs that stands, if they are all of its GPUs and it would start beside each."""
        if not job.memory_bytes or not self._slots.reachable(job) or len(job.gpus) != len(job.hosts):
            return
        beside = {
            name: self._on_its_gpus(job, name, frozenset(gpus), choose)
            for name, gpus in zip(job.hosts, job.gpus, strict=True)
        }
        if all(sum(there.values()) == job.per_node for there in beside.values()):
            self._joins(job, beside)

    def _on_its_gpus(
        self, job: JobFacts, name: HostName, gpus: frozenset[int], choose: Choose
    ) -> dict[JobId, int]:
        """Of the jobs on these GPUs of a server those beside which it may start, and on how many."""
        model = self._hosts[name].model
        shared: dict[JobId, int] = {}
        there = []
        for other in self._partners(job, model):
            bound = other.gpus[other.hosts.index(name)] if name in other.hosts and other.gpus else ()
            if count := len(gpus.intersection(bound)):
                shared[other.id] = count
                there.append(other)
        found = choose(self, job, model, there) if there else []
        return {offer.partner.id: shared[offer.partner.id] for offer in found}

    def _joins(self, job: JobFacts, beside: Beside) -> bool:
        if not self._slots.share(job, beside):
            return False
        self._beside[job.id] = beside
        partners = {partner for there in beside.values() for partner in there}
        for model, alone in self._open.items():
            self._open[model] = [other for other in alone if other.id not in partners]
        return True

    def _opens(self, job: JobFacts) -> None:
        """To guests, if it runs on one model, has its GPUs for itself, stays there, and its memory is known."""
        slots = self._slots
        if not job.started or not job.memory_bytes or not slots.has_turn(job) or slots.moves(job):
            return
        home = [self._hosts[name] for name in slots.home(job)]
        alone = all(takes_new(host) and slots.lends(job, host.name) == job.per_node for host in home)
        if alone and len(models := {host.model for host in home}) == 1:
            insort(self._open.setdefault(models.pop(), []), job, key=by_arrival)

    def _partners(self, job: JobFacts, model: str) -> list[JobFacts]:
        """Of those on that model that are open to it: on servers that could hold it."""
        like = job.per_node, job.gpu_types, job.gpu_memory_bytes, job.barred
        holds = self._holds.get(like)
        if holds is None:
            holds = self._holds[like] = frozenset(
                name for name, host in self._hosts.items() if fits(job, host)
            )
        return [
            other
            for other in self._open.get(model, ())
            if holds.issuperset(self._slots.home(other)) and other is not job
        ]

    def _fill(self, job: JobFacts, offers: Iterable[tuple[Offer, str]]) -> tuple[Beside, int] | None:
        """GPUs of partners in that order until so many servers of one model have enough for its nodes; the smallest sub-batch that they ask for."""
        by_model: dict[str, dict[HostName, dict[JobId, int]]] = {}
        steps: dict[JobId, int] = {}
        for offer, model in offers:
            steps[offer.partner.id] = offer.step
            servers = by_model.setdefault(model, {})
            for name in self._slots.home(offer.partner):
                there = servers.setdefault(name, {})
                if missing := job.per_node - sum(there.values()):
                    there[offer.partner.id] = min(missing, offer.partner.per_node)
            full = [name for name, there in servers.items() if sum(there.values()) == job.per_node]
            if len(full) >= job.nodes:
                beside = {name: servers[name] for name in full[: job.nodes]}
                taken = {partner for there in beside.values() for partner in there}
                return beside, max(steps[partner] for partner in taken)
        return None

    # --- what is said ---------------------------------------------------------------------------------------------

    def _memory(self) -> dict[str, Any]:
        kept = {
            str(job): {
                name: {str(partner): gpus for partner, gpus in there.items()}
                for name, there in beside.items()
            }
            for job, beside in sorted(self._beside.items())
        }
        return {"guests": kept} if kept else {}

    def _why(self, job: JobFacts, ahead: int, alone: Alone) -> str:
        """`ahead`: so many wait that are looked at before it."""
        if self._has_gpus(job):  # it was paused, or another policy let it wait
            are = "is" if job.per_node == 1 else "are"
            free = f"{counted(job.per_node, 'GPU')} of {', '.join(job.hosts)} {are} free"
            return f"its process waits until {free}, and {alone(self, job)}"
        missing = self.lengths.why(job)
        waits = f"it waits until {asked_gpus(job)} {'is' if job.gang == 1 else 'are'} free"
        if missing:
            waits += f"; {missing}"
        elif ahead:
            waits += f", and {counted(ahead, 'shorter job')} {'is' if ahead == 1 else 'are'} ahead of it"
        return f"{waits}, and {alone(self, job)}"


def gains_beside_nobody(this: Round, job: JobFacts) -> str:
    """SJF-BSBF."""
    if this.lengths.why(job):
        return "nobody can say beside whom it would gain"
    return _unsaid(job) or f"no running job{_there(job)} is one that it would gain by sharing GPUs with"


def fits_beside_nobody(_: Round, job: JobFacts) -> str:
    """SJF-FFS."""
    there = _there(job)
    return (
        _unsaid(job) or f"no running job{there} that has its GPUs for itself leaves memory enough beside it"
    )


def _there(job: JobFacts) -> str:
    return " on the GPUs of its process" if job.started else ""


def _unsaid(job: JobFacts) -> str:
    return "" if job.memory_bytes else "it can share no GPU, as its memory was not said (--gpu-mem)"


def steps_of(job: JobFacts) -> int:
    """How many of the accumulation steps 1, 2, 4, … it can be told."""
    return job.accumulation_max.bit_length()


def memory_of(job: JobFacts) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(K,) bytes per GPU, by accumulation step."""
    return np.array([job.memory_at(1 << step) for step in range(steps_of(job))], dtype=np.float64)


def best_first(this: Round, job: JobFacts, model: str, running: Sequence[JobFacts]) -> list[Offer]:
    """SJF-BSBF: those with which sharing now ends both sooner on average than waiting (Theorem 1, Algorithm 2), least mean first."""
    rate = this.snapshot.rates.get((job.job_class, model), 0.0)
    known = [
        other
        for other in running
        if other.steps_left is not None and this.snapshot.rates.get((other.job_class, model), 0.0) > 0
    ]
    if not job.steps or rate <= 0 or not known:
        return []
    classes = {
        name: at for at, name in enumerate(sorted({job.job_class, *(other.job_class for other in known)}))
    }
    found = table(
        running_jobs(this, model, known, classes),
        Pending(
            alone_s=np.full(steps_of(job), (job.steps_left or 0.0) / rate),
            memory_bytes=memory_of(job),
            job_class=classes[job.job_class],
        ),
        interference(this.snapshot, model, list(classes)),
    )
    return [Offer(known[at], float(found.mean_s[at]), int(found.step[at])) for at in willing(found).tolist()]


def running_jobs(this: Round, model: str, jobs: Sequence[JobFacts], classes: Mapping[str, int]) -> Running:
    rates, hosts = this.snapshot.rates, {host.name: host for host in this.snapshot.hosts}
    return Running(
        left_s=np.array([(job.steps_left or 0.0) / rates[job.job_class, model] for job in jobs]),
        memory_bytes=np.array([job.memory_bytes for job in jobs], dtype=np.float64),
        gpu_bytes=np.array([smallest(hosts, job) for job in jobs], dtype=np.float64),
        job_class=np.array([classes[job.job_class] for job in jobs], dtype=np.int64),
    )


def smallest(hosts: Mapping[HostName, HostFacts], job: JobFacts) -> int:
    """Memory of the smallest GPU of its servers."""
    return min(hosts[name].gpu_memory_bytes for name in job.hosts)


def interference(snapshot: Snapshot, model: str, classes: Sequence[str]) -> Interference:
    """As measured on that model; who came later does not matter to it."""
    ratio = snapshot.interference
    of_newer = np.array([[[ratio.get((a, b, model), UNMEASURED)] for b in classes] for a in classes])
    of_older = np.array([[[ratio.get((b, a, model), UNMEASURED)] for b in classes] for a in classes])
    return Interference(of_newer, of_older)


def first_fit(this: Round, job: JobFacts, model: str, running: Sequence[JobFacts]) -> list[Offer]:
    """SJF-FFS: those beside which any sub-batch fits, the largest such, in their order of arrival."""
    hosts = {host.name: host for host in this.snapshot.hosts}
    rooms = np.array([smallest(hosts, other) - other.memory_bytes for other in running], dtype=np.float64)
    found = []
    for other, step in zip(running, fitting(rooms, memory_of(job)).tolist(), strict=True):
        never = inf in (
            this.snapshot.interference.get((one, two, model))
            for one, two in ((job.job_class, other.job_class), (other.job_class, job.job_class))
        )
        if step >= 0 and not never:
            found.append(Offer(other, other.arrival_s, step))
    return found
