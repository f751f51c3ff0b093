"""The same trouble where jobs, users or servers are of another kind."""

from collections.abc import Callable
from dataclasses import replace

from hs_core.dice import roll
from hs_core.forms import Elastic
from hs_core.mechanism.goodput import Speed
from hs_core.model import Topology
from hs_core.policies import find
from hs_sim.cases.case import TRADERS_JOBS, Case
from hs_sim.cases.drawn import MOMENTS, plan_of, spec_of
from hs_sim.cluster import servers
from hs_sim.elastic import declared_rates
from hs_sim.machines.trouble import TRADE_MOMENT
from hs_sim.traders import with_traders

# What elastic jobs take for a mini-batch on a V100, over several servers twice as long to synchronize; and what they allow, but for GPUs.
NET = Speed(
    grad_s=0.02,
    grad_per_example_s=0.001,
    local_s=0.005,
    local_per_gpu_s=0.001,
    far_s=0.01,
    far_per_gpu_s=0.001,
)
GROWING = Elastic(gpus_min=1, gpus_max=2, batch=64, batch_max=512, batch_per_gpu_max=64, noise_scale=500.0)


def in_folders(case: Case) -> Case:
    """The same trouble where two jobs in three outlive every server. What copies write is fetched from where it is known to be."""
    if find(case.experiment.policy).needs.copies:
        return case
    specs = {
        job: replace(spec, checkpoint_dir="/shared") if job % 3 else spec for job, spec in case.specs.items()
    }
    return replace(case, specs=specs)


def trading(case: Case) -> Case:
    """Trouble of that kind where users trade fast GPUs for slow ones."""
    experiment = with_traders(case.experiment)
    jobs, dice = experiment.workload.jobs, roll(experiment.seed, "trades")
    names = [name for name, _ in servers(experiment.cluster)]
    return replace(
        case,
        experiment=experiment,
        trades=True,
        moving=case.moving / TRADERS_JOBS,
        plan=plan_of(dice, names, (*MOMENTS, *[TRADE_MOMENT] * 5)) if case.plan.crashes else case.plan,
        cannot_checkpoint=frozenset(job.id for job in jobs if dice.random() < 0.05),
        specs={job.id: spec_of(dice, job) for job in jobs},
    )


def crowding(case: Case) -> Case:
    """The same trouble where who comes into its turn has others leave its GPUs' memory, for the host's or for a checkpoint."""
    experiment = case.experiment
    dice = roll(experiment.seed, "crowding")
    pools = tuple(replace(pool, gpu_memory_bytes=16 << 30) for pool in experiment.cluster.pools)
    sizes = {job.id: dice.choice([1, 3, 6, 9, 9, 15]) << 30 for job in experiment.workload.jobs}
    jobs = tuple(replace(job, gpu_memory_bytes=sizes[job.id]) for job in experiment.workload.jobs)
    crowded = replace(
        experiment,
        cluster=replace(experiment.cluster, pools=pools),
        workload=replace(experiment.workload, jobs=jobs),
    )
    return replace(
        case,
        experiment=crowded,
        specs={job: replace(spec, gpu_memory_bytes=sizes[job]) for job, spec in case.specs.items()},
        parking_bytes=dice.choice([0, 8 << 30, 30 << 30, 1 << 40, 1 << 40]),
        cannot_swap=frozenset(job.id for job in jobs if dice.random() < 0.1),
    )


def uneven(case: Case) -> Case:
    """The same trouble while jobs go after faster GPUs of their servers."""
    experiment = case.experiment
    dice = roll(experiment.seed, "uneven")
    pools = tuple(
        replace(pool, slowdowns={"c": tuple(dice.choice([1.0, 1.0, 1.3, 2.0]) for _ in range(pool.gpus))})
        for pool in experiment.cluster.pools
    )
    slow = replace(experiment, cluster=replace(experiment.cluster, pools=pools), policy="pal")
    return replace(case, experiment=slow)


def mixing(case: Case) -> Case:
    """The same trouble with every other job a gang that no pool may be large enough for."""
    experiment = case.experiment
    servers = sum(pool.servers for pool in experiment.cluster.pools)
    if servers < 2:
        return case
    gangs = {
        job.id: replace(job, nodes=min(servers, 2 + job.id % 3 // 2), gpus=min(job.gpus, 2), gpu_types=())
        for job in experiment.workload.jobs
        if job.id % 2
    }
    jobs = tuple(gangs.get(job.id, job) for job in experiment.workload.jobs)
    specs = {
        job: replace(spec, nodes=gangs[job].nodes, gpus=gangs[job].gpus, gpu_types=())
        if job in gangs
        else spec
        for job, spec in case.specs.items()
    }
    mixed = replace(experiment, workload=replace(experiment.workload, jobs=jobs), policy="hadar")
    return replace(case, experiment=mixed, specs=specs)


def forking(case: Case) -> Case:
    """The same trouble while jobs train as averaged copies, for several rounds. Nobody else moves them."""
    experiment = case.experiment
    jobs = tuple(
        replace(job, nodes=1, gpus=1, gpu_types=(), steps=3 * job.steps) for job in experiment.workload.jobs
    )
    steps = {job.id: job.steps for job in jobs}
    specs = {
        job: replace(spec, nodes=1, gpus=1, gpu_types=(), steps=steps[job])
        for job, spec in case.specs.items()
    }
    forked = replace(experiment, workload=replace(experiment.workload, jobs=jobs), policy="hadare")
    return replace(case, experiment=forked, moving=0.0, specs=specs)


def growing(case: Case) -> Case:
    """The same trouble while jobs are restarted on other numbers of GPUs, most of them over any number of servers."""
    experiment = case.experiment
    dice = roll(experiment.seed, "growing")
    pools = experiment.cluster.pools
    most = max(pool.servers * pool.gpus_per_server for pool in pools)
    speeds = {
        ("c", pool.model): replace(NET, grad_per_example_s=(2 if pool.model == "K80" else 1) / 1_000)
        for pool in pools
    }
    jobs = tuple(
        replace(
            job,
            nodes=1,
            gpus=1,
            gpu_types=(),
            steps=8 * job.steps,
            elastic=replace(GROWING, gpus_max=dice.randint(2, most)),
            topology=dice.choice([Topology.ANY, Topology.ANY, Topology.AUTO]),
        )
        for job in experiment.workload.jobs
    )
    again = {job.id: job for job in jobs}
    specs = {
        job: replace(
            spec,
            nodes=1,
            gpus=1,
            gpu_types=(),
            steps=again[job].steps,
            elastic=again[job].elastic,
            topology=again[job].topology,
        )
        for job, spec in case.specs.items()
    }
    rates = declared_rates({"c": jobs[0]}, speeds)
    workload = replace(experiment.workload, jobs=jobs, rates=rates, speeds=speeds)
    growing = replace(experiment, workload=workload, policy="pollux")
    return replace(case, experiment=growing, specs=specs)


def sharing(case: Case) -> Case:
    """The same trouble while two jobs may be on one GPU. Nothing is moved by a policy that shares."""
    experiment = case.experiment
    jobs = tuple(replace(job, gpu_memory_bytes=4 << 30) for job in experiment.workload.jobs)
    policy = "sjf-bsbf" if experiment.seed % 2 else "sjf-ffs"
    shared = replace(
        experiment, workload=replace(experiment.workload, jobs=jobs), policy=policy, interference=1.3
    )
    specs = {job: replace(spec, gpu_memory_bytes=4 << 30) for job, spec in case.specs.items()}
    return replace(case, experiment=shared, moving=0.0, specs=specs)


def tight(case: Case) -> Case:
    """The same trouble where servers' memory has room for few processes."""
    return replace(case, spare_processes=roll(case.experiment.seed, "tight").choice([0, 1, 2]))


KINDS: tuple[tuple[int, int, Callable[[Case], Case]], ...] = (
    (7, 0, sharing),
    (5, 2, forking),
    (6, 3, growing),
    (11, 3, uneven),
    (13, 5, tight),
    (9, 1, mixing),
)
"""Every so many seeds, from which on: the first that fits is of that kind."""
FOLDERS = 10  # likewise where users name folders for their checkpoints, whatever kind it is
UNTRADED = 3  # in two of so many that are of none of these kinds, users trade
CROWDED = 4  # of those, one in so many has jobs that do not fit beside one another into GPUs


def of_its_kind(case: Case) -> Case:
    """As its seed has it."""
    seed = case.experiment.seed
    change = next((change for every, first, change in KINDS if seed % every == first), None)
    if change is not None:
        case = change(case)
    else:
        case = trading(case) if seed % UNTRADED != 2 else case
        case = crowding(case) if seed % CROWDED == 1 else case
    return in_folders(case) if seed % FOLDERS == 4 else case
