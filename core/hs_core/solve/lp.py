"""Linear programs by HiGHS (inside scipy), GLOP (inside OR-Tools) or the interior point beside this file."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hs_core.errors import BrokenError
from hs_core.solve.centre import Path
from hs_core.solve.matrices import Floats, InfeasibleError, Ints, Matrix, UnboundedError, stacked

SMALL = 100  # rows and columns together


class Method(StrEnum):
    """How an LP is solved; the optimum's value is the same, the point among several optima is not."""

    GLOP = "glop"  # simplex; the fastest up to some thousands of rows
    SIMPLEX = "highs-ds"
    INTERIOR = "highs-ipm"  # with crossover to a corner; the fastest for the largest
    CENTRE = "centre"  # the middle of all optima, to 1e-8: equals get equal, whatever their order


@dataclass(frozen=True, slots=True)
class LpAnswer:
    x: Floats
    value: float  # costs @ x
    prices: Floats  # of the rows of a_ub: by how much the value falls per unit more of b_ub; at least 0


def lp(
    costs: ArrayLike,
    *,
    a_ub: Matrix | None = None,
    b_ub: ArrayLike = (),
    a_eq: Matrix | None = None,
    b_eq: ArrayLike = (),
    lower: ArrayLike = 0.0,
    upper: ArrayLike = np.inf,
    method: Method = Method.GLOP,
) -> LpAnswer:
    """Minimizes costs @ x with a_ub @ x <= b_ub, a_eq @ x == b_eq and lower <= x <= upper (numbers, or one for each column).

    Raises InfeasibleError or UnboundedError; BrokenError when the solver gives up or shapes don't agree.
    """
    c = np.asarray(costs, float)
    upper_rows, equal_rows = np.asarray(b_ub, float), np.asarray(b_eq, float)
    # For small ones what sparse matrices save is less than they cost.
    dense = method is Method.CENTRE and len(c) + len(upper_rows) + len(equal_rows) <= SMALL
    program = _Program(
        costs=c,
        matrix=stacked(a_ub, len(upper_rows), a_eq, len(equal_rows), len(c), dense=dense),
        b_ub=upper_rows,
        b_eq=equal_rows,
        lower=_for_each(lower, c.shape),
        upper=_for_each(upper, c.shape),
    )
    program.check()
    if method is Method.GLOP:
        return _glop(program)
    return _centre(program) if method is Method.CENTRE else _highs(program, method)


def _for_each(values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    found = np.asarray(values, float)
    return found if found.shape == shape else np.broadcast_to(found, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    costs: Floats
    matrix: Any  # scipy's CSR, or an array: the rows of a_ub, then those of a_eq
    b_ub: Floats
    b_eq: Floats
    lower: Floats
    upper: Floats

    @property
    def a_ub(self) -> Any:
        return self.matrix[: len(self.b_ub)]

    @property
    def a_eq(self) -> Any:
        return self.matrix[len(self.b_ub) :]

    def check(self) -> None:
        for name, values in (
            ("a_ub or a_eq", self.matrix if isinstance(self.matrix, np.ndarray) else self.matrix.data),
            ("b_ub", self.b_ub),
            ("b_eq", self.b_eq),
            ("costs", self.costs),
        ):
            if not np.isfinite(values).all():
                raise BrokenError(f"{name} has values that are not finite; expected numbers")


def _highs(program: _Program, method: Method) -> LpAnswer:
    found = _linprog(program, method, presolve=True)
    if found.status in (2, 3):
        # Beside large numbers presolve loses small ones, and may then find no point where there is one.
        found = _linprog(program, method, presolve=False)
    if found.status == 2:
        raise InfeasibleError(found.message)
    if found.status == 3:
        raise UnboundedError(found.message)
    if found.status != 0:
        raise BrokenError(f"HiGHS ({method}) ended with status {found.status}: {found.message}")
    x = np.clip(found.x, program.lower, program.upper)
    return LpAnswer(x, float(program.costs @ x), -found.ineqlin.marginals)


def _linprog(program: _Program, method: Method, *, presolve: bool) -> Any:
    from scipy.optimize import linprog  # noqa: PLC0415

    return linprog(
        program.costs,
        A_ub=program.a_ub,
        b_ub=program.b_ub,
        A_eq=program.a_eq,
        b_eq=program.b_eq,
        bounds=np.column_stack([program.lower, program.upper]),
        method=method.value,
        options={"presolve": presolve},
    )


def _glop(program: _Program) -> LpAnswer:
    from ortools.linear_solver.python import model_builder_helper  # noqa: PLC0415

    glop: Any = model_builder_helper  # its stubs ask for arrays of a shape nobody can name
    model = glop.ModelBuilderHelper()
    model.fill_model_from_sparse_data(
        program.lower,
        program.upper,
        program.costs,
        np.concatenate([np.full(len(program.b_ub), -np.inf), program.b_eq]),
        np.concatenate([program.b_ub, program.b_eq]),
        program.matrix,
    )
    solver = glop.ModelSolverHelper("glop")
    solver.solve(model)
    if solver.status() != glop.SolveStatus.OPTIMAL:
        # GLOP's presolve calls unbounded programs infeasible too, and a hard case may defeat its tolerances.
        return _highs(program, Method.SIMPLEX)
    x = np.clip(np.asarray(solver.variable_values()), program.lower, program.upper)
    prices = -np.asarray(solver.dual_values())
    rows = len(program.b_ub)
    return LpAnswer(x, float(program.costs @ x), prices[:rows])


def _centre(program: _Program) -> LpAnswer:
    """A primal-dual interior point (Mehrotra's predictor and corrector) that ends before it has to choose a corner."""
    bounded = np.isfinite(program.lower)
    base = np.where(bounded, program.lower, 0.0)
    capped = np.flatnonzero(np.isfinite(program.upper))
    g, e = _under(program.a_ub, capped), program.a_eq
    h = np.concatenate([program.b_ub, program.upper[capped]]) - g @ base
    # A row of nothing but zeros below 0 has no inside to walk in.
    says = _has_any(g) | (h != 0)
    path = Path(c=program.costs, g=g[says], h=h[says], e=e, f=program.b_eq - e @ base, bounded=bounded)
    if not path.walk():
        # It has no proof of infeasibility; who has says so.
        return _highs(program, Method.SIMPLEX)
    x = np.clip(path.x + base, program.lower, program.upper)
    prices = np.zeros(len(h))
    prices[says] = path.z
    return LpAnswer(x, float(program.costs @ x), prices[: len(program.b_ub)])


def _has_any(rows: Any) -> NDArray[np.bool_]:
    """By row: something but zeros."""
    there = (rows != 0).sum(axis=1)
    found: NDArray[np.bool_] = np.asarray(there).reshape(-1) > 0
    return found


def _under(rows: Any, columns: Ints) -> Any:
    """Those rows, and below them one for each of these columns that says how large it is."""
    if not len(columns):
        return rows
    at = np.arange(len(columns))
    if isinstance(rows, np.ndarray):
        pick = np.zeros((len(columns), rows.shape[1]))
        pick[at, columns] = 1.0
        return np.concatenate([rows, pick])
    from scipy import sparse  # noqa: PLC0415

    pick = sparse.csr_matrix((np.ones(len(columns)), (at, columns)), (len(columns), rows.shape[1]))
    return sparse.vstack([rows, pick], format="csc")
