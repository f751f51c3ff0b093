"""What a seed of `hs-sim faults` stands for: a random cluster, its jobs, and what goes wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hs_core.dice import Random, roll
from hs_core.forms import Elastic
from hs_core.mechanism.pollux import Speed
from hs_core.model import JobSpec, OnPartition, Topology
from hs_core.names import HostName, UserName
from hs_core.policies import find
from hs_sim.cluster import servers
from hs_sim.elastic import declared_rates
from hs_sim.machines.trouble import DEEDS, LOSSES, MISHAPS, ON_A_HOST, TRADE_MOMENT, Fault, FaultPlan, Kind
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, SimJob, Workload
from hs_sim.traders import with_traders

QUANTUM_S = 10.0
TROUBLE_S = 120.0  # nothing new goes wrong after
CALM = 8  # one seed in so many has no faults: then the ledger is judged strictly
SHARED = 7  # every so many seeds, two jobs may be on one GPU
MIXED = 9  # every so many, gangs are over servers of several GPU models where there are several
FORKED = 5  # likewise with copies that are averaged
UNEVEN = 11  # likewise with GPUs that are not equally fast, and turns that name them
TIGHT = 13  # likewise with servers whose memory has room for few processes
BESIDE = 4  # with `with_cuts` links are all that goes wrong, but for one seed in so many
FOLDERS = 10  # likewise with users who name folders for their checkpoints, which all servers see
CROWDED = (
    4  # of those that are none of these, one in so many has jobs that do not fit beside one another into GPUs
)
UNTRADED = 3  # in two of so many that are none of these, users trade
TRADERS_JOBS = 3  # times as many jobs as elsewhere, each of them moved for no reason so much more seldom: the policy has to keep up
ELASTIC = 6  # likewise with jobs that are restarted on other numbers of GPUs and of servers
MOMENTS = ("Launch", "Suspend", "Resume", "Checkpoint", "Fetch", "Reserve", "Forget")
MODELS = ("V100", "K80")
POLICIES = ("gandiva-fair", "gandiva-fair", "gandiva-fair", "las", "gang-lottery")
NEXT_IN_OFFICE = (
    *("gandiva-fair", "las", "fifo", "gang-lottery", "tiresias", "srtf", "pal", "hadar", "hadare", "pollux"),
    *("sjf-bsbf", "sjf-ffs", "fft", "tesserae-las", "gavel-max-min", "gavel-max-min-packed", "themis"),
)
BACK_IN_OFFICE = "gandiva-fair"
GANGS = 0.25  # how likely a job spans two servers
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a seed stands for."""

    experiment: Experiment
    plan: FaultPlan
    cannot_checkpoint: frozenset[int]
    fence_after_s: float
    moving: float  # how likely a job is moved in a quantum, for no reason
    specs: dict[int, JobSpec]
    trades: bool = False  # classes of jobs are so unlike that users may trade
    parking_bytes: int = 0  # host memory for what jobs hold of GPUs between their turns
    cannot_swap: frozenset[int] = frozenset()  # and say they can
    spare_processes: int | None = (
        None  # for which each server's memory has room besides one for each GPU; None: for any number
    )


def case_of(seed: int) -> Case:
    case = _case_of(seed)
    return _in_folders(case) if seed % FOLDERS == 4 else case


def _in_folders(case: Case) -> Case:
    """The same trouble where two jobs in three outlive every server. What copies write is fetched from where it is known to be."""
    if find(case.experiment.policy).needs.copies:
        return case
    specs = {
        job: replace(spec, checkpoint_dir="/shared") if job % 3 else spec for job, spec in case.specs.items()
    }
    return replace(case, specs=specs)


def _case_of(seed: int) -> Case:
    dice = roll(seed, "faults")
    pools = _pools(dice)
    jobs = _jobs(dice, pools)
    experiment = Experiment(
        cluster=ClusterSpec(pools=pools),
        workload=Workload(
            name=f"seed {seed}",
            jobs=jobs,
            tickets={UserName(name): dice.choice([50.0, 100.0, 200.0]) for name in "ABC"},
            rates={("c", pool.model): 10.0 if pool.model == "V100" else 5.0 for pool in pools},
            source=f"hs_sim.faults, seed {seed}",
        ),
        policy=dice.choice(POLICIES),
        quantum_s=QUANTUM_S,
        seed=seed,
        costs=Costs(start_s=2.0),
        sample_s=QUANTUM_S / 2,
        migrations_per_hour=10_000.0,
    )
    names = [name for name, _ in servers(experiment.cluster)]
    case = Case(
        experiment=experiment,
        plan=FaultPlan() if seed % CALM == 0 else _plan(dice, names),
        fence_after_s=dice.choice([0.0, 5.0, 12.0]),
        moving=dice.choice([0.0, 0.02, 0.1, 0.3]),
        cannot_checkpoint=frozenset(job.id for job in jobs if dice.random() < 0.15),
        specs={job.id: _spec(dice, job) for job in jobs},
    )
    if seed % SHARED == 0:
        return _sharing(case)
    if seed % FORKED == 2:
        return _forking(case)
    if seed % ELASTIC == 3:
        return _growing(case)
    if seed % UNEVEN == 3:
        return _uneven(case)
    if seed % TIGHT == 5:
        return replace(case, spare_processes=roll(seed, "tight").choice([0, 1, 2]))
    if seed % MIXED == 1:
        return _mixing(case)
    case = _trading(case) if seed % UNTRADED != 2 else case
    return _crowding(case) if seed % CROWDED == 1 else case


def _trading(case: Case) -> Case:
    """Trouble of that kind where users trade fast GPUs for slow ones."""
    experiment = with_traders(case.experiment)
    jobs, dice = experiment.workload.jobs, roll(experiment.seed, "trades")
    names = [name for name, _ in servers(experiment.cluster)]
    return replace(
        case,
        experiment=experiment,
        trades=True,
        moving=case.moving / TRADERS_JOBS,
        plan=_plan(dice, names, (*MOMENTS, *[TRADE_MOMENT] * 5)) if case.plan.crashes else case.plan,
        cannot_checkpoint=frozenset(job.id for job in jobs if dice.random() < 0.05),
        specs={job.id: _spec(dice, job) for job in jobs},
    )


def _crowding(case: Case) -> Case:
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


def with_untold(case: Case) -> Case:
    """The same trouble where users don't say what their jobs hold of GPUs, each size of a class of its own: servers know it once one has trained there."""
    policy = find(case.experiment.policy)
    if policy.needs.sharing or policy.needs.copies or policy.needs.by_gpu or policy.needs.mixed:
        return case
    if case.spare_processes is not None or any(spec.elastic for spec in case.specs.values()):
        return case
    if not any(spec.gpu_memory_bytes for spec in case.specs.values()):
        case = _crowding(case)
    workload = case.experiment.workload
    classes = {job.id: f"{job.job_class}, {job.gpu_memory_bytes >> 30} GiB" for job in workload.jobs}
    rates = {
        (classes[job.id], model): rate
        for job in workload.jobs
        for (job_class, model), rate in workload.rates.items()
        if job_class == job.job_class
    }
    jobs = tuple(replace(job, job_class=classes[job.id]) for job in workload.jobs)
    return replace(
        case,
        experiment=replace(case.experiment, workload=replace(workload, jobs=jobs, rates=rates)),
        specs={
            job: replace(spec, gpu_memory_bytes=0, job_class=classes[job]) for job, spec in case.specs.items()
        },
    )


def _uneven(case: Case) -> Case:
    """The same trouble while jobs go after faster GPUs of their servers."""
    experiment = case.experiment
    dice = roll(experiment.seed, "uneven")
    pools = tuple(
        replace(pool, slowdowns={"c": tuple(dice.choice([1.0, 1.0, 1.3, 2.0]) for _ in range(pool.gpus))})
        for pool in experiment.cluster.pools
    )
    slow = replace(experiment, cluster=replace(experiment.cluster, pools=pools), policy="pal")
    return replace(case, experiment=slow)


def _mixing(case: Case) -> Case:
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


def _forking(case: Case) -> Case:
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


def _growing(case: Case) -> Case:
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


def _sharing(case: Case) -> Case:
    """The same trouble while two jobs may be on one GPU. Nothing is moved by a policy that shares."""
    experiment = case.experiment
    jobs = tuple(replace(job, gpu_memory_bytes=4 << 30) for job in experiment.workload.jobs)
    policy = "sjf-bsbf" if experiment.seed % 2 else "sjf-ffs"
    shared = replace(
        experiment, workload=replace(experiment.workload, jobs=jobs), policy=policy, interference=1.3
    )
    specs = {job: replace(spec, gpu_memory_bytes=4 << 30) for job, spec in case.specs.items()}
    return replace(case, experiment=shared, moving=0.0, specs=specs)


def _pools(dice: Random) -> tuple[Pool, ...]:
    gpus = dice.choice([2, 4])
    models = MODELS[: dice.choice([1, 1, 2])]
    return tuple(
        Pool(model=model, servers=dice.choice([1, 2]) + (len(models) == 1), gpus_per_server=gpus)
        for model in models
    )


def _jobs(dice: Random, pools: Sequence[Pool]) -> tuple[SimJob, ...]:
    gpus, servers = pools[0].gpus_per_server, pools[0].servers
    arrivals = sorted(dice.uniform(0.0, 60.0) for _ in range(dice.randint(3, 9)))
    jobs = []
    for number, arrival_s in enumerate(arrivals, start=1):
        nodes = 2 if servers >= 2 and dice.random() < GANGS else 1
        jobs.append(
            SimJob(
                id=number,
                user=UserName(dice.choice("ABC")),
                arrival_s=arrival_s,
                steps=dice.randint(50, 600),
                job_class="c",
                gpus=dice.choice([1, 1, 2, gpus]),
                nodes=nodes,
                gpu_types=(pools[0].model,) if nodes > 1 else (),
                state_bytes=dice.choice([0, 1 << 28, 1 << 30]),
            )
        )
    return tuple(jobs)


def _spec(dice: Random, job: SimJob) -> JobSpec:
    return replace(
        job.spec(),
        retry_max=100,
        on_partition=dice.choice(list(OnPartition)),
        checkpoint_interval_s=dice.choice([0.0, 7.0, 20.0]),
    )


def _plan(dice: Random, hosts: Sequence[HostName], moments: Sequence[str] = MOMENTS) -> FaultPlan:
    faults = []
    for _ in range(dice.randint(1, 5)):
        kind = dice.choice(MISHAPS)
        moment = dice.choice(moments) if dice.random() < 0.5 else ""
        seconds = dice.choice([0.5, 3.0, 9.0, 15.0, 40.0])
        if kind is Kind.CLOCK_JUMP:
            seconds *= dice.choice([-1000.0, 1000.0])
        faults.append(
            Fault(
                kind=kind,
                at_s=dice.uniform(1.0, TROUBLE_S),
                for_s=seconds,
                host=dice.choice(list(hosts)) if kind in ON_A_HOST else None,
                when=moment,
                nth=dice.randint(1, 3),
                after_s=dice.choice([0.0, 0.001, 0.01, 0.06, 0.2, 1.5]),
            )
        )
    return FaultPlan(faults=tuple(faults))


def _deed_among_traders(dice: Random) -> Fault:
    """Often at the moment at which they trade."""
    kind = dice.choice([Kind.POLICY_SET, Kind.TICKETS_SET, Kind.USER_LEFT])
    return Fault(
        kind=kind,
        at_s=dice.uniform(1.0, TROUBLE_S),
        for_s=dice.choice([5.0, 20.0, 40.0]),
        when=TRADE_MOMENT if dice.random() < 0.6 else "",
        nth=dice.randint(1, 3),
        after_s=dice.choice([0.0, 0.01, 4.0, 15.0]),
        policy=dice.choice([BACK_IN_OFFICE, BACK_IN_OFFICE, *NEXT_IN_OFFICE]),
    )


def with_deeds(case: Case) -> Case:
    """The same trouble, and people who drain, pause, cancel, and put other policies in office in the middle of it; among users who trade some leave for a while."""
    dice = roll(case.experiment.seed, "deeds")
    hosts = [name for name, _ in servers(case.experiment.cluster)]
    deeds = [_deed(dice, hosts) for _ in range(dice.randint(1, 6))]
    if case.trades:
        dice = roll(case.experiment.seed, "deeds among traders")
        deeds += [_deed_among_traders(dice) for _ in range(dice.randint(1, 4))]
    if any(spec.checkpoint_dir for spec in case.specs.values()):  # nor does anybody fork them later
        deeds = [d for d in deeds if d.kind is not Kind.POLICY_SET or not find(d.policy).needs.copies]
    policy = case.experiment.policy
    if find(policy).needs.mixed:  # others wait for a pool that is large enough
        deeds.append(Fault(kind=Kind.POLICY_SET, at_s=TROUBLE_S + QUANTUM_S + 5.0, policy=policy))
    return replace(case, plan=FaultPlan(faults=(*case.plan.faults, *deeds)))


def with_cuts(case: Case) -> Case:
    """The same jobs while links are cut again and again, also as they move, and most of them save often, into folders that all servers see.

    In the time after which they are fenced many write more generations than are kept, and nobody hears of it. In some seeds all else goes wrong besides.
    """
    experiment = case.experiment
    dice = roll(experiment.seed, "cuts")
    hosts = [name for name, _ in servers(experiment.cluster)]
    faults = [_cut(dice, hosts) for _ in range(dice.randint(2, 7))]
    drains = dice.randint(1, 3) if dice.random() < 0.6 else 0
    faults += [
        Fault(
            kind=Kind.HOST_DRAINED,
            at_s=dice.uniform(1.0, TROUBLE_S),
            for_s=dice.choice([5.0, 15.0, 25.0]),
            host=dice.choice(hosts),
        )
        for _ in range(drains)
    ]
    if experiment.seed % BESIDE == 1:
        faults = sorted((*case.plan.faults, *faults), key=lambda fault: fault.at_s)
    copies = find(experiment.policy).needs.copies
    specs = {
        job: replace(
            spec,
            on_partition=dice.choice([OnPartition.FENCE, OnPartition.FENCE, OnPartition.CONTINUE]),
            checkpoint_interval_s=dice.choice([3.0, 4.0, 0.0]),
            checkpoint_dir="/shared" if dice.random() < 0.7 and not copies else "",
        )
        for job, spec in case.specs.items()
    }
    # Else some would do nothing but save.
    jobs = tuple(replace(job, state_bytes=min(job.state_bytes, 1 << 28)) for job in experiment.workload.jobs)
    workload = replace(experiment.workload, jobs=jobs)
    return replace(
        case,
        experiment=replace(experiment, workload=workload),
        specs=specs,
        fence_after_s=dice.choice([5.0, 12.0, 20.0]),
        plan=FaultPlan(faults=tuple(faults)),
        moving=dice.choice([0.1, 0.3]) / (TRADERS_JOBS if case.trades else 1),
    )


def with_losses(case: Case) -> Case:
    """The same trouble, and servers that come back with empty disks, and agents that have forgotten all that they knew of their jobs."""
    dice = roll(case.experiment.seed, "losses")
    hosts = [name for name, _ in servers(case.experiment.cluster)]
    losses = [_loss(dice, hosts) for _ in range(dice.randint(1, 3))]
    return replace(case, plan=FaultPlan(faults=(*case.plan.faults, *losses)))


def with_tears(case: Case) -> Case:
    """The same trouble, and bits that flip in what lies on disks, while all jobs save now and then."""
    dice = roll(case.experiment.seed, "tears")
    hosts = [name for name, _ in servers(case.experiment.cluster)]
    moments = ("", "", "Launch", "Fetch", "Suspend", "Checkpoint")
    tears = _somewhere(Kind.TORN, dice, hosts, moments, times=dice.randint(1, 4))
    specs = {
        job: replace(spec, checkpoint_interval_s=dice.choice([3.0, 7.0, 20.0]))
        for job, spec in case.specs.items()
    }
    return replace(case, specs=specs, plan=FaultPlan(faults=(*case.plan.faults, *tears)))


def with_lacks(case: Case) -> Case:
    """The same trouble, while jobs are moved often, and what they need is missing on some server now and then."""
    dice = roll(case.experiment.seed, "lacks")
    hosts = [name for name, _ in servers(case.experiment.cluster)]
    lacks = [
        Fault(
            kind=Kind.LACKS,
            at_s=dice.uniform(1.0, TROUBLE_S),
            for_s=dice.choice([15.0, 40.0, 80.0]),
            host=dice.choice(hosts),
        )
        for _ in range(dice.randint(1, 4))
    ]
    moving = max(case.moving, dice.choice([0.1, 0.3, 0.5]) / (TRADERS_JOBS if case.trades else 1))
    return replace(case, moving=moving, plan=FaultPlan(faults=(*case.plan.faults, *lacks)))


def with_limits(case: Case) -> Case:
    """The same trouble where jobs end badly now and then, are tried again only so often, and may run for only so long."""
    dice = roll(case.experiment.seed, "limits")
    hosts = [name for name, _ in servers(case.experiment.cluster)]
    moments = ("", "", "Launch", "Suspend", "Resume")
    kills = _somewhere(Kind.JOB_KILLED, dice, hosts, moments, times=dice.randint(0, 4))
    specs = {
        job: replace(
            spec, retry_max=dice.choice([0, 0, 1, 3]), max_duration_s=dice.choice([0.0, 0.0, 15.0, 40.0])
        )
        for job, spec in case.specs.items()
    }
    return replace(case, specs=specs, plan=FaultPlan(faults=(*case.plan.faults, *kills)))


def _somewhere(
    kind: Kind, dice: Random, hosts: Sequence[HostName], moments: Sequence[str], *, times: int
) -> list[Fault]:
    """So many of one kind, on any host, some of them right behind an order."""
    return [
        Fault(
            kind=kind,
            at_s=dice.uniform(1.0, TROUBLE_S),
            host=dice.choice(hosts),
            when=dice.choice(moments),
            nth=dice.randint(1, 6),
            after_s=dice.choice([0.0, 0.01, 0.2, 1.0, 2.0, 3.0]),
        )
        for _ in range(times)
    ]


def _loss(dice: Random, hosts: Sequence[HostName]) -> Fault:
    return Fault(
        kind=dice.choice(LOSSES),
        at_s=dice.uniform(1.0, TROUBLE_S),
        host=dice.choice(hosts),
        when=dice.choice(["", "", "Launch", "Fetch", "Forget", "Suspend", "Checkpoint"]),
        nth=dice.randint(1, 4),
        after_s=dice.choice([0.0, 0.01, 0.2, 1.0, 2.0, 3.0]),
    )


def _cut(dice: Random, hosts: Sequence[HostName]) -> Fault:
    whole = [Kind.PARTITION, Kind.PARTITION, Kind.PARTITION]
    return Fault(
        kind=dice.choice([*whole, Kind.PARTITION_UP, Kind.PARTITION_DOWN, Kind.LINE_BROKEN]),
        at_s=dice.uniform(1.0, TROUBLE_S),
        for_s=dice.choice([0.5, 3.0, 9.0, 15.0, 25.0, 40.0]),
        host=dice.choice(hosts),
        when=dice.choice(["", "Launch", "Launch", "Fetch", "Forget", "Suspend", "Checkpoint"]),
        nth=dice.randint(1, 6),
        after_s=dice.choice([0.0, 0.01, 0.2, 1.0, 2.0, 2.2, 3.0]),
    )


def _deed(dice: Random, hosts: Sequence[HostName]) -> Fault:
    kind = dice.choice(DEEDS)
    return Fault(
        kind=kind,
        at_s=dice.uniform(1.0, TROUBLE_S),
        for_s=dice.choice([0.5, 9.0, 25.0, 60.0]),
        host=dice.choice(hosts) if kind in ON_A_HOST else None,
        when=dice.choice(MOMENTS) if dice.random() < 0.5 else "",
        nth=dice.randint(1, 3),
        after_s=dice.choice([0.0, 0.01, 0.2, 1.5]),
        deadline_s=dice.choice([None, 0.0, 5.0, 30.0]),
        policy=dice.choice(NEXT_IN_OFFICE),
    )
