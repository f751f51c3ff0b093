"""What is drawn for a seed: servers, jobs, how they are declared, and what goes wrong."""

from collections.abc import Sequence
from dataclasses import replace

from hs_core.dice import Random
from hs_core.model import JobSpec, OnPartition
from hs_core.names import HostName, UserName
from hs_sim.cases.case import TROUBLE_S
from hs_sim.machines.trouble import MISHAPS, ON_A_HOST, Fault, FaultPlan, Kind
from hs_sim.model import Pool, SimJob

MOMENTS = ("Launch", "Suspend", "Resume", "Checkpoint", "Fetch", "Reserve", "Forget")
MODELS = ("V100", "K80")
GANGS = 0.25  # how likely a job spans two servers


def pools_of(dice: Random) -> tuple[Pool, ...]:
    gpus = dice.choice([2, 4])
    models = MODELS[: dice.choice([1, 1, 2])]
    return tuple(
        Pool(model=model, servers=dice.choice([1, 2]) + (len(models) == 1), gpus_per_server=gpus)
        for model in models
    )


def jobs_of(dice: Random, pools: Sequence[Pool]) -> tuple[SimJob, ...]:
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


def spec_of(dice: Random, job: SimJob) -> JobSpec:
    return replace(
        job.spec(),
        retry_max=100,
        on_partition=dice.choice(list(OnPartition)),
        checkpoint_interval_s=dice.choice([0.0, 7.0, 20.0]),
    )


def plan_of(dice: Random, hosts: Sequence[HostName], moments: Sequence[str] = MOMENTS) -> FaultPlan:
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
