"""How fast gangs train: on each GPU model, on GPUs that are slower than others, beside others on their GPUs; and what their ranks measure of it."""

from collections.abc import Iterable, Mapping

from hs_core.dice import Random, roll
from hs_core.errors import BrokenError
from hs_core.forms import Form, Shape
from hs_core.job_class import job_class
from hs_core.mechanism.goodput import Speed
from hs_core.model import Gpu
from hs_core.names import JobId
from hs_sim.elastic import noise_samples, steps_per_s, told_per_s
from hs_sim.machines.gang import Gang
from hs_sim.machines.part import Part
from hs_sim.machines.truth import JobTruth, Owner, Truth
from hs_sim.model import Experiment, SpeedChange


class Speeds:
    def __init__(
        self, experiment: Experiment, gpus: Iterable[Gpu], gangs: Mapping[Owner, Gang], truth: Truth
    ) -> None:
        """`gpus`: of the whole cluster. `gangs`: those that there are, at any time."""
        self._experiment, self._gangs, self._truth = experiment, gangs, truth
        every = {gpu.id: gpu for gpu in gpus}
        self._slowdowns = every if any(gpu.slowdowns for gpu in every.values()) else {}
        self._rates = dict(experiment.workload.rates)
        self._noise: dict[JobId, Random] = {}

    def rate(self, job: JobTruth, model: str, form: Form | None) -> float:
        """Mini-batches a second, alone on GPUs of a model that are all as they should be."""
        if isinstance(form, Shape) and job.sim.elastic is not None:
            speed = self._experiment.workload.speeds[job.sim.job_class, model]
            return steps_per_s(job.sim.truly or job.sim.elastic, speed, form)
        class_ = job.sim.variant(form)
        rate = self._rates.get((class_, model))
        if rate is None or rate <= 0:
            raise BrokenError(f"the workload has no rate of class {class_!r} on {model}")
        if job.sim.nodes_in(form) > 1:
            rate *= self._experiment.workload.spread.get((class_, model), 1.0)
        return rate

    def change(self, change: SpeedChange) -> None:
        self._rates[change.job_class, change.model] = change.steps_per_s
        for gang in self._gangs.values():
            if gang.job.sim.variant(gang.shape) == change.job_class:
                gang.train_at(self._alone(gang))
                self._share_out([gang.id])

    # --- where it computes, and beside whom

    def holds(self, part: Part) -> None:
        """Its GPUs are its own from now on, perhaps also another's."""
        self._truth.hold(part.gpus, part.gang.id)
        if others := self._truth.share_of(part.gpus, part.gang.id)[1]:
            self._share_out({part.gang.id} | others)

    def shared(self, part: Part) -> None:
        """It computes on its GPUs from now on, perhaps beside others, perhaps on others than before."""
        if self._slowdowns and (rate := self._alone(part.gang)) != part.gang.rate and not self._truth.mates:
            part.gang.train_at(rate)
        if self._truth.mates:
            self._share_out({part.gang.id} | self._truth.beside(part.gpus, part.gang.id))

    def leaves(self, part: Part) -> None:
        """It computes no more; those beside it have its GPUs for themselves."""
        _, others = self._truth.share_of(part.gpus, part.gang.id)
        self._truth.free(part.gpus, part.gang.id)
        if others:
            self._share_out({part.gang.id} | others)

    def _share_out(self, keys: Iterable[Owner]) -> None:
        for gang in [self._gangs[key] for key in sorted(keys) if key in self._gangs]:
            beside: set[Owner] = set()
            for part in gang.parts.values():
                share, _ = self._truth.share_of(part.gpus, gang.id)
                beside |= self._truth.beside(part.gpus, gang.id)
                if share != part.share:
                    gang.holding.charge(part)
                    part.share = share
            rate = self._alone(gang) / max((self._slowed(gang, other) for other in beside), default=1.0)
            if rate != gang.rate:
                gang.train_at(rate)

    def _alone(self, gang: Gang) -> float:
        return min(
            self.rate(gang.job, part.agent.model, gang.shape) / self._slowed_by(part)
            for part in gang.parts.values()
        )

    def _slowed_by(self, part: Part) -> float:
        """Its slowest GPU's part."""
        said = self._slowdowns
        if not said:
            return 1.0
        sim = part.gang.job.sim
        name = job_class(sim.user, sim.spec())
        return max((said[gpu].slowdown(name) for gpu in part.gpus), default=1.0)

    def _slowed(self, gang: Gang, other: Owner) -> float:
        workload = self._experiment.workload
        beside = self._gangs[other]
        pair = (gang.job.sim.variant(gang.shape), beside.job.sim.variant(beside.shape))
        models = {part.agent.model for part in gang.parts.values()}
        return max(
            workload.interference.get((*pair, model), self._experiment.interference) for model in models
        )

    # --- what its ranks measure

    def told(self, gang: Gang) -> float:
        """Mini-batches a second, as they count them; tests have them say something else."""
        rate = gang.rate
        if isinstance(gang.shape, Shape) and gang.job.sim.elastic is not None:
            speed = self._speed(gang)
            truly = gang.job.sim.truly or gang.job.sim.elastic
            rate *= told_per_s(speed, gang.shape) / steps_per_s(truly, speed, gang.shape)
        return rate * self._noise_of(gang.key[0])

    def told_noise(self, gang: Gang) -> tuple[float, int]:
        """Noise scale of its gradients, and measurements of it since it was started."""
        truly = gang.job.sim.truly
        if not isinstance(gang.shape, Shape) or truly is None:
            return 0.0, 0
        return truly.noise_scale, noise_samples(self._speed(gang), gang.shape, gang.training_s)

    def _speed(self, gang: Gang) -> Speed:
        """Of an elastic job, whose servers are of one pool."""
        model = next(iter(gang.parts.values())).agent.model
        return self._experiment.workload.speeds[gang.job.sim.job_class, model]

    def _noise_of(self, job: JobId) -> float:
        cv = self._experiment.noise.rate_cv
        if cv <= 0:
            return 1.0
        dice = self._noise.get(job)
        if dice is None:
            dice = self._noise[job] = roll(self._experiment.seed, "rate", job)
        return max(0.01, dice.gauss(1.0, cv))
