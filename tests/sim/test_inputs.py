"""Workload files of every format: what is read, and what is said of what is bad."""

import json
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import Kind, RefusedError
from hs_sim.batches import stages
from hs_sim.cli import main
from hs_sim.cluster import check_fits, keep_to_what_runs, nodes_of, parse_cluster, runnable
from hs_sim.drawn import gavel_like, shockwave_like
from hs_sim.export import dump_csv, dump_yaml
from hs_sim.generate import Recipe, gang_rates, generate
from hs_sim.machines import run_machines
from hs_sim.model import GAVEL, SHOCKWAVE, Experiment, Growth, SimJob, Stage, Workload
from hs_sim.quanta import run_quanta
from hs_sim.reading import Sieve
from hs_sim.sources import read

TABLE = {
    model: {
        str((f"ResNet-18 (batch size {batch})", gang)): {"null": speed * gang}
        for batch in (64, 128, 256)
        for gang in (1, 2, 64)
    }
    | {"('A3C', 1)": {"null": 0.0 if model == "k80" else 3.0}}
    for model, speed in (("v100", 8.0), ("k80", 2.0))
}
GAVEL_LINE = "ResNet-18 (batch size 64)\tcommand\tfolder\t-n\t1\t90000\t2\t1\t-1.0\t60"
SHOCKWAVE_LINE = "ResNet-18 (batch size 64)\tcommand\tfolder\t-n\t1\t90000\t1\tgns\t1\t-1.0\t500\t60"
CSV = "# rate net V100 8\n# rate net K80 2\nuser,arrival_s,steps,job_class,gpus,nodes\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
YAML = "rates: {net: {V100: 8, K80: 2}, stuck: {V100: 0, K80: 0}}\njobs:\n"


def put(tmp_path: Path, kind: str, body: str) -> tuple[Path, Path | None]:
    """The file, and the table beside it."""
    table = tmp_path / "table.json"
    if kind in ("gavel", "shockwave"):
        table.write_text(json.dumps(TABLE))
        path = tmp_path / f"{kind}.trace"
        path.write_text(body)
        return path, table
    path = tmp_path / f"{kind}.{'yaml' if kind == 'yaml' else 'csv'}"
    path.write_text({"csv": CSV, "philly": PHILLY, "yaml": YAML}[kind] + body)
    return path, None


def fields(line: str, **changes: object) -> str:
    names = ("type", "command", "folder", "argument", "data", "steps", "gang", "weight", "slo", "arrival")
    if line is SHOCKWAVE_LINE:
        names = (*names[:7], "mode", *names[7:9], "duration", "arrival")
    words = dict(zip(names, line.split("\t"), strict=True)) | {
        name: str(value) for name, value in changes.items()
    }
    return "\t".join(words.values()) + "\n"


GOOD = {
    "gavel": GAVEL_LINE + "\n",
    "shockwave": SHOCKWAVE_LINE + "\n",
    "csv": "ann,60,900,net,2,1\n",
    "philly": "2017-10-03 06:48:36,500.0,2,1000.0,a\n",
    "yaml": "- {user: ann, arrival_s: 60, steps: 900, job_class: net, gpus: 2}\n",
}
FIRST = {"gavel": 1, "shockwave": 1, "csv": 4, "philly": 2, "yaml": 3}  # line of the first job

# format, a bad line, the field that is named, its value, what was expected
BAD = [
    ("gavel", "\t".join(GAVEL_LINE.split("\t")[:-1]) + "\n", "fields", "9", "10 with tabs"),
    ("gavel", fields(GAVEL_LINE, arrival=-5), "arrival", "'-5'", "at least 0"),
    ("gavel", fields(GAVEL_LINE, arrival="nan"), "arrival", "'nan'", "a number"),
    ("gavel", fields(GAVEL_LINE, steps=-1), "total steps", "'-1'", "at least 1"),
    ("gavel", fields(GAVEL_LINE, steps="many"), "total steps", "'many'", "a whole number"),
    ("gavel", fields(GAVEL_LINE, gang=0), "gang", "'0'", "at least 1"),
    ("gavel", fields(GAVEL_LINE, gang=4), "gang", "4", "1, 2, 64"),
    ("gavel", fields(GAVEL_LINE, gang=10**9), "gang", "1000000000", "at most"),
    ("gavel", fields(GAVEL_LINE, weight=0), "weight", "'0'", "at least 1e-08"),
    ("gavel", fields(GAVEL_LINE, weight=1e-300), "weight", "'1e-300'", "at least 1e-08"),
    ("gavel", fields(GAVEL_LINE, type="ResNet-19 (batch size 64)"), "job type", "'ResNet-19", "did you mean ResNet-18"),
    ("shockwave", "\t".join(SHOCKWAVE_LINE.split("\t")[:-1]) + "\n", "fields", "11", "12 with tabs"),
    ("shockwave", fields(SHOCKWAVE_LINE, arrival=-1), "arrival", "'-1'", "at least 0"),
    ("shockwave", fields(SHOCKWAVE_LINE, mode="fast"), "mode", "'fast'", "static or accordion or gns"),
    ("shockwave", fields(SHOCKWAVE_LINE, gang="two"), "gang", "'two'", "a whole number"),
    ("shockwave", fields(SHOCKWAVE_LINE, type="VGG"), "job type", "'VGG'", "one of"),
    ("csv", "ann,60,900\n", "line", "'ann,60,900'", "6 fields"),
    ("csv", "ann,-60,900,net,2,1\n", "arrival_s", "'-60'", "at least 0"),
    ("csv", "ann,60,,net,2,1\n", "steps", "'nothing'", "every job names it"),
    ("csv", "ann,60,900,nett,2,1\n", "job_class", "'nett'", "did you mean net"),
    ("csv", "ann,60,900,net,0,1\n", "gpus", "'0'", "at least 1"),
    ("csv", "ann,60,1e400,net,1,1\n", "steps", "'1e400'", "a whole number"),
    ("csv", "ann,60,1e18,net,1,1\n", "steps", "'1e18'", "at most 1e+15"),
    ("philly", "2017-10-03 06:48:36,500.0\n", "num_gpus", "'nothing'", "as many fields"),
    ("philly", "yesterday,500.0,2,1000.0,a\n", "timestamp", "'yesterday'", "a time such as"),
    ("philly", "2017-10-03 06:48:36,-5,2,1000.0,a\n", "duration", "'-5'", "above 0"),
    ("philly", "2017-10-03 06:48:36,nan,2,1000.0,a\n", "duration", "'nan'", "above 0"),
    ("philly", "2017-10-03 06:48:36,500.0,0,1000.0,a\n", "num_gpus", "'0'", "at least 1"),
    ("philly", "2017-10-03 06:48:36+00:00,500.0,1,1000.0,a\n", "timestamp", "'2017", "without an offset"),
    ("yaml", "- {user: ann, steps: 900, job_class: net}\n", "arrival_s", "'nothing'", "every job names it"),
    ("yaml", "- {user: ann, arrival_s: -1, steps: 900, job_class: net}\n", "arrival_s", "-1", "at least 0"),
    ("yaml", "- {user: ann, arrival_s: 1, steps: 900, job_class: nets}\n", "job_class", "'nets'", "did you mean net"),
    ("yaml", "- {user: ann, arrival_s: 1, steps: .nan, job_class: net}\n", "steps", "nan", "a whole number"),
    ("yaml", "- {user: ann, arrival_s: 1, steps: 9, job_class: net, gpu: 2}\n", "gpu", "'unknown field'", "did you mean gpus"),
    ("yaml", "- 7\n", "jobs", "7", "a mapping"),
    ("yaml", "- {user: null, arrival_s: 1, steps: 9, job_class: net}\n", "user", "'nothing'", "every job names it"),
    ("yaml", "- {user: yes, arrival_s: 1, steps: 9, job_class: net}\n", "user", "True", "text, in quotes"),
    ("yaml", "- {user: [a], arrival_s: 1, steps: 9, job_class: net}\n", "user", "['a']", "text, in quotes"),
    ("yaml", "- {user: a, arrival_s: 1, steps: 9, job_class: 2020-01-02}\n", "job_class", "datetime.date(2020, 1, 2)", "text, in quotes"),
    ("yaml", "- {user: a, arrival_s: 1, steps: 9, job_class: net, stages: 5 net}\n", "stages", "'5 net'", "EPOCH"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "bad", "field", "value", "expected"), BAD)
def test_a_bad_job_is_named_by_file_line_field_value_and_what_was_expected(
    tmp_path: Path, *, kind: str, bad: str, field: str, value: str, expected: str
) -> None:
    path, table = put(tmp_path, kind, GOOD[kind] + bad)
    with pytest.raises(RefusedError) as caught:
        read(path, table)
    said = str(caught.value)
    assert said.startswith(f"{path}:{FIRST[kind] + 1}: {field}: {value}")
    assert expected in said.partition("; expected ")[2]
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize(("kind", "bad", "field", "value", "expected"), BAD)
def test_a_bad_job_is_left_out_and_counted_where_that_is_asked_for(
    tmp_path: Path, *, kind: str, bad: str, field: str, value: str, expected: str
) -> None:
    path, table = put(tmp_path, kind, GOOD[kind] + bad + GOOD[kind])
    found = read(path, table, sieve=Sieve(skip_bad=True))
    assert [job.id for job in found.jobs] == [1, 2]
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith(f"{path}:{FIRST[kind] + 1}: {field}: {value}")
    assert expected in found.skipped[0]


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


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("csv", "user,steps\nann,9\n", r":1: header: 'user,steps'; expected a column arrival_s"),
        ("csv", "user,arrival_s,steps,job_class,colour\n", r":1: colour: 'unknown field'; expected one of"),
        ("csv", "", r":1: jobs: 'none'"),
        ("csv", "# rate net V100 -2\nuser,arrival_s,steps,job_class\nann,0,9,net\n", r":1: rate: '-2'; expected a number of at least 0"),
        ("csv", "# user ann 0\nuser,arrival_s,steps,job_class\nann,0,9,vae\n", r":1: tickets: '0'; expected a number of at least 1e-06"),
        ("csv", "timestamp,duration,num_gpus\n", r":1: jobs: 'none'"),
        ("yaml", "jobs: 7\n", r":1: jobs: 7; expected a list of jobs"),
        ("yaml", "name: true\njobs: []\n", r":1: name: True; expected text, in quotes"),
        ("yaml", "users: {\n on: 3}\njobs: []\n", r":2: a key is true or false; expected a word"),
        ("yaml", "users: {}\njobs:\n- &a {user: ann}\n- <<: *a\n", r":4: <<: a merge; expected every field by its name"),
        ("yaml", "", r":1: workload: 'nothing'; expected a mapping"),
        ("yaml", "- a\n", r":1: workload: 'a list'; expected a mapping"),
        ("yaml", "seven\n", r":1: workload: 'text'; expected a mapping"),
        ("yaml", "2020-01-02\n", r":1: workload: 'a date'; expected a mapping"),
        ("yaml", "jobs: [\n", r":2: .*; expected YAML"),
        ("yaml", "users: {}\nname: 2020-13-45\n", r":2: month must be in 1..12; expected YAML"),
        ("yaml", "users: {}\njobs:\n- steps: " + "9" * 5000, r":3: a number of more than 4300 digits; expected YAML"),
        ("yaml", "rates: {net: {V100: -1}}\njobs: []\n", r":1: rates.net.V100: -1; expected a number of at least 0"),
        ("yaml", "users: {ann: none}\njobs: []\n", r":1: users.ann: 'none'; expected a number of at least 1e-06, at most 1e\+09"),
        ("yaml", "rates: {net: {V100: 1.0e+99}}\njobs: []\n", r"rates.net.V100: 1e\+99; expected a number of at least 0, at most 1e\+18"),
        ("csv", "# user ann 1e10\nuser,arrival_s,steps,job_class\nann,0,9,vae\n", r"tickets: '1e10'; expected a number of at least 1e-06, at most 1e\+09"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_workload_is_refused_by_line_even_if_bad_jobs_are_left_out(
    tmp_path: Path, kind: str, text: str, said: str
) -> None:
    path = tmp_path / f"bad.{kind}"
    path.write_text(text)
    with pytest.raises(RefusedError, match=said):
        read(path, sieve=Sieve(skip_bad=True))


@pytest.mark.parametrize("verb", [["run"], ["workload", "generate", "w.yaml"]], ids=" ".join)
def test_a_table_of_throughputs_that_nothing_would_be_made_of_is_refused(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, table = put(tmp_path, "gavel", "")
    words = [*verb, "--jobs", "3", "--throughputs", str(table)]
    assert main(words) == 2
    assert f"--throughputs: {str(table)!r} without a trace; expected both" in capsys.readouterr().err
    assert not (tmp_path / "w.yaml").exists()
    assert main([*words, "--like", "gavel"]) == 0


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


def test_seeds_that_draw_nothing_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = put(tmp_path, "yaml", GOOD["yaml"] * 4)
    words = ["run", str(path), "--policy", "fifo", "--cluster", "v100:4", "--seeds"]
    assert main([*words, "0-2"]) == 0
    assert "All seeds of fifo came out alike: a file's jobs are not drawn" in capsys.readouterr().out
    for other in (
        [*words, "0"],
        [*words, "0-2", "--policy", "lottery"],
        ["run", "--policy", "fifo", "--jobs", "4", "--seeds", "0-1"],
    ):
        assert main(other) == 0
        assert "alike" not in capsys.readouterr().out


def test_a_workload_is_generated_with_the_seeds_that_a_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (-1, 10**18 + 1):
        assert main(["workload", "generate", str(tmp_path / "w.yaml"), f"--seed={seed}"]) == 2
        assert f"--seed: {seed}; expected 0 to 1e+18" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 30_000, "- " * 30_000, "a: " + "{a: " * 30_000, '{"jobs": ' * 30_000])
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path, text: str, suffix: str) -> None:
    """By another process: without that it would end this one."""
    path = tmp_path / f"deep.{suffix}"
    path.write_text("\n" + text)
    command = [sys.executable, "-m", "hs_sim", "workload", "check", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        f"hs-sim: {path}:2: nested too deeply; expected at most 100 levels\n",
    )


def test_a_file_may_be_nested_as_deeply_as_any_workload_is(tmp_path: Path) -> None:
    for depth, said in ((99, "unknown field"), (100, "nested too deeply")):
        (tmp_path / "w.yaml").write_text("a: " + "[" * depth + "]" * depth + "\nb: {c: [d]}\n")
        with pytest.raises(RefusedError, match=said):
            read(tmp_path / "w.yaml")


def test_no_record_of_a_live_run_is_nested_deeply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "live.json").write_text("[" * 30_000)
    assert main(["fidelity", str(tmp_path / "live.json")]) == 2
    assert "live.json: expected what `python -m benchmarks.fidelity" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("{", r":1: .*; expected JSON"),
        ("[]", r":1: throughputs: 'list'; expected GPU model"),
        ("{}", r":1: throughputs: 'dict'; expected GPU model"),
        ('{"v100": 7}', r":1: v100: 7; expected GPU model"),
        ('{"v100": {\n"ResNet": {"null": 1}}}', r":2: v100, job type: 'ResNet'; expected \('name', gang\)"),
        ('{"v100":\n {"(\'A3C\', 1)": {"null": -3}}}', r":2: v100, \('A3C', 1\), null: -3; expected steps/s"),
        ('{"v100": {"(\'A3C\', 1)": {"null": NaN}}}', r"null: nan; expected steps/s"),
        ('{"v100": {"(\'A3C\', 1)": {}}}', r"null: None; expected steps/s"),
        ('{"v100": {"(\'A3C\', 1)": {"null": true}}}', r"null: True; expected steps/s"),
        ('{"v100": {"(\'A3C\', 0)": {"null": 1}}}', r"expected \('name', gang\)"),
        (
            '{"v100": {"(\'A3C\', 1)": {"null": ' + "9" * 5000 + "}}}",
            r"a number of more than 4300 digits; expected JSON",
        ),
    ],
)
def test_a_bad_table_of_throughputs_is_refused_by_line(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "table.json").write_text(table)
    (tmp_path / "jobs.trace").write_text(GAVEL_LINE + "\n")
    with pytest.raises(RefusedError, match=said):
        read(tmp_path / "jobs.trace", tmp_path / "table.json")


def test_a_name_or_a_data_set_that_is_null_is_none_and_a_user_may_be_a_number(tmp_path: Path) -> None:
    path, _ = put(tmp_path, "yaml", "- {user: 7, arrival_s: 60, steps: 900, job_class: net, dataset: null}\n")
    path.write_text("name: null\n" + path.read_text())
    found = read(path)
    assert (found.name, found.jobs[0].user, found.jobs[0].dataset) == ("yaml", "7", "")


def test_a_file_of_bad_jobs_alone_is_refused(tmp_path: Path) -> None:
    path, table = put(tmp_path, "gavel", fields(GAVEL_LINE, steps=0))
    with pytest.raises(RefusedError, match=r"all 1 jobs are bad; the first: .*total steps"):
        read(path, table, sieve=Sieve(skip_bad=True))


def test_a_trace_without_its_throughputs_is_refused(tmp_path: Path) -> None:
    path, _ = put(tmp_path, "gavel", GOOD["gavel"])
    with pytest.raises(RefusedError, match="expected --throughputs"):
        read(path)


def test_exit_status_is_2_for_a_bad_file_3_for_what_cannot_run_and_4_for_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, _ = put(tmp_path, "csv", "ann,-60,900,net,2,1\n")
    assert main(["compare", "--policies", "fifo", "--trace", str(bad)]) == 2
    assert f"{bad}:4: arrival_s: '-60'" in capsys.readouterr().err
    big, _ = put(tmp_path, "yaml", "- {user: ann, arrival_s: 0, steps: 9, job_class: net, gpus: 64}\n")
    assert main(["run", str(big), "--cluster", "v100:4"]) == 3
    assert f"{big}:3: gpus: 1 x 64" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "none.yaml")]) == 4


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


def test_bad_jobs_that_were_left_out_are_counted_in_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = put(tmp_path, "csv", GOOD["csv"] + "ann,-60,900,net,2,1\nann,60,900,net,64,1\n" + GOOD["csv"])
    out = tmp_path / "out.json"
    words = ["--trace", str(path), "--cluster", "v100:4", "--skip-bad", "--json", str(out)]
    assert main(["compare", "--policies", "fifo", *words]) == 0
    (row,) = json.loads(out.read_text())
    assert (row["jobs"], row["finished"], row["skipped"]) == (2, 2, 2)
    assert "2 bad jobs left out" in capsys.readouterr().out
    assert main(["workload", "check", str(path), "--skip-bad", "--fits", "--cluster", "v100:4"]) == 0
    said = capsys.readouterr()
    assert "2 jobs of 1 users, 2 left out" in said.out
    assert len(said.err.splitlines()) == 2


def test_what_is_said_of_a_bad_job_is_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = put(tmp_path, "csv", GOOD["csv"] + "ann,60,900,[/x] [red] :car:,2,1\n")
    assert main(["run", str(path), "--policy", "fifo", "--cluster", "v100:4", "--skip-bad"]) == 0
    said = capsys.readouterr().out
    assert f"1 bad job left out; the first: {path}:" in said
    assert "job_class: '[/x] [red] :car:'; expected one that has rates" in said


@pytest.mark.parametrize("kind", ["csv", "philly"])
def test_a_field_of_any_length_is_read(kind: str, tmp_path: Path) -> None:
    long = "x" * 200_000
    bad = {"csv": f"ann,60,900,{long},2,1\n", "philly": f"{long},5.0,2,1,a\n"}[kind]
    path, _ = put(tmp_path, kind, GOOD[kind] + bad)
    sieve = Sieve(skip_bad=True)
    assert len(read(path, sieve=sieve).jobs) == 1
    assert sieve.left_out[0].startswith(f"{path}:")


def test_the_line_of_a_bad_job_counts_those_that_fields_in_quotes_go_over(tmp_path: Path) -> None:
    path, _ = put(tmp_path, "csv", '"an\nn",60,900,net,2,1\nbob,-60,900,net,2,1\n')
    with pytest.raises(RefusedError, match=r"csv\.csv:6: arrival_s: '-60'"):
        read(path)


# --- what good files come to ---------------------------------------------------------------------------------------------


def test_a_job_whose_user_is_called_like_a_remark_is_written_and_read_as_one(tmp_path: Path) -> None:
    path, _ = put(tmp_path, "yaml", '- {user: "#1, ann", arrival_s: 60, steps: 900, job_class: net}\n')
    load = read(path)
    for user in ("#1, ann", "#ann", '#"ann"', "# name x"):
        kept = replace(load, jobs=(replace(load.jobs[0], user=user),), tickets={user: 100.0})
        again = tmp_path / "again.csv"
        again.write_text(dump_csv(kept))
        assert [job.user for job in read(again).jobs] == [user]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("w.csv", CSV.replace("\nuser", "\n# rate net v100 9\nuser"), r"w\.csv:3: rate: .*each class and model once"),
        ("w.yaml", "rates: {net: {V100: 8, v100: 9}}\njobs: []\n", r"w\.yaml:1: rates\.net: 'v100'; expected each model once"),
    ],
)  # fmt: skip
def test_a_rate_that_is_said_twice_in_other_letters_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(RefusedError, match=said):
        read(path)


def test_phillys_tenants_are_users_and_its_durations_times_on_p100(tmp_path: Path) -> None:
    body = (
        "2017-10-03 06:48:36,500.0,2,1,a\n2017-10-03 06:50:36,100.0,8,1,b\n2017-10-03 06:49:36,100.0,5,1,a\n"
    )
    path, _ = put(tmp_path, "philly", body)
    found = read(path, gpus_per_server=4)
    assert [(job.user, job.arrival_s, job.gpus, job.nodes) for job in found.jobs] == [
        ("a", 0.0, 2, 1),
        ("a", 60.0, 1, 5),
        ("b", 120.0, 4, 2),
    ]
    first = found.jobs[0]
    assert first.steps / found.rates[first.job_class, "P100"] == pytest.approx(500.0, rel=0.01)
    assert [job.id for job in read(path, first=2).jobs] == [1, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("w.csv", "user,arrival_s,steps,job_class\nann,0,9,vae\n"),
        ("philly.csv", "timestamp,duration,num_gpus,user\n2017-10-03 06:48:36,9.0,1,ann\n"),
        ("w.yaml", "jobs: [{user: ann, arrival_s: 0, steps: 9, job_class: vae}]\n"),
    ],
)
def test_a_file_may_begin_with_a_byte_order_mark_and_end_its_lines_as_spreadsheets_do(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert [job.user for job in read(path).jobs] == ["ann"]


def test_a_users_column_comes_before_the_tenants(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text("timestamp,duration,num_gpus,user,cluster\n2017-10-03 06:48:36,500.0,2,zoe,a\n")
    assert [job.user for job in read(path).jobs] == ["zoe"]


def test_a_gang_is_spread_over_the_fewest_servers_that_hold_it_in_equal_parts() -> None:
    assert [nodes_of(gang, 4) for gang in (1, 3, 4, 5, 6, 7, 8, 9, 12)] == [1, 1, 1, 5, 2, 7, 2, 3, 3]


def test_shockwaves_jobs_have_the_stages_of_their_mode(tmp_path: Path) -> None:
    path, table = put(
        tmp_path,
        "shockwave",
        "".join(fields(SHOCKWAVE_LINE, mode=mode) for mode in ("gns", "accordion", "static")),
    )
    found = read(path, table)
    assert found.peer is SHOCKWAVE
    gns, accordion, static = found.jobs
    assert gns.growth is Growth.CLIMB
    assert [(stage.from_epoch, stage.job_class, stage.epoch_steps) for stage in gns.stages] == [
        (0, "ResNet-18 (batch size 64) x1", 782),
        (11, "ResNet-18 (batch size 128) x1", 391),
        (31, "ResNet-18 (batch size 256) x1", 196),
    ]
    assert accordion.growth is Growth.JUMP
    assert [(stage.from_epoch, stage.epoch_steps) for stage in accordion.stages] == [(0, 782), (10, 196)]
    assert static.stages == ()
    assert {name for name, _ in found.rates} >= {stage.job_class for stage in gns.stages}


def test_a_job_of_the_largest_batch_size_or_of_an_unknown_model_has_no_stages() -> None:
    speeds = {(f"ResNet-18 (batch size {batch}) x1", "V100"): 1.0 for batch in (128, 256)}
    assert stages("gns", "ResNet-18 (batch size 256)", 1, 99_999, speeds)[0] == ()
    assert stages("accordion", "ResNet-18 (batch size 256)", 1, 99_999, speeds)[0] == ()
    assert stages("gns", "A3C", 1, 99_999, speeds)[0] == ()
    assert stages("gns", "ResNet-18 (batch size 128)", 1, 99_999, speeds)[0]
    # It is over before its batches would grow.
    assert stages("gns", "ResNet-18 (batch size 128)", 1, 391 * 5, speeds)[0] == ()


def test_the_parts_of_a_life_are_as_long_as_its_epochs(tmp_path: Path) -> None:
    path, table = put(tmp_path, "shockwave", fields(SHOCKWAVE_LINE, steps=782 * 40))
    (job,) = read(path, table).jobs
    assert [(name.split()[3], steps) for name, steps in job.parts] == [
        ("64)", 11 * 782),
        ("128)", 20 * 391),
        ("256)", 9 * 196),
    ]


def test_gavels_own_trace_is_of_gavels_world(tmp_path: Path) -> None:
    path, table = put(tmp_path, "gavel", GOOD["gavel"])
    found = read(path, table)
    assert found.peer is GAVEL
    assert found.jobs[0].stages == ()


@pytest.mark.parametrize("suffix", ["csv", "yaml"])
def test_what_is_written_is_read_as_it_was(tmp_path: Path, suffix: str) -> None:
    trace, table = put(tmp_path, "shockwave", GOOD["shockwave"] + fields(SHOCKWAVE_LINE, mode="accordion"))
    shared = {("vae", "vae", "V100"): 1.25, ("vae", "dcgan", "V100"): math.inf}
    drawn = replace(generate(Recipe(jobs=20, users=3, jobs_per_hour=60)), interference=shared)
    for load in (read(trace, table), drawn):
        path = tmp_path / f"again.{suffix}"
        path.write_text({"csv": dump_csv, "yaml": dump_yaml}[suffix](load))
        again = read(path)
        assert again.interference == load.interference
        assert again.jobs == load.jobs
        assert again.tickets == load.tickets
        assert again.rates.items() <= load.rates.items()


def test_gavels_pairs_say_how_much_jobs_slow_each_other(tmp_path: Path) -> None:
    path, table = put(tmp_path, "gavel", GOOD["gavel"])
    assert table is not None
    assert read(path, table).interference == {}
    small = "('ResNet-18 (batch size 64)', 2)"
    tree = json.loads(table.read_text())
    tree["v100"][small][small] = [12.0, 12.0]
    tree["k80"][small][small] = [0.0, 0.0]
    table.write_text(json.dumps(tree))
    name = "ResNet-18 (batch size 64) x2"
    assert read(path, table).interference == {(name, name, "V100"): 16 / 12, (name, name, "K80"): math.inf}
    tree["v100"][small][small] = "fast"
    table.write_text(json.dumps(tree))
    with pytest.raises(RefusedError, match="'fast'; expected steps/s of both, two numbers"):
        read(path, table)


@pytest.mark.parametrize(
    ("suffix", "body", "says"),
    [
        ("csv", "# beside net net V100 0.5\n", "beside: '0.5'; expected a number of at least 1"),
        ("csv", "# beside net V100 1.5\n", "expected `# beside CLASS OTHER_CLASS MODEL TIMES_AS_LONG`"),
        ("yaml", "interference: {net: {net: {V100: fast}}}\n", "interference.net.net.V100: 'fast'; expected"),
        ("yaml", "interference: {net: 2}\n", "interference.net: 2; expected class beside it"),
    ],
)
def test_a_ratio_that_is_none_is_refused(tmp_path: Path, suffix: str, body: str, says: str) -> None:
    path, _ = put(tmp_path, suffix, GOOD[suffix])
    path.write_text(body + path.read_text())
    with pytest.raises(RefusedError, match=re.escape(says)):
        read(path)


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
