"""The middle of all optima of a linear program: an interior point that ends before it has to choose a corner."""

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.solve.matrices import Floats, Ints


class Path:
    """Mehrotra's predictor and corrector (SIAM J. Optim. 2(4), 1992), both primal and dual: min c @ x with g @ x + s == h, e @ x == f, s >= 0, and x >= 0 where bounded; z, y, v are their prices.

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
