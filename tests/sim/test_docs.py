"""docs/simulator.md says what hs-sim does."""

import csv
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hs_sim.cli import main
from hs_sim.cli.show import _COLUMNS

PAGE = Path(__file__, "../../../docs/simulator.md").resolve().read_text()


def words(line: str) -> list[str]:
    """But for how long a decision took, which is this machine's."""
    return line.split()[: -1 if line.startswith("policy") else -2]


def test_a_mornings_work_goes_as_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = PAGE.partition("A morning's work, start to end:\n\n```\n")[2]
    commands, _, after = told.partition("```\n")
    table = after.partition("The fourth of these prints\n\n```\n")[2].partition("```\n")[0]
    for number, line in enumerate(commands.splitlines(), start=1):
        program, *arguments = shlex.split(line)
        assert program == "hs-sim"
        if arguments[0] == "figures":  # half a minute: test_figures.py
            continue
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        if number == 4:
            assert [*map(words, shown.splitlines())] == [*map(words, table.splitlines())]
    assert {path.name for path in tmp_path.iterdir()} == {
        "small.yaml",
        "out.json",
        "out.csv",
        "out.png",
        "cmp.json",
        "cmp.csv",
        "cmp.png",
    }


def names(row: dict[str, object]) -> Iterator[str]:
    """Of fields, not of users and GPU models."""
    for name, value in row.items():
        yield name
        if name in ("job_outcomes", "trade_events", "samples"):
            assert isinstance(value, list)
            for entry in value:
                yield from entry


def test_every_field_that_is_written_is_in_a_table_of_the_page(tmp_path: Path) -> None:
    words = [
        "--jobs",
        "60",
        "--users",
        "4",
        "--models",
        "vae,resnext50",
        "--small",
        "--cluster",
        "v100:8,k80:16",
        "--known-rates",
        "--until",
        "3600",
    ]
    out = [str(tmp_path / name) for name in ("run.json", "run.csv", "compare.json")]
    assert main(["run", *words, "--json", out[0], "--csv", out[1]]) == 0
    assert main(["compare", "--policies", "fifo", *words, "--json", out[2]]) == 0
    (of_run,), (of_compare,) = (
        json.loads((tmp_path / f"{verb}.json").read_text()) for verb in ("run", "compare")
    )
    for lists in ("job_outcomes", "trade_events", "samples"):
        assert of_run[lists]
    page = PAGE.partition("## What comes out\n")[2].partition("\n## ")[0]
    told = set(re.findall("`([^`]+)`", "".join(line for line in page.splitlines() if line.startswith("|"))))
    with (tmp_path / "run.csv").open() as file:
        header = [re.sub("^gpu_s_.*", "gpu_s_MODEL", name) for name in next(csv.reader(file))]
    written = {*names(of_run), *names(of_compare), *header, *(name for name, _ in _COLUMNS)}
    assert written - told == set()
    assert len(written) > 50
