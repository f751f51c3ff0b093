"""Servers' own strides: kept from when a turn first leaves GPUs to one."""

from dataclasses import replace

import pytest

from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.model import Experiment
from hs_sim.quanta import engine
from hs_sim.writers import run_row

LAST_WHOLE = 40  # quantum


def whole_at_first(name: str) -> Policy:
    """Hands out all turns for a while, then leaves them to the servers."""
    told = find(name)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = told.decide(snapshot, memory)
        if snapshot.quantum <= LAST_WHOLE:
            return verdict
        return replace(verdict, plan=replace(verdict.plan, turns={}))

    return replace(told, decide=decide)


@pytest.mark.parametrize("name", ["lottery", "sjf"])
def test_a_stride_that_is_kept_once_it_is_asked_for_is_as_if_it_had_been_kept_all_along(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = generate(Recipe(jobs=40, users=5, jobs_per_hour=120.0, service_s=1800.0, seed=2))
    cluster = parse_cluster("v100:4,k80:8")
    experiment = Experiment(cluster=cluster, workload=load, policy=name, known_rates=True, until_s=4 * 3600.0)
    asked = run_row(engine.run_quanta(experiment, policy=whole_at_first(name)), measured=False)
    begin = engine._Run.__init__

    def always(run: engine._Run, *given: object) -> None:
        begin(run, *given)  # type: ignore[arg-type]
        run._state.strides.keep()

    monkeypatch.setattr(engine._Run, "__init__", always)
    assert run_row(engine.run_quanta(experiment, policy=whole_at_first(name)), measured=False) == asked
    assert asked["quanta"] > LAST_WHOLE  # type: ignore[operator]
