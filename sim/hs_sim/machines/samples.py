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
        self.done: dict[int, int] = {}  # the same by job
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
        received = _received(truth)
        self.done = _done(truth, gangs, self.done)
        steps: dict[UserName, float] = {}
        for at, job in truth.jobs.items():
            steps[job.sim.user] = steps.get(job.sim.user, 0.0) + self.done[at]
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


def _done(truth: Truth, gangs: Iterable[Gang], before: Mapping[int, int]) -> dict[int, int]:
    """Mini-batches by job. Those of copies add up: what each did since it began. Who has none that knows where it goes on has done what it had `before`."""
    done = {at: max(job.steps, before.get(at, 0)) for at, job in truth.jobs.items()}
    trains: dict[int, int] = {}
    bases: dict[int, int] = {}
    for gang in gangs:
        at = gang.job.sim.id
        if gang.restored is not None and gang.job.steps < gang.job.sim.steps:
            base = gang.restored if gang.copy >= 0 else 0
            trains[at] = trains.get(at, 0) + gang.step - base
            bases[at] = max(base, bases.get(at, 0))
    return done | {at: steps + bases[at] for at, steps in trains.items()}
