"""Jobs that could never run on a cluster, and what clusters are said to have."""

from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import Kind, RefusedError
from hs_sim.cli import main
from hs_sim.cluster import check_fits, keep_to_what_runs, parse_cluster, runnable
from hs_sim.machines import run_machines
from hs_sim.model import Experiment, SimJob, Workload
from hs_sim.quanta import run_quanta
from hs_sim.reading import Sieve
from hs_sim.sources import read
from tests.sim.workload_files import FIRST, GAVEL_LINE, GOOD, SHOCKWAVE_LINE, fields, put


@pytest.mark.parametrize("kind", GOOD)
def test_a_gang_larger_than_the_cluster_can_never_run(tmp_path: Path, kind: str) -> None:
    big = {
        "gavel": fields(GAVEL_LINE, gang=64),
        "shockwave": fields(SHOCKWAVE_LINE, gang=64),
        "csv": "ann,60,900,net,4,16\n",
        "philly": "2017-10-03 06:48:36,500.0,64,1000.0,a\n",
        "yaml": "- {user: ann, arrival_s: 60, steps: 900, job_class: net, gpus: 4, nodes: 16}\n",
    }[kind]
    path, table = put(tmp_path, kind, GOOD[kind] + big)
    cluster = parse_cluster("v100:8,k80:8", 4)
    with pytest.raises(
        RefusedError, match=r"gpus: 16 x 4; expected a gang .* 2 x 4 V100, 2 x 4 K80"
    ) as caught:
        runnable(read(path, table), cluster, Sieve())
    assert str(caught.value).startswith(f"{path}:{FIRST[kind] + 1}: ")
    assert caught.value.kind is Kind.IMPOSSIBLE
    left = runnable(read(path, table), cluster, Sieve(skip_bad=True))
    assert [job.gang for job in left.jobs] == [read(path, table).jobs[0].gang]
    assert len(left.skipped) == 1


def test_a_job_without_speed_on_any_gpu_can_never_run(tmp_path: Path) -> None:
    stuck = "- {user: ann, arrival_s: 60, steps: 900, job_class: stuck}\n"
    path, _ = put(tmp_path, "yaml", GOOD["yaml"] + stuck)
    with pytest.raises(
        RefusedError, match="job_class: stuck; expected a class with a rate above 0 on V100"
    ) as caught:
        runnable(read(path), parse_cluster("v100:4"), Sieve())
    assert str(caught.value).startswith(f"{path}:4: ")
    assert caught.value.kind is Kind.IMPOSSIBLE
    trace, table = put(tmp_path, "gavel", GOOD["gavel"] + fields(GAVEL_LINE, type="A3C", gang=1))
    with pytest.raises(RefusedError, match="job_class: A3C x1; expected a class with a rate above 0 on K80"):
        runnable(read(trace, table), parse_cluster("k80:4"), Sieve())
    both = runnable(read(trace, table), parse_cluster("v100:4,k80:4"), Sieve())
    assert both.jobs[1].gpu_types == ("V100",)


def test_a_job_with_more_memory_than_any_gpu_or_an_unknown_gpu_model_can_never_run(tmp_path: Path) -> None:
    job = "- {{user: ann, arrival_s: 60, steps: 900, job_class: net, {}}}\n"
    path, _ = put(tmp_path, "yaml", job.format("gpu_memory_bytes: 99999999999"))
    with pytest.raises(RefusedError, match=r":3: gpu_memory_bytes: 99999999999; expected at most"):
        runnable(read(path), parse_cluster("v100:4"), Sieve())
    path, _ = put(tmp_path, "yaml", job.format("gpu_types: [H999]"))
    with pytest.raises(RefusedError, match=r":3: gpu_types: H999; expected some of what the cluster has"):
        runnable(read(path), parse_cluster("v100:4"), Sieve())


def test_a_gang_that_only_pools_with_too_little_memory_are_wide_enough_for_can_never_run(
    tmp_path: Path,
) -> None:
    gang = (
        "- {user: ann, arrival_s: 60, steps: 900, job_class: net, nodes: 2, gpu_memory_bytes: 30000000000}\n"
    )
    path, _ = put(tmp_path, "yaml", gang)
    with pytest.raises(
        RefusedError, match=r":3: gpus: 2 x 1; .*, on servers and GPUs with memory enough: 2"
    ) as caught:
        runnable(read(path), parse_cluster("v100:8@4/16,k80:2@2/32"), Sieve())
    assert caught.value.kind is Kind.IMPOSSIBLE
    assert len(runnable(read(path), parse_cluster("v100:8@4/16,k80:4@2/32"), Sieve()).jobs) == 1
    apart = parse_cluster("v100:4@4/32,k80:2@2/32,p100:8@4/16")
    assert len(runnable(read(path), apart, Sieve(), mixed=True).jobs) == 1
    with pytest.raises(RefusedError, match="gpus: 2 x 1"):
        runnable(read(path), apart, Sieve())


def test_gpu_models_on_which_no_job_can_run_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = "- {user: ann, arrival_s: 60, steps: 900, job_class: net, gpu_memory_bytes: 20000000000}\n"
    path, _ = put(tmp_path, "yaml", large)
    words = ["--cluster", "v100:8,xyz:8,k80:8@4/12", "--seeds"]
    said = "hs-sim: no job can run on xyz, K80, for its rates, GPU types or memory\n"
    for verb in (
        ["run", str(path), *words, "0-1"],
        ["compare", "--policies", "fifo,las", "--trace", str(path), *words, "2"],
        ["workload", "check", str(path), "--fits", *words[:2]],
    ):
        assert main(verb) == 0
        assert capsys.readouterr().err == said
    path, _ = put(tmp_path, "yaml", large + GOOD["yaml"])
    assert main(["run", str(path), "--cluster", "v100:8,k80:8@4/12"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 0),
        (["--cluster", "v100:4@1"], 3),
        (["--fits", "--gpus-per-server", "4"], 0),
        (["--cluster", "v100:4@1", "--no-fits"], 0),
    ],
)
def test_a_file_is_checked_against_the_cluster_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    wide = "- {user: ann, arrival_s: 60, steps: 900, job_class: net, gpus: 2}\n"
    path, _ = put(tmp_path, "yaml", wide)
    assert main(["workload", "check", str(path), *words]) == code
    assert ("expected a gang" in capsys.readouterr().err) == (code == 3)


@pytest.mark.parametrize("depth", ["quanta", "machines"])
@pytest.mark.parametrize(("field", "job"), [("steps", "0,1e15,net"), ("arrival_s", "1e18,900,net")])
def test_a_job_that_would_be_simulated_for_ever_is_refused_unless_it_is_said_when_to_stop(
    field: str, job: str, depth: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = put(tmp_path, "csv", f"ann,{job},2,1\n")
    words = ["run", str(path), "--cluster", "v100:4", "--policy", "fifo", "--depth", depth]
    assert main(words) == 2
    assert (
        f"{path}:4: {field}: 1e+1{'5' if field == 'steps' else '8'}; expected an end within 1e+09 s"
        in capsys.readouterr().err
    )
    assert main([*words, "--until", "600"]) == 0
    load = read(path)
    run = run_quanta if depth == "quanta" else run_machines
    with pytest.raises(RefusedError, match=f"{field}: 1e.1[58]; expected an end"):
        run(Experiment(cluster=parse_cluster("v100:4"), workload=load))


def test_a_pool_may_say_how_much_memory_its_gpus_have() -> None:
    found = parse_cluster("v100:8,k80:16@8/12", 4, 16.0)
    assert [(pool.gpus_per_server, pool.gpu_memory_bytes >> 30) for pool in found.pools] == [(4, 16), (8, 12)]
    with pytest.raises(RefusedError, match=r"'k80:8/'.*GIB_OF_A_GPU"):
        parse_cluster("k80:8/")


def test_a_pool_may_say_how_much_host_memory_its_servers_have_and_who_asks_for_more_goes_elsewhere() -> None:
    found = parse_cluster("v100:8@4/16/64,k80:16@8/12/512,p100:4")
    assert [pool.memory_bytes >> 30 for pool in found.pools] == [64, 512, 0]
    with pytest.raises(RefusedError, match=r"'k80:8/12/'.*GIB_OF_A_SERVER"):
        parse_cluster("k80:8/12/")
    rates = {("a", model): 1.0 for model in ("V100", "K80", "P100")}
    wide = SimJob(id=1, user="ann", arrival_s=0.0, steps=600, job_class="a", memory_bytes=100 << 30)
    load = Workload(
        name="t",
        source="t",
        jobs=(wide, replace(wide, id=2, memory_bytes=0)),
        tickets={"ann": 100.0},
        rates=rates,
    )
    assert [job.gpu_types for job in keep_to_what_runs(load, found).jobs] == [("K80", "P100"), ()]
    for depth in (run_quanta, run_machines):
        result = depth(Experiment(cluster=found, workload=replace(load, jobs=(wide,)), policy="fifo"))
        assert set(result.jobs[0].gpu_s) == {"P100"}
    only_v100 = replace(wide, gpu_types=("V100",), line=7)
    with pytest.raises(
        RefusedError, match=rf"t:7: memory_bytes: {100 << 30}; expected at most {64 << 30}, a server's"
    ):
        check_fits(only_v100, load, found)
    with pytest.raises(RefusedError, match="memory_bytes"):
        keep_to_what_runs(replace(load, jobs=(only_v100,)), found)
