"""hsctl simulate: the cluster's own past in the simulator."""

import json
import time
from typing import Any

import pytest
import yaml

from hs_client.api import Client
from hs_client.errors import ConflictError
from hs_client.replay import past
from hs_client.verbs import whatif
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire


def node(name: str, model: str, gpus: int) -> wire.NodeView:
    return wire.NodeView(name=name, gpus=[common.Gpu(index=at, model=model) for at in range(gpus)])


def job(
    at: int,
    *,
    rates: dict[str, float] | None = None,
    ways: tuple[wire.WayRate, ...] = (),
    of: str = "",
    story: tuple[tuple[float, str], ...] = (),
    spec: dict[str, Any] | None = None,
    **view: Any,
) -> wire.JobDetail:
    """`rates`: by GPU model, as declared. `spec`, and other words, which are of the view: what differs from a job on one GPU."""
    asked = common.JobSpec(**({"gpus": 1, "nodes": 1, "migrate": "auto", "topology": "auto"} | (spec or {})))
    seen = {
        "id": at,
        "user": "ann",
        "gpus": asked.gpus * asked.nodes,
        "nodes": asked.nodes,
        "submitted_at": 1000.0 + at,
        "run_s": 100.0,
        "sliceable": True,
    }
    alone = tuple(
        wire.WayRate(gpu_model=model, steps_per_s=rate, nodes=asked.nodes)
        for model, rate in (rates or {}).items()
    )
    return wire.JobDetail(
        view=wire.JobView(**(seen | view)),
        spec=asked,
        job_class=of,
        way_rates=(*alone, *ways),
        story=[wire.Event(at=at_s, kind=kind) for at_s, kind in story],
    )


def test_jobs_come_when_they_did_with_the_steps_they_had() -> None:
    jobs = [
        job(
            2,
            step=500,
            ended_at=1300.0,
            rates={"V100": 5.0, "K80": 1.0},
            of="c",
            spec={"gpus": 2, "nodes": 2},
        ),
        job(1, step=70, spec={"steps": 900}, rates={"V100": 2.0}, of="d", gpu_types=["V100"]),
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
    mixed = job(1, step=300, ended_at=1300.0, gpu_model="K80+V100", of="c", spec={"nodes": 2})
    found = past([mixed], [node("a", "V100", 4), node("c", "K80", 8)], {})
    assert found.workload["rates"]["c"] == {"V100": 3.0, "K80": 3.0}


def v100(rate: float, **way: Any) -> wire.WayRate:
    return wire.WayRate(**({"gpu_model": "V100", "steps_per_s": rate, "nodes": 1} | way))


MIXED = [node("a", "V100", 4), node("k", "K80", 4)]


def test_what_an_elastic_job_declared_is_replayed_and_not_the_shape_that_it_had() -> None:
    one, four = common.Shape(gpus=1, per_gpu=32, parts=2), common.Shape(gpus=4, per_gpu=32, parts=2)
    elastic = common.Elastic(
        gpus_min=1, gpus_max=4, batch=64, batch_max=512, batch_per_gpu_max=32, noise_scale=900
    )
    grows = job(
        1,
        of="grows",
        spec={"elastic": elastic, "steps": 5000},
        ways=(v100(4.0, shape=one), v100(3.0, shape=four)),
        gpus=4,
        shape=four,
        noise_scale=1200.0,
        noise_samples=60,
        step=1700,
        ended_at=1300.0,
        state="succeeded",
    )
    found = past([grows], MIXED, {})
    (row,) = found.workload["jobs"]
    assert (row["gpus"], row["elastic"], row["noise_scale"]) == (1, "1-4 64-512 32 900.0", 1200.0)
    assert row["steps"] == 5000, "fewer and larger ones were done, of as much"
    measured = {"measured": {"1x32x2": 4.0, "4x32x2": 3.0}}
    assert found.workload["speeds"] == {"grows": {"V100": measured, "K80": measured}}


def test_ways_to_run_are_replayed_as_fast_as_each_was_measured_alone_and_beside_others() -> None:
    dp, tp, pp = common.Strategy(data=4), common.Strategy(tensor=4), common.Strategy(pipeline=4)
    jobs = [
        job(
            1,
            of="gpt",
            spec={"gpus": 4, "strategies": [dp, tp, pp]},
            ways=(v100(2.0, strategy=dp), v100(3.0, strategy=tp), v100(1.5, strategy=tp, beside="wide")),
            strategy=tp,
            step=300,
        ),
        job(
            2,
            of="wide",
            spec={"gpus": 4, "topology": "any"},
            ways=(v100(8.0), v100(6.0, nodes=2), v100(5.0, nodes=4), v100(4.0, beside="gpt as tp=4")),
            nodes=2,
            step=80,
        ),
    ]
    found = past(jobs, MIXED, {})
    gpt, wide = found.workload["jobs"]
    assert gpt["strategies"] == ["dp=4", "tp=4"]
    assert found.unknown == ("gpt as pp=4",), "nobody knows how fast that is"
    rates = {class_: by["V100"] for class_, by in found.workload["rates"].items()}
    assert rates == {"gpt as dp=4": 2.0, "gpt as tp=4": 3.0, "wide": 8.0}
    assert (wide["gpus"], wide["nodes"], wide["topology"]) == (4, 1, "any")
    assert found.workload["spread"] == {"wide": {"V100": pytest.approx((6 / 8 + 5 / 8) / 2)}}
    assert found.workload["interference"] == {
        "gpt as tp=4": {"wide": {"V100": 2.0}},
        "wide": {"gpt as tp=4": {"V100": 2.0}},
    }


def test_what_a_job_declared_of_its_data_memory_and_priority_is_replayed() -> None:
    data = job(
        1,
        of="data",
        spec={
            "dataset": "imagenet",
            "dataset_bytes": 150,
            "accumulation_max": 4,
            "gpu_memory_bytes": 12,
            "gpu_memory_fixed_bytes": 3,
            "migrate": "never",
        },
        rates={"V100": 1.0},
        sliceable=False,
        priority=7,
        step=10,
    )
    found = past([data], MIXED, {})
    (row,) = found.workload["jobs"]
    assert found.workload["rates"]["data"]["V100"] == 1.0
    assert (row["dataset"], row["dataset_bytes"], row["accumulation_max"]) == ("imagenet", 150, 4)
    assert (row["gpu_memory_bytes"], row["gpu_memory_fixed_bytes"]) == (12, 3)
    assert (row["migrate"], row["sliceable"], row["priority"]) == ("never", "false", 7)


def test_a_job_comes_when_it_could_first_have_run() -> None:
    array = {"array_limit": 2, "array_index": 0}
    jobs = [
        job(1, started_at=1001.0, ended_at=1500.0, of="c"),
        job(2, spec={"after": [common.After(job_id=1)]}, started_at=1600.0, ended_at=1700.0, of="c"),
        job(
            3,
            story=((1004.0, "paused"), (1200.0, "resumed"), (1400.0, "paused"), (1450.0, "resumed")),
            started_at=1250.0,
            of="c",
        ),
        *(
            job(at, spec=array, array_id=4, started_at=started, ended_at=ended, of="c")
            for at, started, ended in (
                (4, 1010.0, 1110.0),
                (5, 1020.0, 1090.0),
                (6, 1095.0, 1210.0),
                (7, 1120.0, 1200.0),
            )
        ),
    ]
    found = past(jobs, [node("a", "V100", 4)], {})
    arrivals = [row["arrival_s"] + 1001.0 for row in found.workload["jobs"]]
    assert arrivals == [1001.0, 1004.0, 1005.0, 1090.0, 1110.0, 1200.0, 1500.0]
    of_those_that_ended = (499 + 200 + 106 + 85 + 120 + 90) / 6
    assert found.mean_jct_s == pytest.approx(of_those_that_ended), "counted from then, as in the simulator"


def test_gpus_have_the_memory_that_they_have() -> None:
    small = common.Gpu(model="K80", memory_bytes=(12 << 30) - 5)
    nodes = [wire.NodeView(name="k", gpus=[small, small]), node("a", "V100", 4)]
    assert past([job(1, of="c")], nodes, {}).cluster == "K80:2@2/12,V100:4@4"


def test_host_memory_is_replayed_as_it_is_and_was_asked_for() -> None:
    of_64, of_100 = (
        wire.NodeView(name=name, gpus=node("a", "V100", 2).gpus, memory_bytes=size << 30)
        for name, size in (("a", 64), ("b", 100))
    )
    for view in (of_64, of_100):
        for gpu in view.gpus:
            gpu.memory_bytes = 16 << 30
    wide = job(1, of="c")
    wide.spec.memory_bytes = 80 << 30
    found = past([wide, job(2, of="c")], [of_64, of_100], {})
    assert found.cluster == "V100:4@2/16/100"
    assert [row.get("memory_bytes") for row in found.workload["jobs"]] == [80 << 30, None]


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


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("no/kept.yaml", "cannot be written: No such file or directory"),
        (".", "cannot be written: it is a folder"),
        ("/proc/kept.yaml", "cannot be written: No such file or directory"),
        ("/dev/zero", "cannot be written: it is no plain file"),
        ("k" * 300, "cannot be written: File name too long"),
        ("kept.jsonl", "expected a name that ends in .yaml, .yml, .json: hs-sim goes by it"),
        ("kept.csv", "expected a name that ends in .yaml, .yml, .json: hs-sim goes by it"),
    ],
)
def test_where_the_workload_cannot_be_kept_is_said_before_any_job_is_asked_for(
    where: str, why: str, hsctl, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(whatif, "_past", lambda *_: pytest.fail("jobs are asked for"))
    ran = hsctl("simulate", "--policy", "fifo", "--keep", str(tmp_path / where))
    assert (ran.code, f"--keep {str(tmp_path / where)!r}: {why}" in ran.err) == (2, True), ran.err


def test_a_file_that_is_there_may_be_kept_in_and_is_as_it_was_until_there_is_something_to_keep(
    hsctl, tmp_path
) -> None:
    kept = tmp_path / "kept.yaml"
    kept.write_text("old")
    assert "no server" in hsctl("simulate", "--policy", "fifo", "--keep", str(kept)).err
    assert kept.read_text() == "old"


def test_jobs_that_may_run_in_several_ways_are_replayed_with_them(hsctl, fake, capfd) -> None:
    fake.nodes = [node("a", "V100", 4), node("b", "V100", 4)]
    fake.policy.available.extend(["tesserae-las", "pollux", "tiresias"])
    elastic = common.Elastic(gpus_min=1, gpus_max=4, batch=64, batch_max=512, batch_per_gpu_max=64)
    dp, tp = common.Strategy(data=4), common.Strategy(tensor=2, pipeline=2)

    shapes = [common.Shape(gpus=gpus, per_gpu=64 // gpus, parts=1) for gpus in (1, 2, 4)]
    kinds: list[tuple[dict[str, Any], list[wire.WayRate]]] = [
        ({"gpus": 4, "strategies": [dp, tp]}, [v100(2.0, strategy=dp), v100(4.0, strategy=tp)]),
        (
            {"elastic": elastic},
            [v100(rate, shape=shape) for rate, shape in zip((4.0, 7.0, 12.0), shapes, strict=True)],
        ),
        ({"gpus": 4, "topology": "any"}, [v100(4.0), v100(3.9, nodes=2)]),
        ({"dataset": "words", "dataset_bytes": 10 << 30}, [v100(4.0)]),
    ]
    for at, (asked, ways) in enumerate(kinds * 2, start=1):
        spec = common.JobSpec(name="j", command=["x"], nodes=1, migrate="auto", topology="auto", steps=2400)
        spec.MergeFrom(common.JobSpec(**asked))
        spec.gpus = asked.get("gpus", 1)
        fake.specs[at] = spec
        fake.details[at] = {"job_class": f"ann/{(at - 1) % 4}", "way_rates": ways}
        view: dict[str, Any] = {"strategy": asked["strategies"][0]} if "strategies" in asked else {}
        fake.add(
            id=at,
            step=2400,
            run_s=900.0,
            gpu_model="V100",
            nodes=1,
            submitted_at=2e9 + at,
            ended_at=2e9 + 3000,
            state="succeeded",
            **view,
        )
    policies = ("tesserae-las", "pollux", "tiresias", "fifo")
    asked_for = [word for name in policies for word in ("--policy", name)]
    ran = hsctl("simulate", *asked_for, "--json")
    assert ran.code == 0, ran.err
    was, *found = json.loads(ran.out)
    assert (was["finished"], [row["finished"] for row in found]) == (8, [8] * 5)
    by_name = {row["policy"]: row for row in found}
    assert by_name["tesserae-las"]["mean_jct_s"] < by_name["gandiva-fair"]["mean_jct_s"], (
        "it chooses tp=2,pp=2"
    )
    assert by_name["pollux"]["mean_jct_s"] < by_name["fifo"]["mean_jct_s"], "elastic jobs get more GPUs"
    printed = hsctl("simulate", *asked_for)
    assert printed.code == 0, printed.err
    table = capfd.readouterr().out
    assert all(name in table for name in ("gandiva-fair", *policies)), "hs-sim's own"
    assert "as it was: 8 of 8 jobs ended" in printed.out


def test_jobs_that_are_too_many_to_be_listed_are_said_to_be_left_out(hsctl, fake, monkeypatch) -> None:
    monkeypatch.setattr(whatif, "MOST_JOBS", 2)
    for _ in range(3):
        fake.add(submitted_at=time.time())
    assert "the newest 2 jobs, not all of that time" in hsctl("simulate", "--policy", "fifo").err


def test_an_unknown_policy_is_refused_before_anything_is_asked(hsctl, fake) -> None:
    ran = hsctl("simulate", "--policy", "fifos")
    assert (ran.code, "'fifo'?" in ran.err) == (2, True)
    assert "ListJobs" not in fake.requests


def test_how_far_back_it_goes_is_reckoned_from_the_controllers_now(serving, fake) -> None:
    fake.info.now = 1.7e9 + 90_000
    fake.nodes = [node("a", "V100", 4)]
    for at_s in (1.7e9, 1.7e9 + 86_400):
        fake.add(submitted_at=at_s, run_s=10.0, step=100, gpu_model="V100", nodes=1)
    with Client(f"unix:{serving.socket}") as client:
        assert whatif._past(client, 7200.0).jobs == 1


def test_switches_are_taken_to_cost_what_they_did() -> None:
    story = ((10.0, "placed"), (11.0, "starting"), (14.0, "ready"), (20.0, "running"), (30.0, "paused"),
             (31.0, "starting"), (32.0, "exec"), (39.0, "suspended"), (40.0, "starting"), (41.0, "paused"), (99.0, "running"))  # fmt: skip
    jobs = [
        job(1, step=7, story=story, suspends=4, suspend_s=1.0, resumes=1, resume_s=0.5),
        job(2, step=1, story=((1.0, "starting"), (6.0, "running")), suspends=1, suspend_s=0.5),
        *(job(3 + n, story=((1.0, "starting"), (31.0, "ready"))) for n in range(9)),  # without the hook
    ]
    found = past(jobs, [node("a", "V100", 4)], {})
    assert (found.costs, found.starts) == ({"start": 5.0, "suspend": 0.3, "resume": 0.5}, 3)
    unseen = past([job(1)], [node("a", "V100", 4)], {})
    assert (unseen.costs, unseen.starts) == ({}, 0)


def test_the_simulation_goes_by_what_starts_took_and_says_so(hsctl, fake) -> None:
    fake.nodes = [node("a", "V100", 2)]
    fake.add(step=600, run_s=60.0, gpu_model="V100", nodes=1, submitted_at=2e9, ended_at=2e9 + 200, state="succeeded", resumes=4, resume_s=0.2)  # fmt: skip
    ran = hsctl("simulate", "--policy", "fifo")
    assert (
        "taken to last: as measured, a resume 0.05s (in the mean); as hs-sim has it, a start and a suspend, which nobody saw"
        in ran.out
    )
    fake.stories[1] = [wire.Event(at=100.0, kind="starting"), wire.Event(at=400.0, kind="ready")]
    assert "as measured, a start 5m 00s (median of 1)" in hsctl("simulate", "--policy", "fifo").out
    was, *_, fifo = json.loads(hsctl("simulate", "--policy", "fifo", "--json").out)
    assert (was["start_s"], was["suspend_s"], was["resume_s"]) == (300.0, None, 0.05)
    assert 300 <= fifo["makespan_s"] <= 420, "a start of five minutes, then 600 steps"
