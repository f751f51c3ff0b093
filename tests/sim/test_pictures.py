"""What pictures say is what was named, and every line of them is seen."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib import pyplot as plt

from hs_core.policies import POLICIES
from hs_sim import pictures
from hs_sim.cli import main

ODD = r"""
name: 'cost $\frac{1$'
users: {_ada: 100, '$b$\frac$': 50}
jobs:
- {user: _ada, arrival_s: 0, steps: 2000, job_class: dcgan}
- {user: '$b$\frac$', arrival_s: 60, steps: 900, job_class: dcgan, gpus: 2}
"""


@pytest.mark.parametrize(
    "words", [["run"], ["compare", "--policies", "fifo,las", "--workers", "1", "--trace"]]
)
def test_a_workload_whose_names_look_like_formulas_is_drawn(tmp_path: Path, words: list[str]) -> None:
    load, picture = tmp_path / "odd.yaml", tmp_path / "odd.png"
    load.write_text(ODD)
    assert main([*words, str(load), "--cluster", "v100:4", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (
            ["run", "--quantum-s", "120"],
            {"GPUs (mean of the last 24 minutes)", "% of the GPUs (mean of the last 24 minutes)"},
        ),
        (["compare", "--policies", "fifo", "--seeds", "2"], {"% of the GPUs, smoothed"}),
    ],
)
def test_a_curve_that_is_a_moving_mean_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], labels: set[str]
) -> None:
    said: set[str] = set()
    monkeypatch.setattr(
        pictures, "_save", lambda figure, _: said.update(axes.get_ylabel() for axes in figure.axes)
    )
    words = [*words, "--jobs", "6", "--cluster", "v100:8", "--plot", str(tmp_path / "x.png")]
    assert main(words) == 0
    assert labels <= said


@pytest.mark.parametrize(("users", "said"), [(2, "GPUs received"), (11, "GPUs of 8 of 11 users")])
def test_a_picture_of_a_part_of_the_users_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: int, said: str
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(
        pictures, "_save", lambda figure, _: titles.extend(axes.get_title() for axes in figure.axes)
    )
    words = ["--jobs", "40", "--users", str(users), "--cluster", "v100:8", "--plot", str(tmp_path / "x.png")]
    assert main(["run", "--small", *words]) == 0
    assert titles[0] == f"{said} (dotted: entitled)"


def test_a_run_of_months_is_drawn_by_as_many_points_as_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[int] = []
    said: list[str] = []

    def look(figure: Any, _: Path) -> None:
        lines.extend(len(line.get_xdata()) for axes in figure.axes for line in axes.lines)
        said.extend(axes.get_ylabel() for axes in figure.axes)

    monkeypatch.setattr(pictures, "_save", look)
    load = tmp_path / "long.yaml"
    load.write_text("jobs: [{user: ann, arrival_s: 0, steps: 87000000, job_class: vae, gpu_types: V100}]\n")
    words = ["run", str(load), "--policy", "fifo", "--cluster", "v100:4", "--plot", str(tmp_path / "x.png")]
    assert main(words) == 0
    assert max(lines) <= pictures.POINTS
    assert "GPUs (mean of the last 66 minutes)" in said


def _drawn(**gpus: list[float]) -> SimpleNamespace:
    count = len(next(iter(gpus.values())))
    samples = [
        SimpleNamespace(at_s=60.0 * at, gpus={(user, "V100"): of[at] for user, of in gpus.items()})
        for at in range(count)
    ]
    figure, axes = plt.subplots()
    result = SimpleNamespace(samples=samples, experiment=SimpleNamespace(quantum_s=60.0))
    pictures.draw_received(axes, result, {user: [user] for user in gpus})  # type: ignore[arg-type]
    texts = [text.get_text() for text in axes.legend().get_texts()]
    dashed = [line.is_dashed() for line in axes.lines]
    plt.close(figure)
    return SimpleNamespace(texts=texts, dashed=dashed)


def test_a_user_whose_name_begins_with_an_underscore_is_in_the_legend() -> None:
    assert [text.strip() for text in _drawn(_ada=[1.0, 1.0], bob=[2.0, 2.0]).texts] == ["_ada", "bob"]


@pytest.mark.parametrize("spread", [21.0, 60.0, 400.0, 1e5])
def test_no_two_numbers_of_a_logarithmic_axis_overlap(spread: float) -> None:
    figure, panels = plt.subplots(1, 3, figsize=(16, 4.4))
    pictures._cdf(panels[0], [0.13, 1.0, 0.13 * spread])
    pictures._spread_out(panels[0])
    figure.canvas.draw()
    axis = panels[0].xaxis
    shown = [
        label for minor in (False, True) for label in axis.get_ticklabels(minor=minor) if label.get_text()
    ]
    boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
    plt.close(figure)
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_line_that_lies_on_others_lets_them_be_seen() -> None:
    alike, other = [1.0, 1.5, 2.0, 2.0], [0.5, 1.0, 1.0, 1.0]
    assert _drawn(ada=alike, bob=other, eve=alike).dashed == [False, False, True]


def test_no_two_policies_of_a_comparison_look_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[str, str]] = []
    monkeypatch.setattr(
        pictures,
        "_save",
        lambda figure, _: looks.extend(
            (line.get_color(), str(line._dash_pattern)) for line in figure.axes[0].lines
        ),
    )
    curve = {"jct_s": (60.0, 120.0), "ftf": (1.0,), "utilization": ((0.0, 0.5), (60.0, 0.5))}
    outcomes: list[Any] = [
        SimpleNamespace(summary=SimpleNamespace(policy=policy), **curve) for policy in POLICIES
    ]
    pictures.comparison(tmp_path / "x.png", outcomes, "all")
    assert len(set(looks)) == len(POLICIES)
