"""Workload files of every format: what is said of what is bad, by file, line, field, value and what was expected."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hs_core.errors import Kind, RefusedError
from hs_sim.cli import main
from hs_sim.reading import Sieve
from hs_sim.sources import read
from tests.sim.workload_files import (
    FIRST,
    GAVEL_LINE,
    GOOD,
    SHOCKWAVE_LINE,
    fields,
    put,
)

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
    ("philly", "2017-10-03 06:48:36,1,500.0,2,1000.0,a\n", "line", "'2017-10-03 06:48:36,1,500.0,2,1000.0,a'", "5 fields"),
    ("philly", "yesterday,500.0,2,1000.0,a\n", "timestamp", "'yesterday'", "a time such as"),
    ("philly", "2017-10-03 06:48:36,-5,2,1000.0,a\n", "duration", "'-5'", "above 0"),
    ("philly", "2017-10-03 06:48:36,nan,2,1000.0,a\n", "duration", "'nan'", "above 0"),
    ("philly", "2017-10-03 06:48:36,500.0,0,1000.0,a\n", "num_gpus", "'0'", "at least 1"),
    ("philly", "2017-10-03 06:48:36+00:00,500.0,1,1000.0,a\n", "timestamp", "'2017", "without an offset"),
    ("yaml", "- {user: ann, steps: 900, job_class: net}\n", "arrival_s", "'nothing'", "every job names it"),
    ("yaml", "- {user: ann, arrival_s: -1, steps: 900, job_class: net}\n", "arrival_s", "-1", "at least 0"),
    ("yaml", "- {user: ann, arrival_s: 1, steps: 900, job_class: nets}\n", "job_class", "'nets'", "did you mean net"),
    ("yaml", "- {user: ann, arrival_s: 1, steps: .nan, job_class: net}\n", "steps", "nan", "a whole number"),
    ("yaml", "- 7\n", "jobs", "7", "a mapping"),
    ("yaml", "- {user: null, arrival_s: 1, steps: 9, job_class: net}\n", "user", "'nothing'", "every job names it"),
    ("yaml", "- {user: yes, arrival_s: 1, steps: 9, job_class: net}\n", "user", "True", "text, in quotes"),
    ("yaml", "- {user: [a], arrival_s: 1, steps: 9, job_class: net}\n", "user", "['a']", "text, in quotes"),
    ("yaml", "- {user: a, arrival_s: 1, steps: 9, job_class: 2020-01-02}\n", "job_class", "datetime.date(2020, 1, 2)", "text, in quotes"),
    ("yaml", "- {user: a, arrival_s: 1, steps: 9, job_class: net, stages: 5 net}\n", "stages", "'5 net'", "EPOCH"),
    ("yaml", "- {user: a, arrival_s: 1, steps: 9, job_class: net, priority: 1001}\n", "priority", "1001", "at most 1000"),
    ("yaml", "- {user: a, arrival_s: 1, steps: 9, job_class: net, gpu_memory_bytes: 5, gpu_memory_fixed_bytes: 6}\n", "gpu_memory_fixed_bytes", "6", "a part of gpu_memory_bytes"),
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


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("csv", "user,steps\nann,9\n", r":1: header: 'user,steps'; expected a column arrival_s"),
        ("csv", "ann,60,900,net\n", r":1: header: 'ann,60,900,net'; expected names of columns before the first job: user, arrival_s"),
        ("csv", "user,arrival_s,steps,job_class,colour\n", r":1: unknown field 'colour'; expected one of"),
        ("yaml", "jobs:\n- {user: ann, arrival_s: 1, steps: 9, job_class: net, gpu: 2}\n", r":2: unknown field 'gpu'; expected one of .*did you mean gpus"),
        ("yaml", "Users: {ann: 1}\njobs: []\n", r":1: unknown field 'Users'; expected one of .*did you mean users"),
        ("csv", "", r":1: jobs: 'none'"),
        ("csv", "# rate net V100 -2\nuser,arrival_s,steps,job_class\nann,0,9,net\n", r":1: rate: '-2'; expected a number of at least 0"),
        ("csv", "# user ann 0\nuser,arrival_s,steps,job_class\nann,0,9,vae\n", r":1: tickets: '0'; expected a number of at least 1e-06"),
        ("csv", "timestamp,duration,num_gpus\n", r":1: jobs: 'none'"),
        ("csv", "timestamp,duration,num_gpus,duration\n", r":1: header: .*; expected a column duration once"),
        ("csv", "user,arrival_s,steps,job_class,\nann,0,9,vae,\n", r":1: header: 'user,arrival_s,steps,job_class,'; expected a name for every column"),
        ("csv", "# user ann 1\n# user ann 2\nuser,arrival_s,steps,job_class\nann,0,9,vae\n", r":2: user: '# user ann 2'; expected each user once"),
        ("csv", "# beside a b V100 2\n# beside a b v100 3\n", r":2: beside: .*; expected each pair and model once"),
        ("csv", "# spread a V100 0.5\n# spread a v100 0.6\n", r":2: spread: .*; expected each class and model once"),
        ("csv", "# speed a V100 grad_per_example_s=1\n# speed a v100 grad_per_example_s=2\n", r":2: speed: .*; expected each class and model once"),
        ("csv", "# speed a V100 grad_s=1 grad_s=2\n", r":1: speed: .*; expected each part once"),
        ("yaml", "spread: {a: {V100: 0.5, v100: 0.6}}\njobs:\n- {user: ann, arrival_s: 1, steps: 9, job_class: vae}\n", r":1: spread.a: 'v100'; expected each model once"),
        ("yaml", "interference: {a: {b: {V100: 2, v100: 3}}}\njobs: []\n", r":1: interference.a.b: 'v100'; expected each model once"),
        ("yaml", "speeds: {a: {V100: {grad_per_example_s: 1}, v100: {grad_per_example_s: 1}}}\njobs:\n- {user: ann, arrival_s: 1, steps: 9, job_class: vae}\n", r":1: speeds.a: 'v100'; expected each model once"),
        ("yaml", "jobs:\n" + "- {user: ann, arrival_s: 1, steps: 9, job_class: vae, count: 1500000}\n" * 2, r":3: jobs: 3000000; expected at most 2000000 in a file"),
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


def test_of_a_file_without_a_good_job_a_check_lists_every_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = put(tmp_path, "csv", "ann,-60,900,net,2,1\nann,60,0,net,2,1\n")
    assert main(["workload", "check", str(path), "--skip-bad"]) == 2
    first, second, last = capsys.readouterr().err.splitlines()
    assert (first.startswith(f"{path}:4: arrival_s"), second.startswith(f"{path}:5: steps")) == (True, True)
    assert "all 2 jobs are bad" in last


def test_what_is_said_of_a_bad_job_is_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = put(tmp_path, "csv", GOOD["csv"] + "ann,60,900,[/x] [red] :car:,2,1\n")
    assert main(["run", str(path), "--policy", "fifo", "--cluster", "v100:4", "--skip-bad"]) == 0
    said = capsys.readouterr().out
    assert f"1 bad job left out; the first: {path}:" in said
    assert "job_class: '[/x] [red] :car:'; expected one that has rates" in said


def test_the_line_of_a_bad_job_counts_those_that_fields_in_quotes_go_over(tmp_path: Path) -> None:
    path, _ = put(tmp_path, "csv", '"an\nn",60,900,net,2,1\nbob,-60,900,net,2,1\n')
    with pytest.raises(RefusedError, match=r"csv\.csv:6: arrival_s: '-60'"):
        read(path)


def test_a_user_whom_the_file_does_not_name_among_its_users_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = "- {{user: {}, arrival_s: 0, steps: 100, job_class: dcgan}}\n"
    path = tmp_path / "w.yaml"
    path.write_text("users: {ann: 50}\njobs:\n" + job.format("ann") + job.format("amn"))
    told = f"hs-sim: {path} names users, but not amn: 100 tickets\n"
    for words in (
        ["run", str(path), "--cluster", "v100:4"],
        ["compare", "--policies", "fifo,las", "--trace", str(path), "--cluster", "v100:4", "--seeds", "2"],
        ["workload", "check", str(path)],
    ):
        assert main(words) == 0
        assert capsys.readouterr().err == told
    assert main(["workload", "check", str(path), "--first", "1"]) == 0
    assert capsys.readouterr().err == ""
    path.write_text("jobs:\n" + job.format("ann") + job.format("amn"))
    assert main(["workload", "check", str(path)]) == 0
    assert capsys.readouterr().err == "", "where nobody is named all have the same"


@pytest.mark.parametrize(("mark", "told"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_table_without_commas_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mark: str, told: str
) -> None:
    path = tmp_path / "w.csv"
    path.write_text("user,arrival_s,steps,job_class\nann,0,100,dcgan\n".replace(",", mark))
    assert main(["workload", "check", str(path)]) == 2
    assert f"expected commas between the fields, not {told}" in capsys.readouterr().err


def test_arrivals_since_1970_are_said_to_be_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.csv"
    path.write_text("user,arrival_s,steps,job_class\nann,1700000000,100,dcgan\n")
    assert main(["run", str(path), "--cluster", "v100:4"]) == 2
    assert "not from 1970: take the first off all" in capsys.readouterr().err
