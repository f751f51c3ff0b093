"""Writes monitoring/grafana/*.json, the boards that ship; --check compares with what is committed.

Made from what follows as Grafana's own format is a hundred lines a panel. What the expressions name is held against the metrics there are by a test.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOARDS = Path(__file__).resolve().parent.parent / "monitoring" / "grafana"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDE, ROW = 24, 8  # a board's width, a panel's height, in Grafana's units


@dataclass(frozen=True)
class Panel:
    title: str
    exprs: dict[str, str]  # legend, as Grafana writes it: expression
    kind: str = "timeseries"
    unit: str = "none"
    width: int = 12
    text: str = ""  # what it means, on the panel's (i)
    stacked: bool = False
    steps: tuple[tuple[float | None, str], ...] = ()  # from a value on, its colour
    instant: bool = False
    most: float | None = None


@dataclass(frozen=True)
class Board:
    uid: str
    title: str
    panels: tuple[Panel, ...]
    by: dict[str, str] = field(default_factory=dict)  # a variable of the board: what its values are


# A GPU has a sample of the state that it is in only; with idle ones as 0 a server or a model where none is busy reads 0.
BUSY = 'hs_gpu_state{state="busy"} or 0 * hs_gpu_state{state="idle"}'
USABLE = 'hs_gpu_state{state=~"busy|idle"}'
# A single figure is the newest that there was in the time shown: one that ends, as the last job's does, is `or vector(0)` or asked for as of now.
GREEN_AT_0 = ((None, "green"), (1e-9, "red"))

FAIRNESS = Board(
    "heteroshare-fairness",
    "HeteroShare: fairness",
    (
        Panel(
            "Work lost",
            {"GPU-seconds": "sum(increase(hs_lost_gpu_seconds_total[$__range])) or vector(0)"},
            kind="stat",
            unit="s",
            width=6,
            text="GPU-seconds that had to be done again, in the time shown. Suspending and moving loses none; servers that die do.",
            steps=GREEN_AT_0,
        ),
        Panel(
            "Users with jobs",
            {"users": "count(sum by (user) (hs_user_demand_gpus) > 0) or vector(0)"},
            kind="stat",
            width=6,
        ),
        Panel(
            "Furthest below its share",
            {"received / entitled": "min(hs_user_fairness_ratio)"},
            kind="stat",
            unit="percentunit",
            width=6,
            text="Of the last hour: GPU-time received for what one was entitled to.",
            instant=True,
            steps=((None, "red"), (0.8, "orange"), (0.95, "green")),
        ),
        Panel(
            "Trades in the last day",
            {"made": "increase(hs_trades_total[1d])", "undone": "increase(hs_trades_undone_total[1d])"},
            kind="stat",
            width=6,
        ),
        Panel(
            "Received for each GPU entitled to",
            {"{{user}}": "hs_user_fairness_ratio"},
            unit="percentunit",
            text="GPU-time received in the last hour for what the user was entitled to in it; 1 is exactly the share.",
        ),
        Panel(
            "Tickets",
            {"{{user}}": "hs_user_tickets"},
            stacked=True,
        ),
        Panel(
            "Entitled, $gpu_type",
            {"{{user}} {{gpu_type}}": 'hs_user_entitled_gpus{gpu_type=~"$gpu_type"}'},
            stacked=True,
            text="GPUs, after trades.",
        ),
        Panel(
            "Received, $gpu_type",
            {"{{user}} {{gpu_type}}": 'rate(hs_user_received_gpu_seconds_total{gpu_type=~"$gpu_type"}[10m])'},
            stacked=True,
            text="GPUs, mean of ten minutes. The same picture as beside it is what this system is for.",
        ),
        Panel(
            "Received beyond the share, $gpu_type",
            {
                "{{user}} {{gpu_type}}": 'rate(hs_user_received_gpu_seconds_total{gpu_type=~"$gpu_type"}[10m])'
                ' - on (user, gpu_type) hs_user_entitled_gpus{gpu_type=~"$gpu_type"}'
            },
            text="GPUs. Above 0 where others leave some idle.",
        ),
        Panel(
            "Asked for, $gpu_type",
            {"{{user}} {{gpu_type}}": 'hs_user_demand_gpus{gpu_type=~"$gpu_type"}'},
            stacked=True,
            text="GPUs that the users' jobs could use.",
        ),
        Panel(
            "GPU-hours received in the time shown",
            {
                "{{user}} {{gpu_type}}": "sum by (user, gpu_type) (increase(hs_user_received_gpu_seconds_total[$__range])) / 3600"
            },
            kind="bargauge",
            unit="h",
            width=24,
            instant=True,
        ),
    ),
    by={"gpu_type": "label_values(hs_user_entitled_gpus, gpu_type)"},
)

SERVERS = Board(
    "heteroshare-servers",
    "HeteroShare: servers and GPUs",
    (
        Panel("Servers up", {"up": "sum(hs_agent_up) or vector(0)"}, kind="stat", width=6),
        Panel(
            "Servers away",
            {"away": "count(hs_agent_up == 0) or vector(0)"},
            kind="stat",
            width=6,
            steps=GREEN_AT_0,
        ),
        Panel(
            "Unhealthy GPUs",
            {"GPUs": 'sum(hs_gpu_state{state="unhealthy"}) or vector(0)'},
            kind="stat",
            width=6,
            steps=GREEN_AT_0,
        ),
        Panel(
            "GPUs busy",
            {"busy": f"sum({BUSY}) / sum({USABLE}) or vector(0)"},
            kind="stat",
            unit="percentunit",
            width=6,
            text="Of those that are there, healthy and not drained.",
        ),
        Panel(
            "GPUs by state, $gpu_type",
            {"{{state}}": 'sum by (state) (hs_gpu_state{gpu_type=~"$gpu_type"})'},
            stacked=True,
        ),
        Panel(
            "Busy, by GPU model",
            {"{{gpu_type}}": f"sum by (gpu_type) ({BUSY}) / sum by (gpu_type) ({USABLE})"},
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            "Busy GPUs of each server",
            {"{{node}}": f"sum by (node) ({BUSY})"},
            kind="status-history",
            width=24,
        ),
        Panel(
            "How busy the devices say they are",
            {"{{node}}": "hs_node_gpu_utilization_ratio"},
            unit="percentunit",
            most=1.0,
            text="Mean of each server's GPUs. Far below how many are busy: their jobs wait for data.",
        ),
        Panel(
            "Device memory in use",
            {"{{node}}": "hs_node_gpu_memory_used_bytes"},
            unit="bytes",
            text="Also that of suspended jobs whose state stays on their GPUs.",
        ),
        Panel(
            "Host memory left",
            {"{{node}}": "hs_node_memory_available_bytes / hs_node_memory_bytes"},
            unit="percentunit",
            text="Where it comes near host_memory_reserve (a twentieth) jobs leave through checkpoints to make room for one another.",
        ),
        Panel(
            "Parked device memory",
            {"{{node}}": "hs_host_memory_parked_bytes"},
            unit="bytes",
            text="State of suspended jobs that is kept in host memory.",
        ),
        Panel(
            "Since the last report",
            {"{{node}}": "hs_agent_report_age_seconds"},
            unit="s",
        ),
        Panel(
            "Drained servers",
            {"{{node}}": "hs_node_draining == 1"},
        ),
    ),
    by={"gpu_type": "label_values(hs_gpu_state, gpu_type)"},
)


def quantile(part: float, metric: str, by: str) -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({part:g}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def quantiles(metric: str, by: str) -> dict[str, str]:
    legend = f"{{{{{by}}}}} " if by else ""
    return {f"{legend}{word}": quantile(part, metric, by) for word, part in (("p50", 0.5), ("p99", 0.99))}


SCHEDULER = Board(
    "heteroshare-scheduler",
    "HeteroShare: scheduler",
    (
        Panel("Policy", {"{{policy}} ({{version}})": "hs_info"}, kind="stat", width=6, instant=True),
        Panel(
            "Journal",
            {"read-only": "max(hs_controller_read_only)"},
            kind="stat",
            width=6,
            text="1: it cannot be written. Nothing is submitted or changed; jobs go on.",
            steps=GREEN_AT_0,
        ),
        Panel("Jobs", {"jobs": "sum(hs_queue_jobs) or vector(0)"}, kind="stat", width=6),
        Panel(
            "Controller of one core",
            {
                "core": "rate(process_cpu_seconds_total[$__rate_interval]) and on (instance, job) hs_controller_term"
            },
            kind="stat",
            unit="percentunit",
            width=6,
        ),
        Panel("Jobs by state", {"{{state}}": "sum by (state) (hs_queue_jobs)"}, stacked=True),
        Panel(
            "Why jobs do not run",
            {"{{reason}}": 'sum by (reason) (hs_queue_jobs{reason!="running"})'},
            stacked=True,
            text="As `hsctl why` says. `waiting-for-turn` is the sharing itself.",
        ),
        Panel("A decision with all around it", quantiles("hs_scheduler_cycle_seconds", "policy"), unit="s"),
        Panel("Of these the policy", quantiles("hs_policy_decision_seconds", "policy"), unit="s"),
        Panel("To suspend a job", quantiles("hs_job_suspend_seconds", "tier"), unit="s"),
        Panel("To resume a job", quantiles("hs_job_resume_seconds", "tier"), unit="s"),
        Panel(
            "Migrations an hour",
            {"{{reason}}": "sum by (reason) (increase(hs_migrations_total[1h]))"},
            stacked=True,
        ),
        Panel(
            "Switches a minute",
            {
                "suspended, {{tier}}": "60 * sum by (tier) (rate(hs_job_suspend_seconds_count[$__rate_interval]))"
            },
            stacked=True,
        ),
        Panel(
            "What happens, a minute",
            {"{{kind}}": "60 * sum by (kind) (rate(hs_events_total[$__rate_interval]))"},
        ),
        Panel("A commit to the journal", quantiles("hs_journal_commit_seconds", ""), unit="s"),
        Panel(
            "Controller's memory",
            {"resident": "process_resident_memory_bytes and on (instance, job) hs_controller_term"},
            unit="bytes",
        ),
        Panel("Terms", {"term": "hs_controller_term"}, text="A step: a controller has taken office."),
    ),
)


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = (
        {"unit": panel.unit, "min": 0} if panel.kind != "stat" else {"unit": panel.unit}
    )
    if "beyond" in panel.title:
        del defaults["min"]
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.steps:
        defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [{"color": colour, "value": value} for value, colour in panel.steps],
        }
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "showPoints": "never",
        }
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    elif panel.kind == "stat":
        by_name = any("{{" in legend for legend in panel.exprs)
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
            "textMode": "name" if by_name else "auto",
        }
    elif panel.kind == "bargauge":
        options = {"orientation": "horizontal", "reduceOptions": {"calcs": ["lastNotNull"], "values": False}}
    height = 4 if panel.kind == "stat" else ROW
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": expr,
                "legendFormat": legend,
                "instant": panel.instant,
                "range": not panel.instant,
            }
            for at, (legend, expr) in enumerate(panel.exprs.items())
        ],
    }


def _placed(panels: Iterable[Panel]) -> list[dict[str, Any]]:
    """From left to right, row by row."""
    made: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDE:
            x, y = 0, y + int(made[-1]["gridPos"]["h"])
        made.append(_panel(panel, number, x, y))
        x += panel.width
    return made


def _variables(board: Board) -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    asked = [
        {
            "name": name,
            "type": "query",
            "label": name.replace("_", " "),
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "includeAll": True,
            "multi": True,
            "current": {"text": ["All"], "value": ["$__all"]},
            "refresh": 2,
            "sort": 1,
        }
        for name, query in board.by.items()
    ]
    return [source, *asked]


def render(board: Board) -> str:
    made = {
        "uid": board.uid,
        "title": board.title,
        "tags": ["heteroshare"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables(board)},
        "links": [
            {
                "type": "dashboards",
                "tags": ["heteroshare"],
                "title": "HeteroShare",
                "asDropdown": False,
                "keepTime": True,
            }
        ],
        "panels": _placed(board.panels),
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def files() -> dict[Path, str]:
    named = {"fairness": FAIRNESS, "servers": SERVERS, "scheduler": SCHEDULER}
    return {BOARDS / f"{name}.json": render(board) for name, board in named.items()}


def main() -> int:
    stale = [
        file
        for file, text in files().items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    if sys.argv[1:] == ["--check"]:
        for file in stale:
            print(f"{file} is not what tools/boards.py gives: run `make boards`", file=sys.stderr)
        return 1 if stale else 0
    BOARDS.mkdir(parents=True, exist_ok=True)
    for file, text in files().items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
