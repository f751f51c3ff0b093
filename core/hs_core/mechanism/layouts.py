"""Which of its strategies each job has in a round (Tesserae, 4.2 and 4.3), from what was measured of its class in each.

Alone it has the one that is fastest. Of those that were never measured a class tries `PROBED` at most on a GPU model, one job each, the first of them its
user's own choice and then those that Bayesian optimization names. A job keeps what it has until that was measured, and is restarted only
where it gains a tenth, and more than a quantum. Beside another job both have what is best for the pair.
"""

from collections.abc import Mapping

from hs_core.mechanism.packing import Packer
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.slots import Slots
from hs_core.mechanism.tesserae.strategies import RESTARTED, Choice, best_alone, features, next_probe
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.strategy import Strategy, another

PROBED = 4  # strategies of a class that are measured on a GPU model: the paper's profiling budget


class Layouts:
    def __init__(self, snapshot: Snapshot, slots: Slots, *, restarts: bool = True) -> None:
        """`restarts`: of jobs that have started; if not, these keep what they have."""
        self._snapshot, self._slots, self._restarts = snapshot, slots, restarts
        self._hosts: Mapping[HostName, HostFacts] = {host.name: host for host in snapshot.hosts}
        self._tried: set[tuple[str, str]] = set()  # classes that are measured on a model, or will be
        for job in snapshot.jobs:
            if job.strategy is not None and job.hosts and job.hosts[0] in self._hosts:
                self._tried.add((job.job_class, self._hosts[job.hosts[0]].model))

    def choices(self, job: JobFacts, model: str) -> tuple[Choice, ...]:
        """What it could have on GPUs of that model, its own first: all that were measured, if it may be restarted or has not started."""
        own = job.strategy
        if own is None:
            return (Choice(None, job.job_class),)
        known = self._known(job, model)
        best = max(known.values(), default=0.0)
        now = Choice(own, job.job_class, known[own] / best if own in known else 1.0)
        if not self._may_change(job, known):
            return (now,)
        others = [
            Choice(each, another(job.job_class, each), rate / best, restarts=bool(job.hosts))
            for each, rate in known.items()
            if each != own
        ]
        return (now, *others) if own in known or not others else tuple(others)

    def lay(self, jobs: Mapping[JobId, JobFacts], pairs: Mapping[JobId, JobId], packer: Packer) -> None:
        """Everybody who runs in this round gets a strategy. `pairs`: guest → partner."""
        partners = set(pairs.values())
        for guest, partner in sorted(pairs.items()):
            one, other = jobs.get(partner), jobs.get(guest)
            if (
                one is None
                or other is None
                or not (self._slots.has_turn(one) and self._slots.has_turn(other))
            ):
                continue
            found = packer.joined.get(guest) or packer.pair(one, other, self._host(one))
            if found is not None:
                self._give(one, found.placed, f"beside job {guest} both get most done so")
                self._give(other, found.waiting, f"beside job {partner} both get most done so")
        alone = [job for job in jobs.values() if job.strategies and self._slots.has_turn(job)]
        for job in sorted(alone, key=by_arrival):
            if job.id not in partners and job.id not in pairs:
                self._alone(job)

    def _alone(self, job: JobFacts) -> None:
        if job.id in self._snapshot.reserved:
            return  # its class is being measured as it is
        model = self._host(job).model
        known = self._known(job, model)
        if (probe := self._probe(job, model, known)) is not None:
            self._tried.add((another(job.job_class, probe), model))
            choice = Choice(probe, another(job.job_class, probe))
            self._give(job, choice, f"it was not measured yet on {model}")
            return
        choice = best_alone(self.choices(job, model))
        text = f"it was not measured yet on {model}"
        if choice.strategy is not None and choice.strategy in known:
            others = sorted(
                ((rate, each.text) for each, rate in known.items() if each != choice.strategy), reverse=True
            )
            rates = "".join(f", {each} {rate:.3g}" for rate, each in others[:3])
            text = f"{known[choice.strategy]:.3g} steps/s on {model}{rates}"
        self._give(job, choice, text)

    def _give(self, job: JobFacts, choice: Choice, text: str) -> None:
        if choice.strategy is not None:
            self._slots.lay(job, choice.strategy, text)

    def _probe(self, job: JobFacts, model: str, known: Mapping[Strategy, float]) -> Strategy | None:
        """The one that it should try now; None: what it has, or one that is known."""
        own = job.strategy
        if own is None or not self._may_change(job, known):
            return None
        tried = [
            each
            for each in job.strategies
            if each in known or (another(job.job_class, each), model) in self._tried
        ]
        if len(tried) >= min(PROBED, len(job.strategies)) or not self._pays(job, known, 2.0):
            return None
        if not tried:
            return job.strategies[0]
        places = [job.strategies.index(each) for each in tried if each in known]
        left = [at for at, each in enumerate(job.strategies) if each not in tried]
        table = features(job.strategies)
        at = next_probe(table, places, [known[job.strategies[place]] for place in places], left)
        return None if at is None else job.strategies[at]

    def _may_change(self, job: JobFacts, known: Mapping[Strategy, float]) -> bool:
        if not job.hosts:
            return True
        if job.strategy not in known:
            return False  # it is there to be measured
        if not job.started:
            return True
        return self._restarts and self._slots.may_restart(job) and self._pays(job, known, RESTARTED)

    def _pays(self, job: JobFacts, known: Mapping[Strategy, float], times: float) -> bool:
        """A started job that is so much faster from now on ends a quantum sooner, as far as its user says how long it is."""
        rate = known.get(job.strategy) if job.strategy is not None else None
        if not job.started or rate is None or job.steps_left is None:
            return True
        return job.steps_left / rate * (1 - 1 / times) > self._snapshot.quantum_s

    def _known(self, job: JobFacts, model: str) -> dict[Strategy, float]:
        """Mini-batches a second in each that was measured, in the order of its user."""
        rates = self._snapshot.rates
        found = {each: rates.get((another(job.job_class, each), model), 0.0) for each in job.strategies}
        return {each: rate for each, rate in found.items() if rate > 0}

    def _host(self, job: JobFacts) -> HostFacts:
        return self._hosts[self._slots.home(job)[0]]
