"""The one door to the solvers: linear programs by HiGHS (inside scipy) or GLOP (inside OR-Tools), same answer for the same question.

Solvers are imported on first use: the rest of the core neither needs nor pays for them. HiGHS' own package must not be loaded beside
OR-Tools (one process can't hold both), so HiGHS is reached through scipy. No time limits: they are hidden clocks.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hs_core.errors import BrokenError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Method(StrEnum):
    """How an LP is solved; the optimum's value is the same, the point among several optima is not."""

    GLOP = "glop"  # simplex; the fastest up to some thousands of rows
    SIMPLEX = "highs-ds"
    INTERIOR = "highs-ipm"  # with crossover to a corner; the fastest for the largest


class InfeasibleError(Exception):
    """No point satisfies the constraints."""


class UnboundedError(Exception):
    """The objective has no least value."""


@dataclass(frozen=True, slots=True)
class Entries:
    """A sparse matrix: value[i] stands at (row[i], col[i]); what stands at the same place is added up."""

    row: Ints
    col: Ints
    value: Floats
    shape: tuple[int, int]


Matrix = Floats | Entries


@dataclass(frozen=True, slots=True)
class LpAnswer:
    x: Floats
    value: float  # costs @ x
    prices: Floats  # of the rows of a_ub: by how much the value falls per unit more of b_ub; at least 0
    eq_prices: Floats  # of the rows of a_eq: the same, of any sign


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
    program = _Program(
        costs=c,
        a_ub=_matrix(a_ub, len(c), "a_ub"),
        b_ub=np.asarray(b_ub, float),
        a_eq=_matrix(a_eq, len(c), "a_eq"),
        b_eq=np.asarray(b_eq, float),
        lower=np.broadcast_to(np.asarray(lower, float), c.shape),
        upper=np.broadcast_to(np.asarray(upper, float), c.shape),
    )
    program.check()
    return _glop(program) if method is Method.GLOP else _highs(program, method)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    costs: Floats
    a_ub: Any  # scipy's CSR
    b_ub: Floats
    a_eq: Any
    b_eq: Floats
    lower: Floats
    upper: Floats

    def check(self) -> None:
        for name, matrix, bound in (("ub", self.a_ub, self.b_ub), ("eq", self.a_eq, self.b_eq)):
            if matrix.shape != (len(bound), len(self.costs)):
                expected = f"{len(bound)} rows (b_{name}) by {len(self.costs)} columns (costs)"
                raise BrokenError(f"a_{name} is {matrix.shape[0]} by {matrix.shape[1]}; expected {expected}")
            if not (np.isfinite(matrix.data).all() and np.isfinite(bound).all()):
                raise BrokenError(f"a_{name} or b_{name} has values that are not finite; expected numbers")
        if not np.isfinite(self.costs).all():
            raise BrokenError("costs has values that are not finite; expected numbers")


def _matrix(matrix: Matrix | None, columns: int, name: str) -> Any:
    from scipy import sparse  # noqa: PLC0415

    if matrix is None:
        return sparse.csr_matrix((0, columns), dtype=float)
    if not isinstance(matrix, Entries):
        return sparse.csr_matrix(np.asarray(matrix, float))
    if len({len(matrix.row), len(matrix.col), len(matrix.value)}) != 1:
        raise BrokenError(f"{name} has rows, columns and values of different lengths; expected one each")
    return sparse.csr_matrix((matrix.value, (matrix.row, matrix.col)), shape=matrix.shape, dtype=float)


def _highs(program: _Program, method: Method) -> LpAnswer:
    from scipy.optimize import linprog  # noqa: PLC0415

    found = linprog(
        program.costs,
        A_ub=program.a_ub,
        b_ub=program.b_ub,
        A_eq=program.a_eq,
        b_eq=program.b_eq,
        bounds=np.column_stack([program.lower, program.upper]),
        method=method.value,
    )
    if found.status == 2:
        raise InfeasibleError(found.message)
    if found.status == 3:
        raise UnboundedError(found.message)
    if found.status != 0:
        raise BrokenError(f"HiGHS ({method}) ended with status {found.status}: {found.message}")
    x = np.clip(found.x, program.lower, program.upper)
    return LpAnswer(x, float(program.costs @ x), -found.ineqlin.marginals, -found.eqlin.marginals)


def _glop(program: _Program) -> LpAnswer:
    from ortools.linear_solver.python import model_builder_helper  # noqa: PLC0415
    from scipy import sparse  # noqa: PLC0415

    glop: Any = model_builder_helper  # its stubs ask for arrays of a shape nobody can name
    model = glop.ModelBuilderHelper()
    model.fill_model_from_sparse_data(
        program.lower,
        program.upper,
        program.costs,
        np.concatenate([np.full(len(program.b_ub), -np.inf), program.b_eq]),
        np.concatenate([program.b_ub, program.b_eq]),
        sparse.vstack([program.a_ub, program.a_eq], format="csr"),
    )
    solver = glop.ModelSolverHelper("glop")
    solver.solve(model)
    if solver.status() != glop.SolveStatus.OPTIMAL:
        # GLOP's presolve calls unbounded programs infeasible too, and a hard case may defeat its tolerances.
        return _highs(program, Method.SIMPLEX)
    x = np.clip(np.asarray(solver.variable_values()), program.lower, program.upper)
    prices = -np.asarray(solver.dual_values())
    rows = len(program.b_ub)
    return LpAnswer(x, float(program.costs @ x), prices[:rows], prices[rows:])
