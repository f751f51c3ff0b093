"""How much jobs on the same GPUs slow each other, from Gavel's table of throughputs: its pairs of job types with equally many workers."""

import json
from collections.abc import Collection
from math import inf
from pathlib import Path
from typing import Any

from hs_core.errors import RefusedError
from hs_sim.cluster import canonical
from hs_sim.reading import text_of

Ratios = dict[tuple[str, str, str], float]


def load_interference(path: Path, classes: Collection[str]) -> Ratios:
    """(`<job type> x<gang>`, the one beside it, GPU model) → how many times as long its steps take; inf where that is nothing: they don't fit together.

    Only of these classes, and of pairs that are in the table. The table is taken as `hs_sim.gavel.load_throughputs` has found it good.
    """
    tree: Any = json.loads(text_of(path))
    found: Ratios = {}
    for model, kinds in tree.items():
        if model.endswith("_unconsolidated"):
            continue
        names = {kind: name for kind in kinds if (name := _class(kind)) in classes}
        for kind, name in names.items():
            alone = float(kinds[kind].get("null", 0.0)) if isinstance(kinds[kind], dict) else 0.0
            for other, other_name in names.items():
                if name.rpartition(" x")[2] != other_name.rpartition(" x")[2]:
                    continue
                speed = _of_pair(path, model, kind, other, kinds[kind])
                if speed is None:
                    continue
                found[name, other_name, canonical(model)] = max(1.0, alone / speed) if speed > 0 else inf
    return found


def _class(kind: str) -> str:
    """`('LM (batch size 5)', 4)` → `LM (batch size 5) x4`"""
    name, _, gang = kind.strip("()").rpartition(", ")
    return f"{name[1:-1]} x{gang}"


def _of_pair(path: Path, model: str, kind: str, other: str, beside: Any) -> float | None:
    pair = beside.get(other) if isinstance(beside, dict) else None
    if pair is None:
        return None
    good = isinstance(pair, list) and len(pair) == 2 and all(isinstance(value, int | float) for value in pair)
    if not good or not 0 <= pair[0] <= 1e12:
        raise RefusedError(
            f"{path}: {model}, {kind}, {other}: {pair!r}; expected steps/s of both, two numbers"
        )
    return float(pair[0])
