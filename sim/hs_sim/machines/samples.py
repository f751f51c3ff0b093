"""What users had of a simulated cluster from one sample to the next."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from hs_core.names import UserName
from hs_sim.machines.gang import Gang
from hs_sim.machines.truth import Truth
from hs_sim.model import Sample


class Samples:
    def __init__(self) -> None:
        self.taken: list[Sample] = []
        self.at_s = 0.0  # the last one
        self._gpu_s: dict[tuple[UserName, str], float] = {}  # received until then
        self._steps: dict[UserName, float] = {}  # and done
        self._shares: Mapping[tuple[UserName, str], Fraction] = {}  # as decided last
        self._shares_from_s = 0.0
        self._entitled_s: dict[tuple[UserName, str], float] = {}  # since the last one

    def entitled(self, shares: Mapping[tuple[UserName, str], Fraction], now_s: float) -> None:
        """To so many GPUs, from now on."""
        self._accrue(now_s)
        self._shares = shares

    def _accrue(self, now_s: float) -> None:
        took_s = now_s - self._shares_from_s
        self._shares_from_s = now_s
        if took_s > 0:
            for key, gpus in self._shares.items():
                self._entitled_s[key] = self._entitled_s.get(key, 0.0) + float(gpus) * took_s

    def take(self, now_s: float, truth: Truth, gangs: Iterable[Gang]) -> None:
        """All GPU-time is charged up to `now_s`."""
        took_s = now_s - self.at_s
        self._accrue(now_s)
        received, steps = _received(truth), _steps(truth, gangs)
        self.taken.append(
            Sample(
                at_s=now_s,
                gpus={k: (v - self._gpu_s.get(k, 0.0)) / took_s for k, v in sorted(received.items())},
                entitled={key: gpu_s / took_s for key, gpu_s in sorted(self._entitled_s.items())},
                steps_per_s={
                    user: max(0.0, (v - self._steps.get(user, 0.0)) / took_s)
                    for user, v in sorted(steps.items())
                },
            )
        )
        self._gpu_s, self._steps, self.at_s = received, steps, now_s
        self._entitled_s = {}


def _received(truth: Truth) -> dict[tuple[UserName, str], float]:
    received: dict[tuple[UserName, str], float] = {}
    for job in truth.jobs.values():
        for model, gpu_s in job.gpu_s.items():
            key = (job.sim.user, model)
            received[key] = received.get(key, 0.0) + gpu_s
    return received


def _steps(truth: Truth, gangs: Iterable[Gang]) -> dict[UserName, float]:
    """With those of copies: what each did since it began adds up."""
    steps: dict[UserName, float] = {}
    for job in truth.jobs.values():
        steps[job.sim.user] = steps.get(job.sim.user, 0.0) + job.steps
    bases: dict[int, int] = {}
    for gang in gangs:
        if gang.job.steps < gang.job.sim.steps:
            base = (gang.restored or 0) if gang.copy >= 0 else 0
            steps[gang.job.sim.user] += gang.step - base
            bases[gang.job.sim.id] = max(base, bases.get(gang.job.sim.id, 0))
    for sim_id, base in bases.items():
        steps[truth.jobs[sim_id].sim.user] += base
    return steps
