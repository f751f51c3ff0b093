"""hs-sim compare: its contract, wherever the runs take place."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hs_core.errors import Kind, RefusedError
from hs_sim.cli import main
from hs_sim.cli.show import _seeds, parts_of, table_of
from hs_sim.cluster import parse_cluster
from hs_sim.compare import Case, mean_of, run
from hs_sim.figures import FIGURES
from hs_sim.generate import Recipe, generate
from hs_sim.metrics import MEASURED
from hs_sim.model import Experiment
from hs_sim.spread import Where, spread
from hs_sim.writers import write_bytes
from tests.sim.workload_files import NO_PLACE

CONTRACT = (
    "policy", "finished", "jobs", "mean_jct_s", "median_jct_s", "p90_jct_s", "p99_jct_s", "makespan_s", "ftf_mean", "ftf_max",
    "ftf_above_1", "utilization", "suspends", "migrations", "restarts", "decision_s_mean", "decision_s_max", "cpu_s",
)  # fmt: skip
SMALL = ["--jobs", "12", "--users", "3", "--service-s", "600", "--cluster", "v100:4,k80:8"]


def compare(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    out = tmp_path / "out.json"
    assert main(["compare", *SMALL, "--json", str(out), *words]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


def test_each_policy_and_seed_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    rows = compare(tmp_path, "--policies", "fifo,las", "--seeds", "2", "--workers", "1")
    assert [(row["policy"], row["seed"]) for row in rows] == [
        ("fifo", 0),
        ("las", 0),
        ("fifo", 1),
        ("las", 1),
    ]
    for row in rows:
        assert set(CONTRACT) <= set(row)
        assert row["finished"] == row["jobs"] == 12
        assert 0 < row["median_jct_s"] <= row["p90_jct_s"] <= row["p99_jct_s"] <= row["makespan_s"]
        assert 0 < row["ftf_mean"] <= row["ftf_max"]
        assert 0 <= row["ftf_above_1"] <= 1
        assert 0 < row["utilization"] <= 1


def test_the_table_of_runs_has_the_same_as_the_objects(tmp_path: Path) -> None:
    table = tmp_path / "out.csv"
    rows = compare(tmp_path, "--policies", "fifo,las", "--seeds", "2", "--until", "500", "--csv", str(table))
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(rows) == 4
    for line, row in zip(lines, rows, strict=True):
        assert line == {name: "" if value is None else str(value) for name, value in row.items()}


def test_who_interrupts_while_a_file_is_written_finds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "out.json", b"half")
    assert not list(tmp_path.iterdir())


def test_runs_in_other_processes_come_to_the_same_in_the_same_order(tmp_path: Path) -> None:
    words = ["--policies", "fifo,las,lottery"]
    here = compare(tmp_path, *words, "--workers", "1")
    there = compare(tmp_path, *words, "--workers", "2")
    for row in (*here, *there):
        for name in MEASURED:
            del row[name]
    assert there == here


def test_the_table_names_every_column_and_of_several_seeds_the_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(tmp_path, "--policies", "fifo", "--seeds", "3", "--workers", "1")
    head, row, note = capsys.readouterr().out.splitlines()
    for name in (
        "finished", "mean JCT", "median", "p90", "p99", "makespan", "FTF", "worst", "above 1", "used", "unfair", "longest wait",
        "suspends", "moves", "restarts", "decision",
    ):  # fmt: skip
        assert name in head
    assert row.split()[:2] == ["fifo", "0-2"]
    assert note == "Means over 3 seeds, of worst ratios and longest waits the largest."


@pytest.mark.parametrize("width", [60, 80, 132])
def test_on_a_narrow_terminal_tables_follow_one_another_and_each_fits(width: int) -> None:
    load = generate(Recipe(jobs=6, users=2, service_s=300, sizes={1: 1.0}))
    clusters = [
        Experiment(cluster=parse_cluster("v100:4"), workload=load, policy=name)
        for name in ("fifo", "gandiva-fair")
    ]
    rows = [("0-9", run(Case(experiment=one)).summary) for one in clusters]
    parts = parts_of(rows, width)
    assert len(parts) > 1
    named = [name for columns in parts for name, _ in columns]
    assert named == [name for columns in parts_of(rows, 1_000) for name, _ in columns]
    for columns in parts:
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(table_of(rows, columns))
        head, *lines = console.file.getvalue().splitlines()
        assert head.split()[:2] == ["policy", "seed"]
        assert len(lines) == 2
        for name, text in columns:
            assert name in head
            assert all(text(row) in line for (_, row), line in zip(rows, lines, strict=True))


def test_a_mean_over_seeds_keeps_the_largest_of_what_is_a_largest() -> None:
    cases = [
        Case(experiment=Experiment(cluster=parse_cluster("v100:4"), workload=load, policy="fifo", seed=seed))
        for seed in (0, 1)
        for load in (generate(Recipe(jobs=6, users=2, service_s=300, seed=seed, sizes={1: 1.0})),)
    ]
    rows = [run(case).summary for case in cases]
    mean = mean_of(rows)
    assert mean.mean_jct_s == pytest.approx(sum(row.mean_jct_s or 0.0 for row in rows) / 2)
    assert mean.ftf_max == max(row.ftf_max or 0.0 for row in rows)
    assert mean.jobs == 6
    assert _seeds(rows) == "0-1"


def test_a_picture_is_drawn_and_the_same_for_the_same_runs(tmp_path: Path) -> None:
    pictures = [tmp_path / name for name in ("one.png", "other.png")]
    for picture in pictures:
        compare(tmp_path, "--policies", "fifo,las", "--workers", "1", "--plot", str(picture))
    one, other = (picture.read_bytes() for picture in pictures)
    assert one.startswith(b"\x89PNG")
    assert one == other


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policies", ","], "--policies"),
        (["--policies", "fifo,fiffo"], "--policies: no policy is called 'fiffo'; there are"),
        (["--policies", "fiffo"], "did you mean fifo"),
        (["--policies", "fifo", "--trace", ""], "'--trace': expected a name that is not empty."),
        (["--policies", "fifo", "--json", ""], "'--json': expected a name that is not empty."),
        (["--policies", "fifo", "--json", "-"], "'--json': '-' names no file here; expected a file's name"),
        (
            ["--policies", "fifo", "--gpu-memory-gib", "1048577"],
            "--gpu-memory-gib: 1048577; expected more than 0, at most 1048576\n",
        ),
        (["--policies", "fifo", "--seeds", "0"], "--seeds: 0"),
        (["--policies", "fifo", "--workers", "-1"], "--workers: -1"),
        (["--policies", "fifo", "--address", "x:1"], "--address: 'x:1' without --on"),
        (
            ["--policies", "fifo", "--throughputs", "t.json"],
            "--throughputs: 't.json' without a trace; expected both",
        ),
        (["--policies", "fifo", "--gpus-per-server", "0"], "--gpus-per-server: 0"),
        (["--policies", "fifo", "--jobs", "9" * 20], "expected 1 to 2000000"),
        (["--policies", "fifo", "--users", "9" * 20], "expected 1 to 2000000"),
        (["--policies", "fifo", "--jobs-per-hour", "nan"], "expected 0.0 to 1000000000"),
        (["--policies", "fifo", "--service-s", "1e99"], "expected 0.001 to 1000000000"),
        (["--policies", "fifo", "--service-spread", "1e99"], "--service-spread: 1e+99; expected 0.0 to 10"),
        (["--policies", "fifo", "--sample-s", "1e99"], "expected 0 to 1e12 seconds"),
        (
            ["--policies", "fifo", "--quantum-s", "1e-9"],
            "--quantum-s (--round-s): 1e-09; expected 0.001 to 1e+06 seconds",
        ),
        (["--policies", "fifo", "--cluster", "v100:" + "9" * 20], "numbers from 1 to 1000000"),
        (
            ["--policies", "fifo", "--trace", "x.yaml"],
            "--jobs: of generated workloads, beside 'x.yaml'; expected no file, or not this option (--first: so many jobs of a file)\n",
        ),
        (["--policies", "fifo", "--first", "3"], "--first: 3 without a file; expected one, or --jobs"),
        (
            ["--policies", "fifo", "--like", "gavel"],
            "--users: with --like gavel, which does not go by it; expected not this option",
        ),
        (["--policies", "fifo", "--plot", "x.doc"], "--plot: 'x.doc'; expected a name that ends in .png"),
    ],
)
def test_bad_usage_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *SMALL, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--policy", "fiffo"], "--policy: no policy is called 'fiffo'; there are"),
        (["run", "x.yaml", "--first", "-1"], "--first: -1"),
        (["run", "x.yaml", "--like", "gavel"], "--like: of generated workloads, beside 'x.yaml'"),
        (
            ["workload", "generate", "x.yaml", "--like", "shockwave", "--models", "vae"],
            "--models: with --like shockwave, which does not go by it",
        ),
        (["run", ""], "expected a name that is not empty."),
        (["run", "-"], "'-' names no file here; expected a file's name"),
        (["workload", "check", ""], "'PATH': expected a name that is not empty."),
        (["figures", "table2", "--dir", ""], "'--dir': expected a name that is not empty."),
    ],
    ids=str,
)
def test_bad_usage_of_other_verbs_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES, "table2", lambda: pytest.fail("it is computed"))
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--csv", "--plot"])
def test_a_run_begins_only_if_what_it_is_to_write_can_be_written_and_is_not_what_it_reads(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tmp_path / ("w.yaml" if option != "--plot" else "w.png")
    load.write_text("not a workload")
    monkeypatch.setattr("hs_sim.cli.run.workload_of", lambda *_: pytest.fail("it is read"))
    folder = tmp_path / "folder.png"
    folder.mkdir()
    (tmp_path / "link.png").hardlink_to(load)
    for path, said in (
        (load, "is read; expected another file"),
        (tmp_path / "folder.png" / ".." / load.name, "is read; expected another file"),
        (tmp_path / "link.png", "is read; expected another file"),
        (folder, "is a folder; expected a place that can be written"),
        (load / "below.png", f"{load} is no folder; expected a place that can be written"),
    ):
        assert main(["run", str(load), option, str(path)]) == 2
        assert f"{option}: {str(path)!r}" in (shown := capsys.readouterr().err)
        assert said in shown
    assert load.read_text() == "not a workload"
    for path, said in (
        ("/proc/no/x.png", f"{NO_PLACE}; expected a place"),
        ("/dev/full", "is no plain file; expected a place"),
        (f"{'x' * 300}.png", "file name too long; expected a place"),
        (f"{'x' * 250}.png", "file name too long; expected a place"),  # as it is named until it is whole
    ):
        if option != "--plot" or path.endswith(".png"):
            assert main(["run", str(load), option, path]) == 2
            assert f"{option}: {path!r}: {said}" in capsys.readouterr().err
    out = str(tmp_path / "out.png")
    assert main(["run", str(load), "--json", out, "--plot", out]) == 2
    assert "--plot: " in (shown := capsys.readouterr().err)
    assert "is written by --json; expected another file" in shown


def test_jobs_are_drawn_as_other_simulators_draw_them(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--jobs", "12", "--like", "gavel", "--small", "--round-s", "3600", "--cluster", "v100:4,k80:8"]
    assert main(["compare", "--policies", "fifo", *words, "--json", str(out)]) == 0
    assert json.loads(out.read_text())[0]["finished"] == 12


# --- over machines --------------------------------------------------------------------------------------------------------


def double(value: int) -> int:
    return 2 * value


def install(monkeypatch: pytest.MonkeyPatch, name: str, **parts: object) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(parts)
    monkeypatch.setitem(sys.modules, name, module)


def test_with_ray_runs_are_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[object] = []

    class Task:
        def __init__(self, work: Any) -> None:
            self.work = work

        def remote(self, item: int) -> tuple[int, int]:
            return item, self.work(item)

    def wait(left: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return left[-num_returns:], left[:-num_returns]  # the last first

    install(
        monkeypatch,
        "ray",
        init=lambda **said: log.append(said["address"]),
        remote=Task,
        wait=wait,
        get=lambda ref: ref[1],
        shutdown=lambda: log.append("shut down"),
    )
    ended: list[int] = []
    assert spread(double, [1, 2, 3], where=Where.RAY, address="head:6379", done=ended.append) == [2, 4, 6]
    assert ended == [2, 1, 0]
    assert log == ["head:6379", "shut down"]


def test_with_dask_runs_are_its_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[object] = []

    class Client:
        def __init__(self, address: str | None) -> None:
            log.append(address)

        def map(self, work: Any, items: list[int], pure: bool) -> list[Any]:
            assert not pure, "a run measures the machine it is on"
            return [SimpleNamespace(key=f"run-{item}", result=lambda item=item: work(item)) for item in items]

        def close(self) -> None:
            log.append("closed")

    install(monkeypatch, "distributed", Client=Client, as_completed=reversed)
    assert spread(double, [5, 6], where=Where.DASK) == [10, 12]
    assert log == [None, "closed"]


@pytest.mark.parametrize("where", [Where.RAY, Where.DASK])
def test_without_it_installed_nothing_is_run(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hs_sim.spread.find_spec", lambda _: None)
    with pytest.raises(RefusedError, match=f"--on: {where}; expected it to be installed") as caught:
        spread(double, [1], where=where)
    assert caught.value.kind is Kind.UNAVAILABLE


def test_a_cluster_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise ConnectionError("nobody answers")

    install(monkeypatch, "ray", init=init, shutdown=lambda: None)
    with pytest.raises(RefusedError, match="--address: 'far:1': nobody answers; expected a Ray cluster"):
        spread(double, [1], where=Where.RAY, address="far:1")


def test_who_interrupts_does_not_wait_for_the_runs_under_way() -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        spread(time.sleep, [0.0, 40.0, 40.0], workers=2, done=interrupt)
    assert time.monotonic() - began_s < 20.0


def test_who_interrupts_does_not_wait_for_a_workload_that_no_process_is_left_to_read(tmp_path: Path) -> None:
    """Each is larger than a pipe holds, and both workers have their hands full."""
    script = tmp_path / "spreading.py"
    script.write_text(SPREADING.format(items=[(0.0, 1_000_000)] + [(600.0, 1_000_000)] * 5))
    done = subprocess.run(
        [sys.executable, script], check=False, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=90.0
    )
    assert done.stderr.endswith("KeyboardInterrupt\n")


def test_runs_in_other_processes_end_when_the_one_that_began_them_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "spreading.py"
    script.write_text(SPREADING.format(items=[(600.0, 1)] * 2))
    began = subprocess.Popen([sys.executable, script], cwd=tmp_path)
    try:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    finally:
        began.kill()
        began.wait()
    workers = [Path("/proc", path.stem) for path in tmp_path.glob("*.pid")]
    until(lambda: not any(worker.exists() for worker in workers))


@pytest.mark.parametrize("depth", ["quanta", "machines"])
def test_a_start_takes_as_long_as_is_said(depth: str, tmp_path: Path) -> None:
    words = (
        "--policies",
        "fifo",
        "--depth",
        depth,
        "--jobs",
        "1",
        "--users",
        "1",
        "--cluster",
        "v100:4,k80:8",
    )
    usual, slow = (compare(tmp_path, *words, *costs)[0]["makespan_s"] for costs in ((), ("--start-s", "310")))
    assert slow == pytest.approx(usual + 300.0, abs=1.0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--start-s -1", "--start-s: -1.0; expected 0 to 86400 seconds"),
        ("--suspend-s nan", "--suspend-s: nan; expected 0 to 86400 seconds"),
        ("--resume-s 1e9", "--resume-s: 1000000000.0; expected 0 to 86400 seconds"),
        ("--start-s 3 --preset gavel-compat", "--start-s: 3 with --preset gavel-compat"),
    ],
)
def test_a_cost_that_cannot_be_is_refused(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--policies", "fifo", *SMALL, *words.split()]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "compare --policies gandiva-fair,las --jobs 5000 --jobs-per-hour 40 --workers 2 --json out.json",
        "faults --seeds 1000 --processes 2",
    ],
)
def test_who_is_told_to_end_ends_its_processes_and_says_nothing(words: str, tmp_path: Path) -> None:
    begun = subprocess.Popen(
        [sys.executable, "-m", "hs_sim", *words.split()],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    workers: list[Path] = []

    def both_are_there() -> bool:
        workers[:] = [child for child in children_of(begun.pid) if b"spawn_main" in command_of(child)]
        return len(workers) == 2

    until(both_are_there)
    begun.terminate()
    out, err = begun.communicate(timeout=60.0)
    assert (begun.returncode, out, err) == (143, "", "")
    assert not any(b"spawn_main" in command_of(worker) for worker in workers)
    assert list(tmp_path.iterdir()) == []


TOLD_AS_ONE_IS_STARTED = """
import multiprocessing.util as util
import signal
import sys

from hs_sim.__main__ import main

started, spawn = 0, util.spawnv_passfds

def spawned(*arguments):
    global started
    child = spawn(*arguments)
    started += 1
    if started == {nth}:
        signal.raise_signal(signal.{name})
    return child

util.spawnv_passfds = spawned
if __name__ == "__main__":
    sys.argv = ["hs-sim", "faults", "--seeds", "1000", "--processes", "2"]
    sys.exit(main())
"""


@pytest.mark.parametrize(  # the keeper of what they share is the first
    ("nth", "name", "status", "says"),
    [(2, "SIGTERM", 143, ""), (3, "SIGINT", 130, "\nhs-sim: interrupted\n")],
)
def test_who_is_told_to_end_as_a_process_is_started_ends_that_too(
    nth: int, name: str, status: int, says: str, tmp_path: Path
) -> None:
    script = tmp_path / "told.py"
    script.write_text(TOLD_AS_ONE_IS_STARTED.format(nth=nth, name=name))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60.0, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", says)


def children_of(pid: int) -> list[Path]:
    return [Path("/proc", child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # gone
        return b""


def test_a_process_that_is_killed_is_said_to_be_so() -> None:
    with pytest.raises(RefusedError, match="--workers: one of 2 processes was killed") as caught:
        spread(os._exit, [9, 9], workers=2)
    assert caught.value.kind is Kind.UNAVAILABLE


def until(holds: Callable[[], bool], at_most_s: float = 90.0) -> None:
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < at_most_s
        time.sleep(0.05)


SPREADING = """
import os, pathlib, time
from hs_sim.spread import spread

def work(item):
    seconds, _ = item
    pathlib.Path(f"{{os.getpid()}}.pid").touch()
    time.sleep(seconds)

def interrupt(at):
    raise KeyboardInterrupt

if __name__ == "__main__":
    spread(work, [(seconds, bytes(size)) for seconds, size in {items}], workers=2, done=interrupt)
"""
