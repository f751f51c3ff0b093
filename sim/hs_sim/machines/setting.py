"""What an experiment stands for where machines run it: the controller's settings, servers with their agents' configuration."""

from dataclasses import replace

from hs_core.cluster import Settings
from hs_core.host import HostConfig
from hs_core.model import Gpu, Slowdown
from hs_core.names import GpuId, HostName
from hs_sim.cluster import slowed_servers
from hs_sim.machines.timing import IDEAL, Timing
from hs_sim.model import Experiment, Pool

ENOUGH_BYTES = 1 << 50  # of a host's memory, for all that its GPUs could hold
MANY = 1e9  # migrations an hour: as good as not limited


def settings_of(base: Settings, experiment: Experiment, timing: Timing) -> Settings:
    """A controller's of that experiment: it takes in as many jobs as there are."""
    jobs = len(experiment.workload.jobs)
    return replace(
        base,
        profiling=experiment.profiling,
        quantum_s=experiment.quantum_s,
        seed=experiment.seed,
        decides_apart=timing.decision_s > 0,
        migrations_per_hour=min(experiment.migrations_per_hour, MANY),
        settle_s=0.0 if timing == IDEAL else min(base.settle_s, experiment.quantum_s),
        settle_s_per_job=0.0 if timing == IDEAL else base.settle_s_per_job,
        max_jobs=max(base.max_jobs, jobs),
        dataset_cache_bytes=experiment.cluster.dataset_cache_bytes,
        max_jobs_per_user=max(base.max_jobs_per_user, jobs),
    )


def config_of(pool: Pool) -> HostConfig:
    """As an agent has it that was told nothing: half of its host's memory is for what is parked there."""
    return HostConfig(host_memory_budget_bytes=pool.memory_bytes // 2 or ENOUGH_BYTES)


def hosts_of(experiment: Experiment) -> list[tuple[HostName, Pool, tuple[Gpu, ...]]]:
    # Where nothing is known of what any job holds there is room for all, as if agents could not tell how much GPUs have.
    limited = any(job.gpu_memory_bytes for job in experiment.workload.jobs)
    return [
        (
            name,
            pool,
            tuple(
                Gpu(
                    id=GpuId(f"GPU-{name}-{index}"),
                    index=index,
                    model=pool.model,
                    memory_bytes=pool.gpu_memory_bytes if limited else 0,
                    slowdowns=tuple(
                        Slowdown(job_class=job_class, times=times[index])
                        for job_class, times in slowdowns.items()
                    ),
                )
                for index in range(pool.gpus_per_server)
            ),
        )
        for name, pool, slowdowns in slowed_servers(experiment.cluster)
    ]
