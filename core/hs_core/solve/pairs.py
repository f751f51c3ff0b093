"""Who goes with whom, or where: assignments, matchings and flows."""

from dataclasses import dataclass

import numpy as np

from hs_core.errors import BrokenError
from hs_core.solve.matrices import Entries, Floats, Ints


def assign(costs: Floats, *, most: bool = False) -> tuple[Ints, Ints]:
    """Pairs (rows, columns) of least (`most`: largest) total; every row or every column is used once, whichever are fewer."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    if np.isnan(costs).any():
        raise BrokenError("costs has values that are not numbers; expected numbers")
    rows, columns = linear_sum_assignment(costs, maximize=most)
    return rows.astype(np.int64), columns.astype(np.int64)


def match(gains: Entries) -> tuple[Ints, Ints]:
    """Pairs (rows, columns) of largest total gain: no row or column twice, any may stay alone. Only the entries, which are positive, can be pairs.

    The solver wants a full matching and takes an explicit 0 for an absent entry: so every row gets a column of its own that gains
    nothing, and all weights are shifted above 0.
    """
    from scipy import sparse  # noqa: PLC0415
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching  # noqa: PLC0415

    rows, columns = gains.shape
    if not len(gains.value):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if not (gains.value > 0).all():
        raise BrokenError("gains has values of 0 or less; expected positive ones, leave the others out")
    shift = float(gains.value.max()) + 1
    own = np.arange(rows)
    graph = sparse.csr_matrix(
        (
            np.concatenate([shift - gains.value, np.full(rows, shift)]),
            (np.concatenate([gains.row, own]), np.concatenate([gains.col, columns + own])),
        ),
        shape=(rows, columns + rows),
    )
    left, right = min_weight_full_bipartite_matching(graph)
    paired = right < columns
    return left[paired].astype(np.int64), right[paired].astype(np.int64)


FINE = 2.0**44  # steps between 0 and the largest cost of a transport


@dataclass(frozen=True, slots=True)
class Sinks:
    """Of columns: so many[i] more in column[i], each at extra[i]. A column may be named again, dearer ones apart from cheaper ones."""

    column: Ints
    many: Ints
    extra: Floats

    def check(self, columns: int) -> None:
        there = len(self.column)
        if self.many.shape != (there,) or self.extra.shape != (there,):
            raise BrokenError(
                f"sinks has {there} columns, {len(self.many)} numbers and {len(self.extra)} costs; expected one each"
            )
        beyond = self.column[(self.column < 0) | (self.column >= columns)]
        if len(beyond):
            raise BrokenError(f"sinks names column {beyond[0]}; expected 0 to {columns - 1}")
        if (self.many < 0).any() or not ((self.extra >= 0) & np.isfinite(self.extra)).all():
            raise BrokenError("sinks has numbers or costs below 0; expected at least 0, and an end to costs")


def transport(costs: Floats, sinks: Sinks) -> Ints | None:
    """The column of each row, of least total cost, of what the seats that are taken cost too. Infinite costs: not there. None: there is no such way.

    Min-cost flow over whole numbers: costs are rounded to 2^-44 of the largest, so the total is exact to that for each row.
    """
    from ortools.graph.python import min_cost_flow  # noqa: PLC0415

    rows, columns = costs.shape
    if np.isnan(costs).any() or (costs < 0).any():
        raise BrokenError(
            f"costs ({rows} by {columns}) has values below 0 or not numbers; expected at least 0"
        )
    sinks.check(columns)
    row, col = np.nonzero(np.isfinite(costs))
    if len(np.unique(row)) < rows or sinks.many.sum() < rows:
        return None
    largest = float(max(costs[row, col].max(initial=0.0), sinks.extra.max(initial=0.0)))
    scale = min(FINE, 2.0**61 / (rows + columns + 2)) / (largest if largest > 0 else 1.0)
    flow = min_cost_flow.SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        row, rows + col, np.ones(len(row), np.int64), _whole(costs[row, col], scale)
    )
    end = rows + columns
    flow.add_arcs_with_capacity_and_unit_cost(
        rows + sinks.column,
        np.full(len(sinks.column), end),
        np.asarray(sinks.many, np.int64),
        _whole(sinks.extra, scale),
    )
    flow.set_nodes_supplies(np.arange(rows), np.ones(rows, np.int64))
    flow.set_node_supply(end, -rows)
    status = flow.solve()
    if status == flow.INFEASIBLE:
        return None
    if status != flow.OPTIMAL:
        raise BrokenError(f"the flow of {rows} rows to {columns} columns ended with status {status}")
    used = np.flatnonzero(flow.flows(arcs))
    column = np.zeros(rows, np.int64)
    column[row[used]] = col[used]
    return column


def _whole(costs: Floats, scale: float) -> Ints:
    return np.rint(costs * scale).astype(np.int64)
