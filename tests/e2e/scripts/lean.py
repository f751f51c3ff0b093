"""torch as far as a job needs it that nothing compiles: imported by a script before torch, or given the script to run.

A first optimizer loads torch's compiler to say that it is not to be compiled, which takes as long as torch itself in every process of a job. Nothing of
what is trained is another. Scripts as they are, compiler and all, are tests/job's matter.

usage: lean.py SCRIPT [ARG…]
"""

import gc
import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def as_it_is(function: Any, *_: object, **__: object) -> Any:
    return function


def nothing() -> None:
    pass


class Compiler(ModuleType):
    """As much of it as optimizers, process groups and DDP ask for where nothing is compiled."""

    disable = staticmethod(as_it_is)
    graph_break = staticmethod(nothing)
    trace_rules = SimpleNamespace(
        clear_lru_cache=nothing,
        LEGACY_MOD_INLINELIST=set(),
        get_legacy_mod_inlinelist=SimpleNamespace(cache_clear=nothing),
    )
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")


gc.disable()  # nothing of it is garbage, which is looked for a tenth of the time
torch: Any = importlib.import_module("torch")
gc.enable()
torch._dynamo = sys.modules["torch._dynamo"] = Compiler("torch._dynamo")

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
