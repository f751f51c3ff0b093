"""Linear programs over whole numbers, by CP-SAT (inside OR-Tools)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hs_core.errors import BrokenError
from hs_core.solve.matrices import InfeasibleError, Ints, Matrix, stacked


@dataclass(frozen=True, slots=True)
class IpAnswer:
    x: Ints
    value: int  # costs @ x
    bound: int  # no point costs less

    @property
    def proved(self) -> bool:
        return self.value == self.bound


def ip(
    costs: ArrayLike,
    *,
    a_ub: Matrix | None = None,
    b_ub: ArrayLike = (),
    a_eq: Matrix | None = None,
    b_eq: ArrayLike = (),
    lower: ArrayLike = 0,
    upper: ArrayLike = 1,
    hint: ArrayLike | None = None,
    gap: float = 0.0,
    within: float = 0.0,
    effort: float = 1.0,
    linearize: bool = True,
) -> IpAnswer | None:
    """Minimizes costs @ x over whole x as in `lp`, all numbers whole, by CP-SAT; None: nothing found within `effort`.

    One worker, a fixed seed and deterministic time: `effort` is in CP-SAT's own seconds of work, the same on every machine and in every
    run. Ends early when value and bound are within `gap` of each other, relatively, or `within`, absolutely. `linearize`: use LP relaxations
    wherever they help, which pays for programs that are nearly LPs. Raises InfeasibleError; BrokenError when shapes don't agree or numbers aren't whole.
    """
    from ortools.sat.python import cp_model  # noqa: PLC0415

    c = _whole(costs, "costs")
    low = np.broadcast_to(_whole(lower, "lower"), c.shape).tolist()
    high = np.broadcast_to(_whole(upper, "upper"), c.shape).tolist()
    model = cp_model.CpModel()
    columns = [model.new_int_var(least, most, "") for least, most in zip(low, high, strict=True)]
    most_of, just = _whole(b_ub, "b_ub"), _whole(b_eq, "b_eq")
    rows = stacked(a_ub, len(most_of), a_eq, len(just), len(c), dense=False)
    starts, at = rows.indptr.tolist(), rows.indices.tolist()
    values = _whole(rows.data, "a_ub or a_eq").tolist()
    for row, limit in enumerate(np.concatenate([most_of, just]).tolist()):
        span = slice(starts[row], starts[row + 1])
        total = cp_model.LinearExpr.weighted_sum([columns[col] for col in at[span]], values[span])
        model.add(total <= limit if row < len(most_of) else total == limit)
    model.minimize(cp_model.LinearExpr.weighted_sum(columns, c.tolist()))
    if hint is not None:
        for column, value in zip(columns, _whole(hint, "hint").tolist(), strict=True):
            model.add_hint(column, value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    solver.parameters.relative_gap_limit = gap
    solver.parameters.absolute_gap_limit = within
    solver.parameters.linearization_level = 2 if linearize else 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise InfeasibleError(f"no whole point satisfies the {len(c)} columns' constraints")
    if status == cp_model.UNKNOWN:
        return None
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        raise BrokenError(f"CP-SAT refuses the program: {model.validate()}")
    x = np.array([solver.value(column) for column in columns], np.int64)
    value = int(c @ x)
    return IpAnswer(
        x,
        value,
        value if status == cp_model.OPTIMAL and gap == within == 0 else round(solver.best_objective_bound),
    )


def _whole(values: ArrayLike, name: str) -> Ints:
    array = np.asarray(values)
    whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise BrokenError(f"{name} has values that are not whole; CP-SAT takes whole numbers")
    return whole
