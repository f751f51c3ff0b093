"""Boards, alerts and the documentation stand on the metrics that there are, with the labels that these have."""

import asyncio
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import Metric

from hs_controller import metrics
from hs_controller.config import Config
from hs_controller.links import Hub
from hs_controller.meters import Meters
from hs_core.model import MoveReason
from tests.controller.kit import started

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "monitoring"
OF_PROMETHEUS = {"up": {"job", "instance"}}  # and of every target's samples
EVERYWHERE = {"job", "instance"}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric, by the names of its samples."""
    folder = tmp_path_factory.mktemp("c")
    config = Config(file=folder / "c.toml", state_dir=folder / "state", socket=folder / "c.sock")

    async def gathered() -> list[Metric]:
        async with started(config) as cluster:
            return await metrics.gather(cluster.loop, Hub())

    found = {
        sample: set(labels)
        for name, kind, labels in shown(asyncio.run(gathered()))
        for sample in samples(name, kind)
    }
    for name in [name for name in found if name.endswith("_bucket")]:
        found[name].add("le")
    return found


def shown(gathered: list[Metric]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, type and labels."""
    for family in gathered:
        yield family.name, family.type, tuple(getattr(family, "_labelnames", ()))
    for collector in vars(Meters()).values():
        if hasattr(collector, "_labelnames"):
            yield collector._name, collector._type, tuple(collector._labelnames)


def samples(name: str, kind: str) -> list[str]:
    if kind == "counter":
        return [f"{name}_total"]
    return [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [name]


def expressions() -> Iterator[tuple[str, str]]:
    for file in sorted((MONITORING / "grafana").glob("*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{file.name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{file.name}: ${variable['name']}", variable["query"]["query"]
    for group in rules()["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def rules() -> dict:
    return yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))


def used(expr: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels that it selects by."""
    for name, selected in re.findall(
        r"\b([a-z_]+)\b(?!\s*\()(?:\{([^}]*)\})?", re.sub(r"\b(?:by|on) \([^)]*\)", "", expr)
    ):
        if name.startswith(("hs_", "process_")) or name in OF_PROMETHEUS:
            yield name, set(re.findall(r"(\w+)\s*[=!]~?", selected))


@pytest.mark.parametrize(("where", "expr"), list(expressions()), ids=lambda text: text[:60])
def test_what_an_expression_asks_for_is_there(known: dict[str, set[str]], where: str, expr: str) -> None:
    names = dict(used(expr))
    assert names, f"{where}: {expr} asks for nothing of ours"
    for name, selected in names.items():
        labels = OF_PROMETHEUS.get(name) or known[name]
        assert selected <= labels | EVERYWHERE, f"{where}: {name} has no {selected - labels}"
    grouped = {
        label.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expr) for label in group.split(",")
    }
    everything = set().union(*(OF_PROMETHEUS.get(name) or known[name] for name in names))
    assert grouped <= everything | EVERYWHERE, f"{where}: {grouped - everything}"
    if "label_values(" in expr:
        [(metric, label)] = re.findall(r"label_values\((\w+), (\w+)\)", expr)
        assert label in known[metric]


def test_what_increases_is_there_as_0_before_it_happens_for_the_first_time() -> None:
    """Prometheus takes no growth from a counter that appears with 1."""
    registry = Meters().registry
    asked = {
        (name, label, value)
        for _, expr in expressions()
        for name, selected in re.findall(
            r"increase\((hs_events_total|hs_migrations_total)(?:\{([^}]*)\})?", expr
        )
        for label, value in re.findall(r'(\w+)="([^"]*)"', selected)
    } | {("hs_migrations_total", "reason", str(reason)) for reason in MoveReason}
    assert ("hs_events_total", "kind", "host-doubled") in asked
    for name, label, value in asked:
        assert registry.get_sample_value(name, {label: value}) == 0.0, f'{name}{{{label}="{value}"}}'


def test_a_server_where_no_gpu_is_busy_reads_0() -> None:
    busy = [expr for _, expr in expressions() if 'hs_gpu_state{state="busy"}' in expr]
    assert len(busy) >= 3
    for expr in busy:
        assert 'or 0 * hs_gpu_state{state="idle"}' in expr, expr


def test_a_single_figure_is_never_one_of_a_while_ago(tmp_path: Path) -> None:
    """Grafana shows the newest value of the time shown, also where its series has ended since: when the last job has, say."""

    config = Config(file=tmp_path / "c.toml", state_dir=tmp_path / "state", socket=tmp_path / "c.sock")

    async def there() -> set[str]:
        async with started(config) as cluster:
            gathered = [*await metrics.gather(cluster.loop, Hub()), *cluster.loop.meters.registry.collect()]
            return {sample.name for family in gathered for sample in family.samples}

    always = asyncio.run(there())  # also where there are no servers, users and jobs
    for file in sorted((MONITORING / "grafana").glob("*.json")):
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"] if panel["type"] == "stat" else ():
                fresh = target["instant"] or "or vector(0)" in target["expr"]
                assert fresh or {name for name, _ in used(target["expr"])} <= always, panel["title"]


def test_a_board_names_in_its_legends_what_its_expressions_leave(known: dict[str, set[str]]) -> None:
    for file in sorted((MONITORING / "grafana").glob("*.json")):
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                asked = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                by = re.findall(r"\bby \(([^)]*)\)", target["expr"])
                left = (
                    {label.strip() for label in by[0].split(",")}
                    if by
                    else set().union(*(known[name] for name, _ in used(target["expr"])))
                )
                assert asked <= left, f"{file.name}: {panel['title']}: {asked - left}"


def test_alerts_say_what_is_the_matter_and_name_only_labels_that_they_have(
    known: dict[str, set[str]],
) -> None:
    for group in rules()["groups"]:
        for rule in group["rules"]:
            summary = rule["annotations"]["summary"]
            assert len(summary) > 20, rule["alert"]
            by = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
            [first, *_] = used(rule["expr"])
            labels = known.get(first[0], set()) | {
                label.strip() for label in (by[0].split(",") if by else ())
            }
            assert set(re.findall(r"\$labels\.(\w+)", summary)) <= labels, rule["alert"]


def test_boards_are_what_their_tool_makes_of_them() -> None:
    tool = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "boards.py")))
    assert {file.name: file.read_text(encoding="utf-8") for file in (MONITORING / "grafana").iterdir()} == {
        file.name: text for file, text in tool.files().items()
    }


def test_panels_of_a_board_do_not_lie_on_one_another() -> None:
    for file in (MONITORING / "grafana").iterdir():
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, f"{file.name}: {panel['title']}"
            taken |= cells


def test_the_documentation_names_every_metric_with_its_type_and_labels(known: dict[str, set[str]]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(hs_\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    documented = {
        sample: set(re.findall(r"`(\w+)`", labels)) | ({"le"} if sample.endswith("_bucket") else set())
        for name, kind, labels in rows
        for sample in samples(name.removesuffix("_total") if kind == "counter" else name, kind)
    }
    assert documented == {name: labels for name, labels in known.items() if name.startswith("hs_")}
