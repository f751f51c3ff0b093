"""The paper's tables and figures (Gandiva_fair, EuroSys'20, 2 and 5), each with its numbers, ours, and a picture."""

from collections.abc import Callable, Mapping

from hs_sim.figures.common import Figure, Row
from hs_sim.figures.heterogeneous import figure8, figure10, figure11, table3
from hs_sim.figures.homogeneous import figure6, figure7
from hs_sim.figures.stride import figure4, figure5, table2

FIGURES: Mapping[str, Callable[[], Figure]] = {
    "table2": table2,
    "table3": table3,
    "figure4": figure4,
    "figure5": figure5,
    "figure6": figure6,
    "figure7": figure7,
    "figure8": figure8,
    "figure10": figure10,
    "figure11": figure11,
}

__all__ = ["FIGURES", "Figure", "Row"]
