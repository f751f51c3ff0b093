"""Workloads of other papers' comparisons, built as they describe them; what they leave open is said here. Same arguments, same jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hs_core.dice import Random, roll
from hs_core.errors import RefusedError
from hs_core.forms import Elastic
from hs_core.mechanism.goodput import Speed
from hs_core.model import Topology
from hs_core.names import UserName
from hs_sim.cluster import nodes_of
from hs_sim.drawn import SIZES, STATIC, Rates, Speeds, gavel_like, shockwave_like, workload
from hs_sim.model import ClusterSpec, Costs, Pool, SimJob, Workload
from hs_sim.philly import PhillyJob

GiB = 1 << 30
SERVER = 4  # GPUs of every server in all three papers


# --- FFT (ICS'25, 6.1) --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of FFT's table 2."""

    name: str
    parameters: float
    workers: tuple[int, ...]

    @property
    def state_bytes(self) -> int:
        """Weights, gradients and Adam's moments in mixed precision: the 107 GB that figure 1 has for OPT-6.7B."""
        return int(16 * self.parameters)


FFT_MODELS = (
    Variant("vgg-16", 138e6, (1, 2, 3, 4)),
    Variant("vgg-19", 144e6, (1, 2, 3, 4)),
    Variant("resnet-50", 25.6e6, (1, 2, 3, 4)),
    Variant("resnet-152", 60.2e6, (1, 2, 3, 4)),
    Variant("densenet-121", 8e6, (1, 2, 3, 4)),
    Variant("densenet-201", 20e6, (1, 2, 3, 4)),
    Variant("bark-small", 240e6, (1,)),
    Variant("bark", 900e6, (1,)),
    Variant("bert-base", 110e6, (1,)),
    Variant("bert-large", 340e6, (1,)),
    Variant("gpt-neo-1.3b", 1.3e9, (4,)),
    Variant("gpt-neo-2.7b", 2.7e9, (4,)),
    Variant("gpt2-medium", 345e6, (4, 8)),
    Variant("gpt2-large", 774e6, (4, 8)),
    Variant("opt-2.7b", 2.7e9, (4, 8)),
    Variant("opt-6.7b", 6.7e9, (4, 8)),
)
FFT_CLUSTER = ClusterSpec(
    pools=tuple(
        Pool(model=model, servers=3, gpus_per_server=SERVER, gpu_memory_bytes=memory * GiB)
        for model, memory in (("V100", 32), ("A10", 24), ("T4", 16))
    )
)
FFT_ROUND_S = 300.0
FFT_COSTS = Costs(checkpoint_bytes_per_s=9e9)
"""Two minutes for OPT-6.7B to migrate (figure 2): 107 GB at 10 Gb/s, ten seconds to start, the rest to write and read."""
FFT_SPEEDUPS = (1.6, 2.71)  # V100 over T4: the range of figure 1
FFT_JOBS, FFT_WINDOW_S = 800, 48 * 3600.0
ACTIVATIONS = 2 * GiB  # on each GPU
SHORTEST_S, LONGEST_S = 60.0, 86_400.0  # of Philly's jobs that are taken


def fft_trace(
    philly: Sequence[PhillyJob], *, gang: int = 0, jobs: int = FFT_JOBS, load: float = 1.0, seed: int = 0
) -> Workload:
    """Trace 1 (`gang=4`: jobs with four workers only) or 2 (0: all of table 2): 800 jobs over two days, or as many fewer over less time, on 12 GPUs each of three models.

    Arrivals and durations are those of one two-day window of Philly. Open in the paper: how its durations were scaled to the cluster (here to `load`, GPU time wanted at the
    mean speed over what there is meanwhile), and how fast each model is (here drawn from figure 1's range, A10 half way by ratio).
    """
    dice = roll(seed, "fft")
    picked = _window(philly, jobs, dice)
    models = [one for one in FFT_MODELS if not gang or gang in one.workers]
    chosen = [(dice.choice(models), row) for row in picked]
    sizes = [gang or dice.choice(one.workers) for one, _ in chosen]
    rates: dict[tuple[str, str], float] = {}
    for one in FFT_MODELS:
        speedup = dice.uniform(*FFT_SPEEDUPS)
        rates |= {
            (one.name, "T4"): 1.0,
            (one.name, "A10"): speedup**0.5,
            (one.name, "V100"): speedup,
        }
    gpus = sum(pool.gpus for pool in FFT_CLUSTER.pools)
    asked = sum(size * row.duration_s for size, (_, row) in zip(sizes, chosen, strict=True))
    scale = load * gpus * window_of(jobs) / asked
    made = []
    for number, (size, (one, row)) in enumerate(zip(sizes, chosen, strict=True), start=1):
        mean = sum(rates[one.name, pool.model] for pool in FFT_CLUSTER.pools) / len(FFT_CLUSTER.pools)
        made.append(
            SimJob(
                id=number,
                user=UserName(f"job{number:05d}"),
                arrival_s=row.at_s - picked[0].at_s,
                steps=max(1, round(row.duration_s * scale * mean)),
                job_class=one.name,
                gpus=size // nodes_of(size, SERVER),
                nodes=nodes_of(size, SERVER),
                gpu_memory_bytes=one.state_bytes // size + ACTIVATIONS,
                state_bytes=one.state_bytes,
            )
        )
    return workload(f"fft-{gang or 'mixed'}-{load:g}-{seed}", made, rates)


def window_of(jobs: int) -> float:
    """Seconds in which they come: 800 in two days."""
    return FFT_WINDOW_S * jobs / FFT_JOBS


def _window(philly: Sequence[PhillyJob], jobs: int, dice: Random) -> list[PhillyJob]:
    """So many of two days of the trace that have as many (of less time if fewer are asked for); by arrival."""
    window_s = window_of(jobs)
    fit = [row for row in philly if SHORTEST_S <= row.duration_s <= LONGEST_S]
    starts = list(range(int(philly[-1].at_s // 86_400.0) + 1))
    dice.shuffle(starts)
    for day in starts:
        begin = day * 86_400.0
        inside = [row for row in fit if begin <= row.at_s < begin + window_s]
        if len(inside) >= jobs:
            return sorted(dice.sample(inside, jobs), key=lambda row: row.at_s)
    raise RefusedError(
        f"the trace has no {window_s / 3600:g} hours with {jobs} jobs of a minute to a day; expected a longer one"
    )


# --- Hadar (IPDPS'24, IV) -----------------------------------------------------------------------------------------------

HADAR_SERVERS = 5  # of each model


def hadar_cluster(servers: int = HADAR_SERVERS) -> ClusterSpec:
    """60 GPUs, or as many fewer servers of each model."""
    pools = tuple(
        Pool(model=model, servers=servers, gpus_per_server=SERVER) for model in ("V100", "P100", "K80")
    )
    return ClusterSpec(pools=pools)


HADAR_ROUND_S = 360.0
HADAR_COSTS = Costs(
    suspend_s=0.0,
    resume_s=10.0,
    start_s=10.0,
    swap_bytes_per_s=float("inf"),
    checkpoint_bytes_per_s=float("inf"),
    network_bytes_per_s=float("inf"),
)
"""Ten seconds whenever a job gets GPUs anew."""

HADAR_KINDS: tuple[tuple[float, float, tuple[str, ...]], ...] = (
    (0.0, 1.0, ("ResNet-18",)),
    (1.0, 10.0, ("CycleGAN",)),
    (10.0, 50.0, ("LM", "Transformer")),
    (60.0, 100.0, ("ResNet-50",)),
)
"""GPU-hours from, to, and the models of table II by size, as Gavel's table calls them."""


def hadar_trace(
    philly: Sequence[PhillyJob],
    throughputs: Rates,
    *,
    jobs: int = 480,
    longest_h: float = float("inf"),
    seed: int = 0,
) -> Workload:
    """Jobs of Philly's hours 3 to 10, all there at the beginning; models by GPU-hours, speeds of Gavel's table.

    `longest_h`: of a job on V100. 40 is what the paper's own result implies: there all jobs have ended after 40 hours.
    Open in the paper: on which GPUs the hours count (here V100) and batch sizes (here any of the table). CycleGAN has no gangs in the table: here they are as many times
    as fast. Gangs are of 1, 2, 4 or 8.
    """
    dice = roll(seed, "hadar")
    able = [
        row
        for row in philly
        if 3 <= row.hour < 10 and row.gpus in SIZES and _kind(row) and row.duration_s <= longest_h * 3600
    ]
    if len(able) < jobs:
        raise RefusedError(
            f"the trace has {len(able)} jobs of hours 3 to 10 that fit; expected {jobs} or more"
        )
    speeds = Speeds(throughputs, SERVER)
    made = []
    for number, row in enumerate(dice.sample(able, jobs), start=1):
        names = _kind(row)
        assert names is not None, "those were left out"
        made.append(
            speeds.job(number, dice.choice(speeds.named(dice.choice(names))), row.gpus, row.duration_s, 0.0)
        )
    return workload(f"hadar-{seed}", made, speeds.used)


def one_by_one(workload: Workload) -> Workload:
    """Each gang of N GPUs as N servers with one each, which may be of several models: for policies with `Needs.mixed`."""
    jobs = tuple(replace(job, gpus=1, nodes=job.gang) for job in workload.jobs)
    return replace(workload, name=f"{workload.name}-one-by-one", jobs=jobs)


def _kind(row: PhillyJob) -> tuple[str, ...] | None:
    hours = row.duration_s * row.gpus / 3600.0
    return next((models for low, high, models in HADAR_KINDS if low < hours <= high), None)


# --- HadarE (Hadar's extension, VI) -------------------------------------------------------------------------------------

HADARE_CLUSTER = ClusterSpec(
    pools=tuple(
        Pool(model=model, servers=servers, gpus_per_server=1)
        for model, servers in (("V100", 1), ("P100", 2), ("K80", 2))
    )
)
"""Its AWS cluster of five servers with one GPU each; P100 for its two T4, of which Gavel's table has no speeds."""

HADARE_KINDS: Mapping[str, tuple[float, tuple[float, float, float]]] = {
    "IC": (10.0, (24.09, 22.30, 7.05)),
    "LM": (20.0, (64.74, 58.17, 17.14)),
    "LT": (20.0, (8.62, 5.09, 1.75)),
    "RS": (30.0, (7.47, 16.60, 10.44)),
    "MM": (15.0, (11.06, 9.54, 5.47)),
}
"""Table III: minutes on V100, and steps a second on V100, P100 and K80 (Gavel's ResNet-18 with batches of 64, LM 20, Transformer 64, Recommendation 2048, Transformer 16)."""

HADARE_MIXES: Mapping[str, str] = {
    "M-1": "MM",
    "M-3": "LT MM MM",
    "M-4": "IC LM LT MM",
    "M-5": "IC LM LT RS MM",
    "M-8": "IC LM LT RS" + 4 * " MM",
    "M-10": "IC LM LT RS" + 6 * " MM",
    "M-12": "IC LM LT RS" + 8 * " MM",
}


def hadare_mix(name: str) -> Workload:
    """One of its seven mixes, all there at the beginning. Open in the paper: how long the jobs are; here 10 minutes on V100 for S, 15 for M, 20 for L, 30 for XL."""
    models = [pool.model for pool in HADARE_CLUSTER.pools]
    jobs = []
    for number, kind in enumerate(HADARE_MIXES[name].split(), start=1):
        minutes, (on_v100, *_) = HADARE_KINDS[kind]
        jobs.append(
            SimJob(
                id=number,
                user=UserName(f"job{number:05d}"),
                arrival_s=0.0,
                steps=round(minutes * 60 * on_v100),
                job_class=kind,
            )
        )
    rates = {
        (kind, model): rate
        for kind, (_, speeds) in HADARE_KINDS.items()
        for model, rate in zip(models, speeds, strict=True)
    }
    return workload(f"hadare-{name}", jobs, rates)


# --- Tesserae (6.1, 7.2) ------------------------------------------------------------------------------------------------

TESSERAE_SERVERS = 20
TESSERAE_ROUND_S = 360.0


def tesserae_cluster(servers: int = TESSERAE_SERVERS) -> ClusterSpec:
    """80 GPUs of one model, or fewer servers."""
    return ClusterSpec(pools=(Pool(model="V100", servers=servers, gpus_per_server=SERVER),))


def tesserae_default(
    throughputs: Rates, *, jobs: int = 900, jobs_per_hour: float = 80.0, seed: int = 0
) -> Workload:
    """Shockwave-like: most jobs small. Open in the paper: the hours of the sizes; here those of Pollux' categories in GPU-hours, uniform in the logarithm."""
    found = shockwave_like(
        throughputs, jobs=jobs, jobs_per_hour=jobs_per_hour, seed=seed, gpus_per_server=SERVER, modes=STATIC
    )
    return replace(found, name=f"tesserae-{seed}")


def tesserae_gavel(
    throughputs: Rates, *, jobs: int = 900, jobs_per_hour: float = 80.0, seed: int = 0
) -> Workload:
    """Gavel-like: 10^x minutes, x uniform in [1.5, 3] for four fifths of the jobs and in [3, 4] for the others."""
    found = gavel_like(throughputs, jobs=jobs, jobs_per_hour=jobs_per_hour, seed=seed, gpus_per_server=SERVER)
    return replace(found, name=f"tesserae-gavel-{seed}")


# --- SJF-BSBF (IWQoS'24, VI) --------------------------------------------------------------------------------------------

BSBF_WINDOW_S = 8 * 3600.0  # in which 240 jobs come
BSBF_MEMORY = {  # GiB of a GPU with the user's batch, and of these what does not shrink with it; powers of two of sub-batches
    "BERT": (9.0, 2.5),
    "CIFAR10": (2.5, 0.5),
    "DeepSpeech2": (6.0, 1.0),
    "ImageNet": (8.5, 1.0),
    "NCF": (2.0, 1.0),
    "YoloV3": (8.0, 1.5),
}
BSBF_SMALL_H, BSBF_LARGE_H = (
    0.55,
    1.75,
)  # mean hours that jobs train: table III's completion less queueing times under FIFO
BSBF_LARGE = (
    0.117  # part of the jobs that are large: what table III's means of all, large and small jobs come to
)
BSBF_SLOWED = (1.05, 1.95)  # ratios of pairs
BSBF_EXAMPLES, BSBF_SYNC = 32, 0.2  # on a GPU; part of an iteration
BSBF_MOST, BSBF_FAR = 16, 2.0  # GPUs of an elastic job; times as long over several servers


def bsbf_cluster(servers: int = 16) -> ClusterSpec:
    """Four GPUs with 11 GiB on each; 4 servers in the lab, 16 simulated."""
    pool = Pool(model="2080Ti", servers=servers, gpus_per_server=SERVER, gpu_memory_bytes=11 * GiB)
    return ClusterSpec(pools=(pool,))


def bsbf_trace(*, jobs: int = 240, seed: int = 0, ratio: float = 0.0) -> Workload:
    """240 jobs in eight hours, as many more or fewer in the same time: one in nine with 8 or 16 GPUs, the others with up to 4.

    Open in the paper: which jobs of Philly's, how long each trains and how much pairs slow each other. Here hours are exponential with the means that its table III implies,
    arrivals uniform, and ratios uniform in `BSBF_SLOWED` by ordered pair of tasks, or all `ratio` (its figure 6b).
    """
    dice = roll(seed, "bsbf")
    made = []
    for arrival_s in sorted(dice.uniform(0.0, BSBF_WINDOW_S) for _ in range(jobs)):
        large = dice.random() < BSBF_LARGE
        gang = dice.choice([8, 8, 8, 16]) if large else dice.choice([1, 1, 1, 2, 4])
        seconds = dice.expovariate(1 / (3600 * (BSBF_LARGE_H if large else BSBF_SMALL_H)))
        made.append(_bsbf_job(dice, gang, max(60.0, seconds), arrival_s))
    return _bsbf_workload(f"bsbf-{jobs}-{seed}", made, dice, ratio)


def bsbf_lab(*, seed: int = 0, ratio: float = 0.0) -> Workload:
    """Table II's 30 jobs for 16 GPUs: 20 with up to 8, 10 with 12 or 16; 100 to 5,000 iterations, all come within ten minutes.

    Open in the paper: when they come and how long an iteration takes; here a twentieth of a second to a fifth.
    """
    dice = roll(seed, "bsbf-lab")
    gangs = [dice.choice([1, 2, 4, 8]) for _ in range(20)] + [dice.choice([12, 16]) for _ in range(10)]
    dice.shuffle(gangs)
    arrivals = sorted(dice.uniform(0.0, 600.0) for _ in gangs)
    made = [
        _bsbf_job(dice, gang, dice.randint(100, 5_000) * dice.uniform(0.05, 0.2), arrival_s)
        for gang, arrival_s in zip(gangs, arrivals, strict=True)
    ]
    return _bsbf_workload(f"bsbf-lab-{seed}", made, dice, ratio)


def bsbf_elastic(found: Workload, *, anywhere: bool = False) -> Workload:
    """The same jobs, those on one server elastic: 1 to 4 GPUs, mini-batches of up to 8 times their own size; for `pollux`, under others they run as before.

    `anywhere`: all of them, on 1 to 16 GPUs of any number of servers, over several of which synchronizing takes `BSBF_FAR` times as long as on one.
    The paper says nothing of what makes elastic jobs fast or slow. Here: 32 examples on a GPU, of an iteration a fifth to synchronize several GPUs, a tenth more of that for
    each beyond two, gradients in proportion to examples but for a fifth of their time, a noise scale of 8 times the own batch, twice the examples on a GPU at most.
    """
    jobs, task_of = [], {job.job_class: job.job_class for job in found.jobs}
    rates, speeds = dict(found.rates), dict[tuple[str, str], Speed]()
    for job in found.jobs:
        if job.nodes > 1 and not anywhere:
            jobs.append(job)
            continue
        class_, batch = f"{job.job_class} x{job.gang}", BSBF_EXAMPLES * job.gang
        task_of[class_] = job.job_class
        for model in (model for of, model in found.rates if of == job.job_class):
            seconds = 1 / found.rates[job.job_class, model]
            gradients = seconds * (1 - BSBF_SYNC if job.gang > 1 else 1.0)
            local_s = seconds * BSBF_SYNC / (1 + 0.1 * max(0, job.gang - 2))
            local_s /= BSBF_FAR if job.nodes > 1 else 1.0
            speeds[class_, model] = Speed(
                grad_s=gradients * 0.2,
                grad_per_example_s=gradients * 0.8 / BSBF_EXAMPLES,
                local_s=local_s,
                local_per_gpu_s=0.1 * local_s,
                far_s=BSBF_FAR * local_s,
                far_per_gpu_s=0.1 * BSBF_FAR * local_s,
            )
            rates[class_, model] = found.rates[job.job_class, model]
        elastic = Elastic(
            gpus_min=1,
            gpus_max=BSBF_MOST if anywhere else SERVER,
            batch=batch,
            batch_max=8 * batch,
            batch_per_gpu_max=2 * BSBF_EXAMPLES,
            noise_scale=8.0 * batch,
        )
        topology = Topology.ANY if anywhere else job.topology
        jobs.append(replace(job, job_class=class_, accumulation_max=1, elastic=elastic, topology=topology))
    slowed = {
        (one, other, model): found.interference[task_of[one], task_of[other], model]
        for one in task_of
        for other in task_of
        for model in {model for _, model in found.rates}
    }
    name = f"{found.name}-{'anywhere' if anywhere else 'elastic'}"
    return replace(found, name=name, jobs=tuple(jobs), rates=rates, speeds=speeds, interference=slowed)


def _bsbf_job(dice: Random, gang: int, seconds: float, arrival_s: float) -> SimJob:
    task = dice.choice(sorted(BSBF_MEMORY))
    memory, fixed = BSBF_MEMORY[task]
    nodes = nodes_of(gang, SERVER)
    return SimJob(
        id=0,
        user=UserName("lab"),
        arrival_s=arrival_s,
        steps=max(1, round(10 * seconds)),
        job_class=task,
        gpus=gang // nodes,
        nodes=nodes,
        gpu_memory_bytes=int(memory * GiB),
        gpu_memory_fixed_bytes=int(fixed * GiB),
        accumulation_max=32,
    )


def _bsbf_workload(name: str, made: Sequence[SimJob], dice: Random, ratio: float) -> Workload:
    tasks = sorted(BSBF_MEMORY)
    slowed = {(a, b, "2080Ti"): ratio or dice.uniform(*BSBF_SLOWED) for a in tasks for b in tasks}
    found = workload(name, made, {(task, "2080Ti"): 10.0 for task in tasks})
    return replace(found, interference=slowed)


# --- PAL (SC'24) --------------------------------------------------------------------------------------------------------

PAL_SERVERS = 16
PAL_ROUND_S = 300.0
PAL_SPREAD = 0.08  # of the scores' logarithm: the mean variation that SC'22, "Not All GPUs Are Created Equal", measured
PAL_SLOW, PAL_SLOWEST = 0.05, 1.5  # that part of the GPUs is an outlier, up to so many times as slow (ibidem)
PAL_FEEL = {"compute": 1.0, "mixed": 0.5, "memory": 0.0}  # exponent of a GPU's score, by class of jobs


def pal_cluster(
    servers: int = PAL_SERVERS, *, spread: float = PAL_SPREAD, slow: float = PAL_SLOW, seed: int = 0
) -> ClusterSpec:
    """64 GPUs of one model in servers of four, not equally fast.

    Open here: the scores that PAL measured on two clusters. These are log-normal, some GPUs being outliers as far as SC'22 saw them, and
    are felt in full, by half and not at all by the three classes that PAL has.
    """
    dice = roll(seed, "pal-gpus")
    gpus = servers * SERVER
    times = [
        dice.uniform(1.2, PAL_SLOWEST) if dice.random() < slow else dice.lognormvariate(0.0, spread)
        for _ in range(gpus)
    ]
    slowdowns = {name: tuple(value**feel for value in times) for name, feel in PAL_FEEL.items() if feel}
    return ClusterSpec(
        pools=(Pool(model="V100", servers=servers, gpus_per_server=SERVER, slowdowns=slowdowns),)
    )


def pal_trace(*, jobs: int = 160, jobs_per_hour: float = 20.0, seed: int = 0) -> Workload:
    """Jobs of all three classes alike, most on one GPU. Open here: sizes and lengths of its traces; gangs are Philly's of `--like gavel`, hours uniform in the logarithm from 0.1 to 20."""
    dice = roll(seed, "pal")
    at_s, made = 0.0, []
    for number in range(1, jobs + 1):
        at_s += dice.expovariate(jobs_per_hour / 3600.0)
        gang = dice.choices([1, 2, 4, 8], [70, 10, 15, 5])[0]
        nodes = nodes_of(gang, SERVER)
        made.append(
            SimJob(
                id=number,
                user=UserName("lab"),
                arrival_s=at_s,
                steps=round(3600 * 0.1 * 200 ** dice.random()),
                job_class=dice.choice(sorted(PAL_FEEL)),
                gpus=gang // nodes,
                nodes=nodes,
                state_bytes=GiB,
            )
        )
    return workload(f"pal-{seed}", made, {(name, "V100"): 1.0 for name in PAL_FEEL})
