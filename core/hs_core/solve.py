"""The one door to the solvers: linear programs by HiGHS (inside scipy) or GLOP (inside OR-Tools), same answer for the same question.

Solvers are imported on first use: the rest of the core neither needs nor pays for them. HiGHS' own package must not be loaded beside
OR-Tools (one process can't hold both), so HiGHS is reached through scipy. No time limits: they are hidden clocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hs_core.errors import BrokenError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


SMALL = 100  # rows and columns together


class Method(StrEnum):
    """How an LP is solved; the optimum's value is the same, the point among several optima is not."""

    GLOP = "glop"  # simplex; the fastest up to some thousands of rows
    SIMPLEX = "highs-ds"
    INTERIOR = "highs-ipm"  # with crossover to a corner; the fastest for the largest
    CENTRE = "centre"  # the middle of all optima, to 1e-8: equals get equal, whatever their order


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
    upper_rows, equal_rows = np.asarray(b_ub, float), np.asarray(b_eq, float)
    # For small ones what sparse matrices save is less than they cost.
    dense = method is Method.CENTRE and len(c) + len(upper_rows) + len(equal_rows) <= SMALL
    program = _Program(
        costs=c,
        matrix=_stacked(a_ub, len(upper_rows), a_eq, len(equal_rows), len(c), dense=dense),
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


def _stacked(
    a_ub: Matrix | None, ubs: int, a_eq: Matrix | None, eqs: int, columns: int, *, dense: bool
) -> Any:
    """Both matrices, one above the other: made in one go, for small programs take longer to build than to solve."""
    parts = []
    for name, matrix, rows in (("ub", a_ub, ubs), ("eq", a_eq, eqs)):
        part = _entries(matrix, columns)
        if part.shape != (rows, columns):
            expected = f"{rows} rows (b_{name}) by {columns} columns (costs)"
            raise BrokenError(f"a_{name} is {part.shape[0]} by {part.shape[1]}; expected {expected}")
        if len({len(part.row), len(part.col), len(part.value)}) != 1:
            raise BrokenError(
                f"a_{name} has rows, columns and values of different lengths; expected one each"
            )
        parts.append(part)
    row = np.concatenate([parts[0].row, parts[1].row + ubs])
    col, value = (np.concatenate([getattr(part, name) for part in parts]) for name in ("col", "value"))
    if dense:
        made = np.zeros((ubs + eqs, columns))
        np.add.at(made, (row, col), value)
        return made
    from scipy import sparse  # noqa: PLC0415

    return sparse.csr_matrix((value, (row, col)), shape=(ubs + eqs, columns), dtype=float)


def _entries(matrix: Matrix | None, columns: int) -> Entries:
    if isinstance(matrix, Entries):
        return matrix
    none = np.zeros(0, np.int64)
    if matrix is None:
        return Entries(none, none, np.zeros(0), (0, columns))
    dense = np.asarray(matrix, float)
    row, col = np.nonzero(dense)
    return Entries(row, col, dense[row, col], (dense.shape[0], dense.shape[1]))


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
    return LpAnswer(x, float(program.costs @ x), prices[:rows], prices[rows:])


def _centre(program: _Program) -> LpAnswer:
    """A primal-dual interior point (Mehrotra's predictor and corrector) that ends before it has to choose a corner."""
    bounded = np.isfinite(program.lower)
    base = np.where(bounded, program.lower, 0.0)
    capped = np.flatnonzero(np.isfinite(program.upper))
    g, e = _under(program.a_ub, capped), program.a_eq
    h = np.concatenate([program.b_ub, program.upper[capped]]) - g @ base
    path = _Path(c=program.costs, g=g, h=h, e=e, f=program.b_eq - e @ base, bounded=bounded)
    if not path.walk():
        # It has no proof of infeasibility; who has says so.
        return _highs(program, Method.SIMPLEX)
    x = np.clip(path.x + base, program.lower, program.upper)
    return LpAnswer(x, float(program.costs @ x), path.z[: len(program.b_ub)], path.y)


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


class _Path:
    """min c @ x with g @ x + s == h, e @ x == f, s >= 0, and x >= 0 where bounded; z, y, v are their prices.

    What may not be negative is kept in one table: its first row has s and the bounded of x, its second z and their v. Programs are small and many:
    most of the time goes into calls, not into numbers. So arrays are made once, with names for their parts, and written over from step to step.
    """

    STEPS = 80
    CLOSE = 1e-8
    NEAR_WALL = 0.99
    EVEN = 0.9  # how much alike the products are at the centre
    FAR = 1e3  # nothing is looked at further away
    LOST = 1e14
    LOOKS = 4  # whether it is lost is looked at every so many steps

    def __init__(
        self, *, c: Floats, g: Any, h: Floats, e: Any, f: Floats, bounded: NDArray[np.bool_]
    ) -> None:
        self.size = max(1e-300, float(np.abs(c).max(initial=0.0)))
        self.small = isinstance(g, np.ndarray)
        # Column by column, as both are multiplied from the left as often as from the right.
        g, e = (np.asfortranarray(g), np.asfortranarray(e)) if self.small else (g, e.tocsc())
        self.c, self.g, self.h, self.e, self.f = c / self.size, g, h, e, f
        self.across, self.most_h = g.T, _most(h)
        at = np.flatnonzero(bounded)
        first = np.array_equal(at, np.arange(len(at)))  # as nearly always; a slice is sooner taken
        self.at: slice | Ints = slice(len(at)) if first else at
        rows, columns = len(h), len(c)
        through, whole = columns + rows, columns + rows + len(f)
        self.columns, self.through = columns, through
        self.x = np.where(bounded, 1.0, 0.0)
        self.y = np.zeros(len(f))
        self.table = np.ones((2, rows + len(at)))
        self.s, self.inner = self.table[0, :rows], self.table[0, rows:]
        self.z, self.v = self.table[1, :rows], self.table[1, rows:]
        self.s[:] = np.maximum(1.0, h - g @ self.x)
        self.by = np.empty_like(self.table)  # a step of it
        self.by_s, self.by_inner = self.by[0, :rows], self.by[0, rows:]
        self.by_z, self.by_v = self.by[1, :rows], self.by[1, rows:]
        self.walls, self.less = np.empty_like(self.table), np.empty(self.table.shape, dtype=np.bool_)
        self.far = np.empty((2, 1))
        self.wrong = np.empty(whole)  # what is amiss in prices, rows and equalities
        self.dual, self.primal, self.equal = np.split(self.wrong, [columns, through])
        self.right = np.empty(whole)
        self.common = self._common()
        # A hair on the diagonal keeps free columns and redundant equalities from making it singular.
        self.diagonal = np.full(whole, 1e-11)
        self.diagonal[through:] = -1e-11
        if self.small:
            self.matrix = np.empty((whole, whole), order="F")
            self.on_diagonal = self.matrix.reshape(-1, order="F")[:: whole + 1]

    def _common(self) -> Any:
        sizes = [len(self.x), len(self.h), len(self.f)]
        if self.small:
            made = np.zeros((sum(sizes), sum(sizes)), order="F")
            below = np.concatenate([self.g, self.e])
            made[sizes[0] :, : sizes[0]], made[: sizes[0], sizes[0] :] = below, below.T
            return made
        from scipy import sparse  # noqa: PLC0415

        none = [sparse.csc_matrix((size, size)) for size in sizes]
        rows = [[none[0], self.g.T, self.e.T], [self.g, none[1], None], [self.e, None, none[2]]]
        blocks = 2 + bool(len(self.f))
        return sparse.bmat([row[:blocks] for row in rows[:blocks]], format="csc")

    def walk(self) -> bool:
        count = self.table.shape[1]
        for step in range(self.STEPS):
            products = self.table[0] * self.table[1]
            gap = float(np.add.reduce(products)) / count if count else 0.0
            self._look()
            lost = step % self.LOOKS == 0 and max(_most(self.x), _most(self.z)) > self.LOST
            if lost or not isfinite(gap):
                return False
            close = gap * count < self.CLOSE * (1 + abs(float(self.c @ self.x))) and self._fits()
            if (
                close
                and products.min(initial=gap) > self.EVEN * gap
                and products.max(initial=gap) * self.EVEN < gap
            ):
                self.y, self.z = self.y * self.size, self.z * self.size
                return True
            if not self._step(products, gap, stay=close):
                return False
        return False

    def _look(self) -> None:
        """What is wrong here."""
        dual = self.across @ self.z
        dual += self.c
        if len(self.f):
            dual += self.e.T @ self.y
            np.subtract(self.f, self.e @ self.x, out=self.equal)
        dual[self.at] -= self.v
        np.negative(dual, out=self.dual)
        np.subtract(self.h, self.g @ self.x, out=self.primal)
        self.primal -= self.s

    def _fits(self) -> bool:
        """Hardly anything."""
        return max(_most(self.dual), _most(self.primal) / (1 + self.most_h), _most(self.equal)) < self.CLOSE

    def _step(self, products: Floats, gap: float, *, stay: bool) -> bool:
        """`stay`: no nearer to the optimum, only to the middle."""
        columns, table, by = self.columns, self.table, self.by
        self.diagonal[self.at] = self.v / self.inner
        np.negative(self.s / self.z, out=self.diagonal[columns : self.through])
        solve = self._factor()
        if solve is None:
            return False
        beside = np.concatenate([self.z, self.inner])
        if stay:
            moved = self._move(solve, gap - products, beside)
        else:
            self._move(solve, -products, beside)
            inwards, upwards = self._reach()
            self.far[0, 0], self.far[1, 0] = min(1.0, inwards), min(1.0, upwards)
            ahead, rows = table + self.far * by, len(self.s)
            left = float(ahead[0, :rows] @ ahead[1, :rows] + ahead[0, rows:] @ ahead[1, rows:])
            aim = gap * (left / max(1e-300, gap * len(products))) ** 3
            moved = self._move(solve, aim - products - by[0] * by[1], beside)
        inwards, upwards = self._reach()
        self.far[0, 0] = inwards = min(1.0, self.NEAR_WALL * inwards)
        self.far[1, 0] = upwards = min(1.0, self.NEAR_WALL * upwards)
        self.x += inwards * moved[:columns]
        if len(self.f):
            self.y += upwards * moved[self.through :]
        by *= self.far
        table += by
        return True

    def _move(self, solve: Callable[[Floats], Floats], of: Floats, beside: Floats) -> Floats:
        """A step towards s * z == s * z + of, and the same of inner * v: of x, z and y, and of the table."""
        rows, right = len(self.s), self.right
        part = of / beside
        right[:] = self.wrong
        right[self.columns : self.through] -= part[:rows]
        right[: self.columns][self.at] += part[rows:]
        moved = solve(right)
        dx = moved[: self.columns]
        bounded = dx[self.at]
        np.subtract(self.primal, self.g @ dx, out=self.by_s)
        self.by_inner[:] = bounded
        self.by_z[:] = moved[self.columns : self.through]
        np.divide(of[rows:] - self.v * bounded, self.inner, out=self.by_v)
        return moved

    def _reach(self) -> tuple[float, float]:
        """How far until something of the first row, and of the second, is 0."""
        self.walls.fill(-self.FAR)
        np.less(self.by, 0.0, out=self.less)
        np.divide(self.table, self.by, out=self.walls, where=self.less)
        inwards, upwards = np.maximum.reduce(self.walls, axis=1, initial=-self.FAR).tolist()
        return -inwards, -upwards

    def _factor(self) -> Callable[[Floats], Floats] | None:
        """Solves for the matrix of one step: what all have in common, and the diagonal. None: it is singular."""
        if self.small:
            from scipy.linalg.lapack import dgetrf as getrf  # noqa: PLC0415
            from scipy.linalg.lapack import dgetrs as getrs  # noqa: PLC0415

            self.matrix[:] = self.common
            self.on_diagonal[:] = self.diagonal
            lu, pivots, failed = getrf(self.matrix, overwrite_a=True)
            return None if failed else lambda right: getrs(lu, pivots, right)[0]
        from scipy.sparse import diags  # noqa: PLC0415
        from scipy.sparse.linalg import splu  # noqa: PLC0415

        try:
            # Symmetric, with a sign for each block: the diagonal is a good pivot nearly always, which keeps the factors sparse.
            factor = splu(
                (self.common + diags(self.diagonal)).tocsc(),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=1e-3,
                options={"SymmetricMode": True},
            )
        except RuntimeError:
            return None
        return factor.solve  # type: ignore[no-any-return]


def _most(values: Floats) -> float:
    return float(np.maximum.reduce(np.abs(values), initial=0.0))


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
    for name, matrix, bound in (("ub", a_ub, b_ub), ("eq", a_eq, b_eq)):
        limits = _whole(bound, f"b_{name}").tolist()
        rows = _matrix(matrix, len(c), f"a_{name}")
        if rows.shape != (len(limits), len(c)):
            expected = f"{len(limits)} rows (b_{name}) by {len(c)} columns (costs)"
            raise BrokenError(f"a_{name} is {rows.shape[0]} by {rows.shape[1]}; expected {expected}")
        starts, at = rows.indptr.tolist(), rows.indices.tolist()
        values = _whole(rows.data, f"a_{name}").tolist()
        for row, limit in enumerate(limits):
            span = slice(starts[row], starts[row + 1])
            total = cp_model.LinearExpr.weighted_sum([columns[col] for col in at[span]], values[span])
            model.add(total <= limit if name == "ub" else total == limit)
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


def transport(costs: Floats, seats: Ints) -> Ints | None:
    """The column of each row, of least total cost; a column takes at most its `seats`. Infinite costs: not there. None: there is no such way.

    Min-cost flow over whole numbers: costs are rounded to 2^-44 of the largest, so the total is exact to that for each row.
    """
    from ortools.graph.python import min_cost_flow  # noqa: PLC0415

    rows, columns = costs.shape
    if seats.shape != (columns,) or np.isnan(costs).any() or (costs < 0).any():
        raise BrokenError(
            f"costs is {rows} by {columns}, seats {seats.shape}; expected costs of at least 0, seats by column"
        )
    row, col = np.nonzero(np.isfinite(costs))
    if len(np.unique(row)) < rows or seats.sum() < rows:
        return None
    largest = float(costs[row, col].max(initial=0.0))
    scale = min(FINE, 2.0**61 / (rows + columns + 2)) / (largest if largest > 0 else 1.0)
    whole = np.rint(costs[row, col] * scale).astype(np.int64)
    flow = min_cost_flow.SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(row, rows + col, np.ones(len(row), np.int64), whole)
    end = rows + columns
    flow.add_arcs_with_capacity_and_unit_cost(
        rows + np.arange(columns),
        np.full(columns, end),
        np.asarray(seats, np.int64),
        np.zeros(columns, np.int64),
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
