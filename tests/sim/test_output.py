"""Where nobody reads what is printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hs_sim.cli import main


def test_results_are_kept_where_nobody_can_read_the_table(tmp_path: Path) -> None:
    load = tmp_path / "w.yaml"
    assert main(["workload", "generate", str(load), "--jobs", "3"]) == 0
    asked = {
        "run": ["run", str(load), "--csv", "out.csv"],
        "compare": ["compare", "--trace", str(load), "--policies", "fifo"],
        "figures": ["figures", "table2", "--dir", "."],
    }
    for verb, words in asked.items():
        command = [sys.executable, "-m", "hs_sim", *words, "--json", f"{verb}.json"]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                command, check=False, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True
            )
        assert (done.returncode, done.stderr) == (2, "hs-sim: output: No space left on device\n")
        assert json.loads((tmp_path / f"{verb}.json").read_text())
    assert (tmp_path / "out.csv").read_text().count("\n") == 4
    assert (tmp_path / "table2.png").is_file()


@pytest.mark.parametrize(
    "words",
    [
        ["hs_sim", "run", "--jobs", "2"],
        ["hs_sim", "--help"],
        ["hs_client", "--help"],
        ["hs_controller", "--version"],
        ["hs_agent", "--help"],
    ],
    ids=" ".join,
)
def test_a_reader_that_has_had_enough_is_no_failure(words: list[str], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", *words]
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run(
            command, check=False, stdout=pipe, stderr=subprocess.PIPE, cwd=tmp_path, text=True
        )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [["hs_controller", "--version"], ["hs_agent", "--help"]], ids=" ".join)
def test_a_text_that_cannot_be_written_is_said_to_be_so(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *words], check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, "standard output cannot be written" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr
