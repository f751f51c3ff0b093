"""docs/simulator.md says what hs-sim does."""

import shlex
from pathlib import Path

import pytest

from hs_sim.cli import main

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
    }
