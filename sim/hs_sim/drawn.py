"""Workloads drawn as Gavel and Shockwave draw theirs: models from a table of speeds, gangs, lengths and Poisson arrivals. Same arguments, same jobs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hs_core.dice import Random, roll
from hs_core.errors import RefusedError
from hs_core.names import UserName
from hs_sim.batches import stages
from hs_sim.cluster import nodes_of
from hs_sim.model import SimJob, Workload

SIZES = (1, 2, 4, 8)
Rates = Mapping[tuple[str, str], float]
Modes = tuple[float, float, float]  # parts that are static, accordion, gns
STATIC: Modes = (1.0, 0.0, 0.0)
REFERENCE = "V100"  # lengths are drawn in seconds on it
HOURS = (
    (0.1, 1.0),
    (1.0, 10.0),
    (10.0, 100.0),
    (100.0, 200.0),
)  # GPU-hours of Pollux' small to extra large jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mix:
    sizes: tuple[float, ...]  # parts of SIZES
    seconds: Callable[[Random], float]  # that a job takes on REFERENCE
    of_gpu_time: bool = False  # of all its GPUs together
    modes: Modes = STATIC


def shockwave_like(
    throughputs: Rates,
    *,
    jobs: int,
    jobs_per_hour: float,
    seed: int = 0,
    gpus_per_server: int = 4,
    most_gpus: int = 0,
    modes: Modes = (0.0, 0.5, 0.5),
) -> Workload:
    """Most jobs small (Shockwave, NSDI'23), and batch sizes that change, where the table knows them; GPU-hours uniform in the logarithm of their category."""

    def seconds(dice: Random) -> float:
        low, high = HOURS[pick(dice, (0.72, 0.2, 0.05, 0.03))]
        return float(low * (high / low) ** dice.random()) * 3600.0

    mix = _Mix(sizes=(0.6, 0.3, 0.09, 0.01), seconds=seconds, of_gpu_time=True, modes=modes)
    arrivals = _arrivals(jobs, jobs_per_hour, seed)
    return _drawn(
        f"shockwave-like-{seed}",
        Speeds(throughputs, gpus_per_server),
        mix,
        arrivals,
        seed=seed,
        most_gpus=most_gpus,
    )


def gavel_like(
    throughputs: Rates,
    *,
    jobs: int,
    jobs_per_hour: float,
    seed: int = 0,
    gpus_per_server: int = 4,
    most_gpus: int = 0,
) -> Workload:
    """Lengths of 10^x minutes (Gavel, OSDI'20), x uniform in [1.5, 3] for four fifths of the jobs and in [3, 4] for the others."""

    def seconds(dice: Random) -> float:
        exponent = dice.uniform(1.5, 3.0) if dice.random() < 0.8 else dice.uniform(3.0, 4.0)
        return float(10**exponent) * 60.0

    mix = _Mix(sizes=(0.7, 0.1, 0.15, 0.05), seconds=seconds)
    arrivals = _arrivals(jobs, jobs_per_hour, seed)
    return _drawn(
        f"gavel-like-{seed}",
        Speeds(throughputs, gpus_per_server),
        mix,
        arrivals,
        seed=seed,
        most_gpus=most_gpus,
    )


def _arrivals(jobs: int, jobs_per_hour: float, seed: int) -> tuple[float, ...]:
    dice = roll(seed, "arrivals")
    if not jobs_per_hour:
        return (0.0,) * jobs
    return tuple(accumulate(dice.expovariate(jobs_per_hour / 3600.0) for _ in range(jobs)))


def _drawn(
    name: str, speeds: "Speeds", mix: _Mix, arrivals: Sequence[float], *, seed: int, most_gpus: int
) -> Workload:
    dice, modes = roll(seed, "tesserae"), roll(seed, "modes")
    parts = [
        part if not most_gpus or size <= most_gpus else 0.0
        for size, part in zip(SIZES, mix.sizes, strict=True)
    ]
    made = []
    for number, at_s in enumerate(arrivals, start=1):
        gang = SIZES[pick(dice, parts)]
        seconds = mix.seconds(dice) / (gang if mix.of_gpu_time else 1)
        job = speeds.job(number, dice.choice(speeds.of_gang(gang)), gang, seconds, at_s)
        mode = ("static", "accordion", "gns")[pick(modes, mix.modes)]
        made.append(speeds.changing(job, mode))
    return workload(name, made, speeds.used)


class Speeds:
    """Gavel's table, `<model> (batch size N) xG` by GPU model; and what of it was used."""

    def __init__(self, table: Rates, gpus_per_server: int) -> None:
        self._table = table
        self._gpus_per_server = gpus_per_server
        self._kinds = tuple(dict.fromkeys(name.rpartition(" x")[0] for name, _ in sorted(table)))
        self._models = tuple(dict.fromkeys(model for _, model in sorted(table)))
        self.used: dict[tuple[str, str], float] = {}

    def named(self, model: str) -> tuple[str, ...]:
        """All batch sizes of it."""
        found = tuple(kind for kind in self._kinds if kind == model or kind.startswith(f"{model} ("))
        if not found:
            raise RefusedError(f"throughputs have no {model}; expected Gavel's table")
        return found

    def of_gang(self, gang: int) -> tuple[str, ...]:
        found = tuple(
            kind for kind in self._kinds if self._table.get((f"{kind} x{gang}", REFERENCE), 0.0) > 0
        )
        if not found:
            raise RefusedError(f"throughputs have nothing on {gang} {REFERENCE}; expected Gavel's table")
        return found

    def job(self, number: int, kind: str, gang: int, seconds: float, arrival_s: float) -> SimJob:
        """`seconds`: on REFERENCE."""
        job_class = f"{kind} x{gang}"
        speed = {model: self._speed(kind, gang, model) for model in self._models}
        self.used |= {(job_class, model): rate for model, rate in speed.items()}
        types = () if all(speed.values()) else tuple(model for model, rate in speed.items() if rate > 0)
        nodes = nodes_of(gang, self._gpus_per_server)
        return SimJob(
            id=number,
            user=UserName(f"job{number:05d}"),
            arrival_s=arrival_s,
            steps=max(1, round(seconds * speed[REFERENCE])),
            job_class=job_class,
            gpus=gang // nodes,
            nodes=nodes,
            gpu_types=types,
        )

    def changing(self, job: SimJob, mode: str) -> SimJob:
        """With stages, where that mode has some for its model."""
        kind, _, gang = job.job_class.rpartition(" x")
        parts, growth = stages(mode, kind, int(gang), job.steps, self._table)
        if not parts:
            return job
        for stage in parts:
            self.used |= {
                (stage.job_class, model): self._table.get((stage.job_class, model), 0.0)
                for model in self._models
            }
        return replace(job, stages=parts, growth=growth)

    def _speed(self, kind: str, gang: int, model: str) -> float:
        measured = self._table.get((f"{kind} x{gang}", model))
        return gang * self._table.get((f"{kind} x1", model), 0.0) if measured is None else measured


def pick(dice: Random, parts: Sequence[float]) -> int:
    at = dice.random() * sum(parts)
    for place, part in enumerate(parts):
        at -= part
        if at < 0:
            return place
    return len(parts) - 1


def workload(name: str, jobs: Sequence[SimJob], rates: Rates) -> Workload:
    """Every job is a user of its own: these papers have none."""
    assert all(one.arrival_s <= other.arrival_s for one, other in pairwise(jobs)), name
    classes = {job.job_class for job in jobs} | {stage.job_class for job in jobs for stage in job.stages}
    return Workload(
        name=name,
        jobs=tuple(replace(job, id=number) for number, job in enumerate(jobs, start=1)),
        tickets={job.user: 100.0 for job in jobs},
        rates={at: rate for at, rate in rates.items() if at[0] in classes},
        source=f"{name}, made as the paper says",
    )
