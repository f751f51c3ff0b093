"""Runs a script whose torch has no compiler, or is imported first by one: a first optimizer loads it to say that it is not to be compiled, which takes as
long as torch itself in every process of a job. Nothing of what is trained is another. Scripts as they are, compiler and all, are tests/job's matter.

usage: uncompiled.py SCRIPT [ARG…]
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


def as_it_is(function: Any, *_: object, **__: object) -> Any:
    return function


def nothing() -> None:
    pass


class Compiler(ModuleType):
    """As much of it as optimizers and process groups ask for where nothing is compiled."""

    disable = staticmethod(as_it_is)
    graph_break = staticmethod(nothing)
    trace_rules = SimpleNamespace(clear_lru_cache=nothing)


torch._dynamo = sys.modules["torch._dynamo"] = Compiler("torch._dynamo")

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
