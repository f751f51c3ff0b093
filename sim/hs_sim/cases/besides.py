"""What may happen besides: people at work, links that are cut, disks that are lost or damaged, limits that are met."""

from collections.abc import Sequence
from dataclasses import replace

from hs_core.dice import Random, roll
from hs_core.model import OnPartition
from hs_core.names import HostName
from hs_core.policies import find
from hs_sim.cases import kinds
from hs_sim.cases.case import QUANTUM_S, TRADERS_JOBS, TROUBLE_S, Case
from hs_sim.cases.drawn import MOMENTS
from hs_sim.cluster import servers
from hs_sim.machines.trouble import DEEDS, LOSSES, ON_A_HOST, TRADE_MOMENT, Fault, FaultPlan, Kind

BESIDE = 4  # with `with_cuts` links are all that goes wrong, but for one seed in so many
NEXT_IN_OFFICE = (
    *("gandiva-fair", "las", "fifo", "gang-lottery", "tiresias", "srtf", "pal", "hadar", "hadare", "pollux"),
    *("sjf-bsbf", "sjf-ffs", "fft", "tesserae-las", "gavel-max-min", "gavel-max-min-packed", "themis"),
)
BACK_IN_OFFICE = "gandiva-fair"


def with_untold(case: Case) -> Case:
    """The same trouble where users don't say what their jobs hold of GPUs, each size of a class of its own: servers know it once one has trained there."""
    policy = find(case.experiment.policy)
    if policy.needs.sharing or policy.needs.copies or policy.needs.by_gpu or policy.needs.mixed:
        return case
    if case.spare_processes is not None or any(spec.elastic for spec in case.specs.values()):
        return case
    if not any(spec.gpu_memory_bytes for spec in case.specs.values()):
        case = kinds.crowding(case)
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


def with_growth(case: Case) -> Case:
    """Besides, most of their jobs hold more of GPUs after a while than was ever seen of them."""
    case = with_untold(case)
    dice = roll(case.experiment.seed, "growth")
    untold = [job for job in case.experiment.workload.jobs if not case.specs[job.id].gpu_memory_bytes]
    return replace(
        case, grows_at={job.id: dice.randint(1, job.steps) for job in untold if dice.random() < 0.7}
    )


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
