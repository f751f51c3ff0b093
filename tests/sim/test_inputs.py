"""Workload files of every format: what good ones come to."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import RefusedError
from hs_sim.batches import stages
from hs_sim.cli import main
from hs_sim.cluster import nodes_of
from hs_sim.export import dump_csv, dump_yaml
from hs_sim.generate import Recipe, generate
from hs_sim.model import GAVEL, SHOCKWAVE, Growth
from hs_sim.reading import Sieve
from hs_sim.sources import read
from tests.sim.workload_files import (
    CSV,
    GOOD,
    SHOCKWAVE_LINE,
    fields,
    put,
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


def test_any_gpu_model_is_said_as_in_a_job_file(tmp_path: Path) -> None:
    path, _ = put(tmp_path, "yaml", "- {user: a, arrival_s: 1, steps: 9, job_class: net, gpu_types: any}\n")
    assert read(path).jobs[0].gpu_types == ()


def test_a_name_or_a_data_set_that_is_null_is_none_and_a_user_may_be_a_number(tmp_path: Path) -> None:
    path, _ = put(tmp_path, "yaml", "- {user: 7, arrival_s: 60, steps: 900, job_class: net, dataset: null}\n")
    path.write_text("name: null\n" + path.read_text())
    found = read(path)
    assert (found.name, found.jobs[0].user, found.jobs[0].dataset) == ("yaml", "7", "")


@pytest.mark.parametrize("kind", ["csv", "philly"])
def test_a_field_of_any_length_is_read(kind: str, tmp_path: Path) -> None:
    long = "x" * 200_000
    bad = {"csv": f"ann,60,900,{long},2,1\n", "philly": f"{long},5.0,2,1,a\n"}[kind]
    path, _ = put(tmp_path, kind, GOOD[kind] + bad)
    sieve = Sieve(skip_bad=True)
    assert len(read(path, sieve=sieve).jobs) == 1
    assert sieve.left_out[0].startswith(f"{path}:")


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


@pytest.mark.parametrize(
    "text",
    [
        '"timestamp","duration","num_gpus","user"\n"2017-10-03 06:48:36","9.0","1","ann"\n',
        "timestamp, duration, num_gpus, user\n2017-10-03 06:48:36, 9.0, 1, ann\n",
        "timestamp,duration,num_gpus,user,\n\n2017-10-03 06:48:36,9.0,1,ann,\n\n",
    ],
    ids=["all in quotes", "a space after each comma", "a comma at the end of each line"],
)
def test_phillys_trace_is_one_as_other_programs_write_tables(tmp_path: Path, text: str) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(text)
    assert [(job.user, job.gang) for job in read(path).jobs] == [("ann", 1)]


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
