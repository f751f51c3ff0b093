"""Workloads that are drawn: as their seeds say, and like those of others."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hs_sim.cli import main
from hs_sim.cluster import parse_cluster, runnable
from hs_sim.drawn import gavel_like, shockwave_like
from hs_sim.generate import Recipe, gang_rates, generate
from hs_sim.model import Growth, Stage
from hs_sim.reading import Sieve


def test_a_workload_is_generated_with_the_seeds_that_a_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (-1, 10**18 + 1):
        assert main(["workload", "generate", str(tmp_path / "w.yaml"), f"--seed={seed}"]) == 2
        assert f"--seed: {seed}; expected 0 to 1e+18" in capsys.readouterr().err


def test_generated_users_can_differ_in_how_much_they_submit() -> None:
    jobs = generate(Recipe(jobs=3_000, users=4, users_spread=1.0)).jobs
    counts = Counter(job.user for job in jobs)
    first = counts["user1"]
    for at in (2, 3, 4):
        assert counts[f"user{at}"] / first == pytest.approx(1 / at, rel=0.2)


@pytest.mark.parametrize("make", [gavel_like, shockwave_like])
def test_drawn_workloads_are_those_of_their_seed(make) -> None:  # type: ignore[no-untyped-def]
    table = gang_rates()
    one, same, other = (make(table, jobs=50, jobs_per_hour=60, seed=seed) for seed in (3, 3, 4))
    assert one == same
    assert one.jobs != other.jobs
    assert max(job.gang for job in make(table, jobs=50, jobs_per_hour=0, most_gpus=2).jobs) == 2
    assert runnable(one, parse_cluster("v100:8,k80:8"), Sieve()).jobs == one.jobs


def test_drawn_batch_sizes_change_where_the_table_knows_them() -> None:
    kinds = {
        f"ResNet-18 (batch size {batch}) x{gang}": gang
        for batch in (16, 32, 64, 128, 256)
        for gang in (1, 2, 4, 8)
    }
    load = shockwave_like(
        {(name, "V100"): 50.0 * gang for name, gang in kinds.items()}, jobs=60, jobs_per_hour=60
    )
    changing = [job for job in load.jobs if job.stages]
    assert {job.growth for job in changing} == set(Growth)
    assert all(
        job.stages[0] == replace(job.stages[0], job_class=job.job_class, from_epoch=0) for job in changing
    )
    assert all(
        isinstance(stage, Stage) and (stage.job_class, "V100") in load.rates
        for job in changing
        for stage in job.stages
    )
