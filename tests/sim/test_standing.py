"""Within a quantum a plan stands, whatever is reported meanwhile, so the depth that hears of everything does not do other than the one that does not."""

from dataclasses import replace

import pytest

from hs_core.names import JobId
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.machines.world import World
from hs_sim.metrics import summarize
from hs_sim.model import Experiment
from hs_sim.quanta import run_quanta

POLICIES = pytest.mark.parametrize("policy", ["las", "srtf", "srsf"])


def several_pools(policy: str) -> Experiment:
    return Experiment(
        cluster=parse_cluster("v100:8,p100:8,k80:16"),
        workload=generate(Recipe(jobs=40, jobs_per_hour=60, service_s=2_400)),
        policy=policy,
        known_rates=True,
    )


class Watched:
    """Jobs that lost GPUs which they were given in the same quantum, and those that were sent elsewhere before they were up there."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._had: set[JobId] = set()
        self._here: set[JobId] = set()
        self._quantum = -1
        self.put_aside: list[JobId] = []
        self.turned_back: list[JobId] = []

    def dressed(self) -> Policy:
        return replace(self._policy, decide=self._decide)

    def _decide(self, snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = self._policy.decide(snapshot, memory)
        given = {job for turn in verdict.plan.turns.values() for job in turn.gangs}
        jobs = {job.id: job for job in snapshot.jobs}
        if snapshot.quantum == self._quantum and jobs.keys() <= self._here:
            homes = verdict.plan.homes
            self.put_aside += [job for job in self._had - given if job in jobs and jobs[job].going is None]
            self.turned_back += [job.id for job in jobs.values() if job.coming and homes[job.id] != job.hosts]
        self._quantum, self._had, self._here = snapshot.quantum, given, set(jobs)
        return verdict


@POLICIES
def test_within_a_quantum_in_which_nobody_came_nobody_loses_its_gpus_and_both_depths_agree(
    policy: str,
) -> None:
    asked = several_pools(policy)
    watched = Watched(find(policy))
    real, quick = summarize(World(asked, policy=watched.dressed()).run()), summarize(run_quanta(asked))
    assert (watched.put_aside, watched.turned_back) == ([], [])
    assert real.mean_jct_s == pytest.approx(quick.mean_jct_s, rel=0.03)
    assert real.restarts <= 1
