"""Jobs that are charged server by server: gangs over several GPU models, as fast as the slowest, and copies, as fast as all together."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from hs_core.errors import RefusedError
from hs_core.model import UserName
from hs_core.policies.hadare import HADARE
from hs_core.policy import Memory, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.machines import run_machines
from hs_sim.model import Costs, Experiment, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

ANN = UserName("ann")
RATES = {("c", "V100"): 10.0, ("c", "K80"): 2.0}

depths = pytest.mark.parametrize("run", [run_quanta, run_machines])


def gang(policy: str, *, known: bool) -> Experiment:
    job = SimJob(id=1, user=ANN, arrival_s=0.0, steps=1_200, job_class="c", gpus=2, nodes=3)
    return Experiment(
        cluster=parse_cluster("v100:4,k80:2", 2),
        workload=Workload(name="gang", jobs=(job,), tickets={ANN: 100.0}, rates=RATES),
        policy=policy,
        costs=Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0),
        known_rates=known,
    )


@depths
def test_a_gang_over_two_models_is_as_fast_as_the_slower_and_charged_on_both(
    run: Callable[[Experiment], Result],
) -> None:
    [job] = run(gang("hadar", known=False)).jobs
    assert job.ended_s is not None
    # Turns over several servers come one quantum ahead.
    assert 600.0 <= job.ended_s <= 600.0 + 2 * 60.0
    assert job.gpu_s == {"V100": pytest.approx(4 * 600.0), "K80": pytest.approx(2 * 600.0)}


def forked(*steps: int, start_s: float = 0.0) -> Experiment:
    users = [UserName(f"u{at}") for at in range(len(steps))]
    jobs = tuple(
        SimJob(id=at + 1, user=user, arrival_s=0.0, steps=count, job_class="c", state_bytes=10**9)
        for at, (user, count) in enumerate(zip(users, steps, strict=True))
    )
    return Experiment(
        cluster=parse_cluster("v100:1,k80:2", 1),
        workload=Workload(name="forked", jobs=jobs, tickets=dict.fromkeys(users, 100.0), rates=RATES),
        policy="hadare",
        quantum_s=100.0,
        costs=Costs(
            suspend_s=0.0, resume_s=0.0, start_s=start_s, checkpoint_bytes_per_s=1e9, network_bytes_per_s=1e9
        ),
        known_rates=True,
        rounds=True,
    )


def test_copies_do_a_jobs_steps_together_and_pay_for_each_average() -> None:
    [job] = run_quanta(forked(2_200, start_s=10.0)).jobs
    # 14 steps a second, but for 10 s of the first start; at the edge a second to write, three to send, three to read, and the start.
    assert job.ended_s == pytest.approx(100.0 + 17.0 + (2_200 - 90 * 14) / 14, abs=0.5)
    assert job.migrations == 0
    assert job.gpu_s == {"V100": pytest.approx(job.ended_s), "K80": pytest.approx(2 * job.ended_s)}


def test_no_server_idles_before_the_last_round() -> None:
    idle: list[int] = []  # servers without a job, round by round

    def watched(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = HADARE.decide(snapshot, memory)
        idle.append(sum(not turn.gangs for turn in verdict.plan.turns.values()))
        return verdict

    done = run_quanta(forked(3_000, 2_000, 900), policy=replace(HADARE, decide=watched))
    ended_s = max(job.ended_s or math.inf for job in done.jobs)
    assert len(idle) == math.ceil(ended_s / 100.0)
    assert not any(idle)
    work = (3_000 + 2_000 + 900) / 14
    assert ended_s < 1.1 * work


def test_copies_are_no_matter_of_depth_machines() -> None:
    with pytest.raises(RefusedError, match="policy hadare: it has copies of a job train at once"):
        run_machines(forked(100))
