"""The matrices of programs, and what may be wrong with these."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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


def stacked(
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
