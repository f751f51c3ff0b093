"""Jobs that are charged server by server: gangs over several GPU models, as fast as the slowest, and copies, as fast as all together."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from hs_core.names import UserName
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
    # It starts on one server; then 14 steps a second, but for a second to write, one to send, one to read, and the start.
    # At the edge likewise, only that each of the copies' checkpoints is sent and read.
    forked_s, first = 10.0 + 13.0, (100.0 - 23.0) * 14
    ended_s = 100.0 + 17.0 + (2_200 - first) / 14
    assert job.ended_s == pytest.approx(ended_s, abs=0.5)
    assert job.migrations == 1
    assert job.gpu_s["V100"] == pytest.approx(ended_s, abs=0.5)
    assert 2 * (ended_s - forked_s) <= job.gpu_s["K80"] <= 2 * (ended_s - 10.0)


@pytest.mark.parametrize(("run", "moves"), [(run_quanta, 1), (run_machines, 2)])
def test_suspends_and_moves_of_a_forked_job_are_those_of_all_copies_together(
    run: Callable[[Experiment], Result], moves: int
) -> None:
    """It is forked and averaged once; in depth machines its copies become one before it ends."""
    [job] = run(forked(2_200, start_s=10.0)).jobs
    assert (job.suspends, job.migrations) == (2, moves)


def test_no_server_idles_before_the_last_round() -> None:
    idle: dict[int, int] = {}  # servers without a job when a round begins

    def watched(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = HADARE.decide(snapshot, memory)
        idle.setdefault(snapshot.quantum, sum(not turn.gangs for turn in verdict.plan.turns.values()))
        return verdict

    done = run_quanta(forked(3_000, 2_000, 900), policy=replace(HADARE, decide=watched))
    ended_s = max(job.ended_s or math.inf for job in done.jobs)
    assert len(idle) == math.ceil(ended_s / 100.0)
    assert not any(idle.values())
    work = (3_000 + 2_000 + 900) / 14
    assert ended_s < 1.1 * work


def alike(servers: int, steps: int) -> Experiment:
    """One job, free to train on servers that are all as fast as one another."""
    asked = forked(steps, start_s=1.0)
    jobs = tuple(replace(job, state_bytes=10**7) for job in asked.workload.jobs)
    return replace(
        asked, cluster=parse_cluster(f"v100:{servers}", 1), workload=replace(asked.workload, jobs=jobs)
    )


@pytest.mark.parametrize("servers", [2, 3])
def test_both_depths_agree_on_a_job_that_trains_as_copies(servers: int) -> None:
    asked = alike(servers, 9_000)
    [cheap], [whole] = run_quanta(asked).jobs, run_machines(asked).jobs
    assert cheap.ended_s is not None
    assert whole.ended_s is not None
    # Machines give their average a last start, and do not send a server its own checkpoint.
    assert whole.ended_s == pytest.approx(cheap.ended_s, rel=0.05)
    assert sum(whole.gpu_s.values()) == pytest.approx(sum(cheap.gpu_s.values()), rel=0.05)
    assert whole.ended_s < 1.1 * 900.0 / servers
    assert (whole.steps_done, whole.restarts, whole.lost_gpu_s) == (9_000, 0, 0.0)


@depths
def test_who_comes_beside_copies_does_not_wait_for_their_round_to_end(
    run: Callable[[Experiment], Result],
) -> None:
    """Copies train apart from one another: their servers have no quanta in common, as those of a gang over several have."""
    asked = replace(alike(2, 9_000), rounds=False, cluster=parse_cluster("v100:4", 2))
    [forked_job] = asked.workload.jobs
    comes = replace(forked_job, id=2, arrival_s=30.0, steps=100)
    done = run(replace(asked, workload=replace(asked.workload, jobs=(forked_job, comes))))
    # A second to start, and ten of its steps a second.
    assert done.jobs[1].ended_s == pytest.approx(30.0 + 1.0 + 10.0, abs=2.0)


def test_copies_of_unlike_speed_do_their_parts_once_their_speeds_were_measured() -> None:
    [job] = run_machines(forked(9_000, start_s=5.0)).jobs
    assert job.ended_s is not None
    assert job.steps_done == 9_000
    assert job.ended_s < 0.9 * 900.0, "sooner than on the V100 alone"
