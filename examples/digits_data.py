"""The handwritten digits that scikit-learn ships, read without importing scikit-learn: a second of CPU less in every process."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def load_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """1,797 images of 8 x 8 grey values 0-16 as rows, and the digit each shows."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit(
            "scikit-learn is not installed: its digits are what is trained on (pip install scikit-learn)"
        )
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)
