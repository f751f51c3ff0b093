"""What a seed of `hs-sim faults` stands for: a random cluster, its jobs, and what goes wrong."""

from hs_core.dice import roll
from hs_core.names import UserName
from hs_sim.cases import kinds
from hs_sim.cases.case import QUANTUM_S, Case
from hs_sim.cases.drawn import jobs_of, plan_of, pools_of, spec_of
from hs_sim.cluster import servers
from hs_sim.machines.trouble import FaultPlan
from hs_sim.model import ClusterSpec, Costs, Experiment, Workload

CALM = 8  # one seed in so many has no faults: then the ledger is judged strictly
POLICIES = ("gandiva-fair", "gandiva-fair", "gandiva-fair", "las", "gang-lottery")


def case_of(seed: int) -> Case:
    return kinds.of_its_kind(_drawn(seed))


def _drawn(seed: int) -> Case:
    dice = roll(seed, "faults")
    pools = pools_of(dice)
    jobs = jobs_of(dice, pools)
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
    return Case(
        experiment=experiment,
        plan=FaultPlan() if seed % CALM == 0 else plan_of(dice, names),
        fence_after_s=dice.choice([0.0, 5.0, 12.0]),
        moving=dice.choice([0.0, 0.02, 0.1, 0.3]),
        cannot_checkpoint=frozenset(job.id for job in jobs if dice.random() < 0.15),
        specs={job.id: spec_of(dice, job) for job in jobs},
    )
