"""The paper's tables and figures come out as the paper has them, and their pictures can be drawn."""

from pathlib import Path

import pytest

from hs_sim.figures import FIGURES


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
