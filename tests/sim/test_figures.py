"""The paper's tables and figures come out as the paper has them, and their pictures can be drawn."""

from pathlib import Path

import pytest

from hs_sim.cli import main
from hs_sim.figures import FIGURES
from tests.sim.workload_files import NO_PLACE


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_number_of_the_paper_is_met(name: str, tmp_path: Path):
    figure = FIGURES[name]()
    assert [
        f"{row.quantity}: {row.ours:.4g}, paper {row.paper:.4g}" for row in figure.rows if not row.ok
    ] == []
    assert len(figure.rows) >= 4
    picture = tmp_path / f"{name}.png"
    figure.draw(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("file", "{there} is no folder; expected a folder that can be written"),
        ("file/below", "{there} is no folder; expected a folder that can be written"),
        ("/proc", f"{NO_PLACE}; expected a folder"),
        ("/proc/no/such", NO_PLACE),
        ("taken", "is a folder; expected a place that can be written"),
    ],
)
def test_figures_are_computed_only_where_their_pictures_can_be_kept(
    folder: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FIGURES, "table2", lambda: pytest.fail("it is computed"))
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "table2.png").mkdir(parents=True)
    assert main(["figures", "table2", "--dir", str(tmp_path / folder)]) == 2
    shown = capsys.readouterr().err
    assert "--dir" in shown
    assert str(tmp_path / folder) in shown
    if folder != "file":  # which click refuses in its own words
        assert said.format(there=tmp_path / "file") in shown


def test_a_picture_is_no_file_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES, "table2", lambda: pytest.fail("it is computed"))
    words = ["figures", "table2", "--json", str(tmp_path / "table2.png"), "--dir", str(tmp_path)]
    assert main(words) == 2
    assert "is written by --json; expected another file" in capsys.readouterr().err
