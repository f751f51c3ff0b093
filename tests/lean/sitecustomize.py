"""torch as far as a job needs it that nothing compiles or exports, in every Python that has this folder on its PYTHONPATH: of a job its ranks, and torchrun.

What is left out is half of what torch's import computes, and what a first optimizer loads, which is as much again as torch. Nothing of what is trained is
another. Scripts and launchers with all of it are for tests/job and tests/agent.
"""

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any


def as_it_is(function: Any, *_: object, **__: object) -> Any:
    return function


def nothing() -> None:
    pass


LEFT_OUT: dict[str, dict[str, Any]] = {
    # As much of the compiler as optimizers, process groups and DDP ask for where nothing is compiled.
    "torch._dynamo": {
        "disable": as_it_is,
        "graph_break": nothing,
        "trace_rules": SimpleNamespace(
            clear_lru_cache=nothing,
            LEGACY_MOD_INLINELIST=set(),
            get_legacy_mod_inlinelist=SimpleNamespace(cache_clear=nothing),
        ),
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization"),
    },
    "torch._meta_registrations": {},  # tensors without data, for the compiler
    "torch.export": {},
}


def for_the_rest(torch: Any) -> None:
    """What else is done where one of them is imported, in versions that do it there."""
    bind = getattr(torch._C, "_set_generator_metaclass", None)
    if bind is not None:
        bind(import_module("torch._opaque_base").OpaqueBaseMeta)


class Lean:
    """Finds in their place modules that have this much."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: object = None) -> ModuleSpec | None:
        if name in LEFT_OUT:
            return ModuleSpec(name, self)  # type: ignore[arg-type]  # a loader by what it can
        spec = PathFinder.find_spec(name, path) if name == "torch" else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def at_once(module: ModuleType) -> None:
                """Nothing of it is garbage, which is looked for a tenth of the time, and at the end of the process for as long as all the rest takes."""
                gc.disable()
                try:
                    execute(module)
                finally:
                    gc.enable()
                gc.freeze()
                for_the_rest(module)

            spec.loader.exec_module = at_once  # type: ignore[method-assign]
        return spec

    def create_module(self, _: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(LEFT_OUT[module.__name__])


sys.meta_path.insert(0, Lean())  # type: ignore[arg-type]
