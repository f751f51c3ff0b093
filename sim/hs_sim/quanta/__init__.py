"""Depth *quanta*: the policies' own plans, applied quantum by quantum over arrays."""

from hs_sim.quanta.engine import run_quanta

__all__ = ["run_quanta"]
