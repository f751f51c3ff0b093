"""hsctl simulate: the cluster's own past in the simulator."""

import json

import pytest
import yaml

from hs_client.errors import ConflictError
from hs_client.replay import past
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire


def node(name: str, model: str, gpus: int) -> wire.NodeView:
    return wire.NodeView(name=name, gpus=[common.Gpu(index=at, model=model) for at in range(gpus)])


def job(
    at: int, *, rates: dict[str, float] | None = None, steps: int = 0, of: str = "", **view: object
) -> wire.JobDetail:
    fields = {
        "id": at,
        "user": "ann",
        "gpus": 1,
        "nodes": 1,
        "submitted_at": 1000.0 + at,
        "run_s": 100.0,
    } | view
    return wire.JobDetail(
        view=wire.JobView(**fields),
        spec=common.JobSpec(steps=steps),
        job_class=of,
        rates=[wire.Rate(gpu_model=model, steps_per_s=rate) for model, rate in (rates or {}).items()],
    )


def test_jobs_come_when_they_did_with_the_steps_they_had() -> None:
    jobs = [
        job(2, step=500, ended_at=1300.0, rates={"V100": 5.0, "K80": 1.0}, of="c", gpus=4, nodes=2),
        job(1, step=70, steps=900, rates={"V100": 2.0}, of="d", gpu_types=["V100"]),
        job(3, gpu_model="K80", ended_at=1200.0),
        job(4, run_s=0.0),
    ]
    found = past(jobs, [node("a", "V100", 4), node("b", "V100", 4), node("c", "K80", 8)], {"ann": 300.0})
    assert found.cluster == "V100:8@4,K80:8@8"
    assert (found.jobs, found.left_out, found.ended) == (3, 1, 2)
    assert found.mean_jct_s == pytest.approx((298 + 197) / 2)
    assert found.makespan_s == pytest.approx(1300 - 1001)
    first, second, third = found.workload["jobs"]
    assert (first["arrival_s"], first["steps"], first["gpu_types"]) == (0.0, 900, ["V100"]), (
        "as its user said"
    )
    assert (second["arrival_s"], second["steps"], second["gpus"], second["nodes"]) == (1.0, 500, 2, 2)
    assert third["steps"] == 100, "one that counts no steps: a step a second"
    assert found.workload["rates"]["d"] == {"V100": 2.0, "K80": 0.4}, "as much slower as others are"
    assert found.workload["users"] == {"ann": 300.0}


def test_a_gang_that_ran_on_two_models_tells_of_both() -> None:
    mixed = job(1, step=300, ended_at=1300.0, gpu_model="K80+V100", of="c", gpus=2, nodes=2)
    found = past([mixed], [node("a", "V100", 4), node("c", "K80", 8)], {})
    assert found.workload["rates"]["c"] == {"V100": 3.0, "K80": 3.0}


def test_nothing_to_replay_is_said() -> None:
    with pytest.raises(ConflictError, match="no job of that time has trained"):
        past([job(1, run_s=0.0)], [node("a", "V100", 4)], {})
    with pytest.raises(ConflictError, match="no server"):
        past([job(1)], [], {})


def test_both_policies_are_simulated_and_what_was_is_said(hsctl, fake, tmp_path) -> None:
    fake.nodes = [node("a", "V100", 2)]
    for at in range(1, 5):
        fake.add(
            id=at,
            step=600,
            run_s=60.0,
            gpu_model="V100",
            submitted_at=2e9 + at,
            ended_at=2e9 + 200,
            state="succeeded",
        )
    kept = tmp_path / "kept.yaml"
    ran = hsctl("simulate", "--policy", "fifo", "--json", "--keep", str(kept))
    assert ran.code == 0, ran.err
    was, now, other = json.loads(ran.out)
    assert (was["policy"], was["finished"], now["policy"], other["policy"]) == (
        "as it was",
        4,
        "gandiva-fair",
        "fifo",
    )
    assert now["finished"] == other["finished"] == now["jobs"] == 4
    assert 96 <= other["makespan_s"] <= 160, "2,400 steps at 12.5 a second on two GPUs"
    assert len(yaml.safe_load(kept.read_text())["jobs"]) == 4
    assert "as it was: 4 of 4 jobs ended" in hsctl("simulate", "--policy", "fifo").out
    nowhere = hsctl("simulate", "--policy", "fifo", "--keep", str(tmp_path / "no" / "kept.yaml"))
    assert (nowhere.code, "cannot be written: No such file" in nowhere.err) == (2, True)


def test_an_unknown_policy_is_refused_before_anything_is_asked(hsctl, fake) -> None:
    ran = hsctl("simulate", "--policy", "fifos")
    assert (ran.code, "'fifo'?" in ran.err) == (2, True)
    assert "ListJobs" not in fake.requests
