"""What a controller knows of speeds that were all measured before the run: classes, shapes and pairs as depth quanta has them."""

from typing import Any

from hs_core.dice import roll
from hs_core.policy import Needs
from hs_core.profile import KEEP, SETTLE_S, Profile, RateSample
from hs_sim.model import Experiment
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.pairs import Interference
from hs_sim.quanta.shapes import Shapes


def known_speeds(experiment: Experiment, needs: Needs) -> list[Any]:
    """As its journal keeps them."""
    fleet = Fleet(experiment, mixed=needs.mixed)
    rates = dict(zip(fleet.classes.pairs, fleet.classes.rates.ravel().tolist(), strict=True))
    profile = Profile()
    for (job_class, model), rate in rates.items():
        dice = roll(experiment.seed, "known", job_class, model)
        for _ in range(KEEP):
            blurred = rate * max(0.01, dice.gauss(1.0, experiment.noise.rate_cv))
            profile.add(_sample(job_class, model, blurred))
    for (job_class, model), shapes in Shapes(fleet, known=True).known().items():
        for shape, rate in shapes.items():
            for _ in range(KEEP):
                profile.add(_sample(job_class, model, rate, shape=shape))
    ratios = Interference(fleet, experiment.workload.interference) if needs.sharing else {}
    for (job_class, beside, model), ratio in ratios.items():
        for _ in range(KEEP):
            profile.add(_sample(job_class, model, rates[job_class, model] / ratio, beside=beside))
    return profile.dump()


def _sample(job_class: str, model: str, steps_per_s: float, **others: Any) -> RateSample:
    return RateSample(
        job_class=job_class,
        model=model,
        steps_per_s=steps_per_s,
        now_s=0.0,
        since_resume_s=SETTLE_S,
        **others,
    )
