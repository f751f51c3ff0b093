"""A run in which tickets of all jobs are told at once is the one in which each job's are."""

from dataclasses import replace

import pytest

from hs_core.policies import gandiva_fair
from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.model import Experiment, Result
from hs_sim.quanta import run_quanta


def ran() -> Result:
    load = generate(Recipe(jobs=80, users=5, jobs_per_hour=60, service_s=3600.0, seed=3))
    cluster = parse_cluster("v100:12,k80:24")
    result = run_quanta(Experiment(cluster=cluster, workload=load, until_s=3 * 3600.0))
    return replace(result, decision_s_mean=0.0, decision_s_max=0.0, cpu_s=0.0)


def test_tickets_of_all_jobs_at_once_lead_to_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = ran()
    monkeypatch.setattr(gandiva_fair, "FEW_JOBS", 20)  # in the middle of the run from one to the other
    assert ran() == one_by_one
