"""Run at the start of every Python of a job: waits for torch to be imported, then hooks it. Imports next to nothing."""
# The import system's signature:
# ruff: noqa: ARG002

from __future__ import annotations

import os
import sys
from _thread import get_ident
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional, Set

from hs_job.aloud import say


def prepare() -> None:
    if not os.environ.get("HS_AGENT_SOCKET") or os.environ.get("HS_HOOK") == "0":
        return
    if "torch" in sys.modules:
        hook_torch()
    elif not any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchFinder())


def hook_torch() -> None:
    """Never breaks the user's program: what goes wrong here leaves it unhooked, and says so."""
    try:
        from hs_job import hooks

        hooks.install()
    except Exception as error:
        say(f"not hooked: {type(error).__name__}: {error}")


class _TorchFinder(MetaPathFinder):
    """Lets the others find torch, and wraps the loader that they found."""

    def __init__(self) -> None:
        self._busy: Set[int] = set()  # threads that look for it: others may import it meanwhile

    def find_spec(
        self, name: str, path: Any = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != "torch" or get_ident() in self._busy:
            return None
        self._busy.add(get_ident())
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
        finally:
            self._busy.discard(get_ident())
        if spec is None or spec.loader is None:
            return None
        spec.loader = _HookingLoader(spec.loader, self)
        return spec


class _HookingLoader(Loader):
    def __init__(self, inner: Any, finder: _TorchFinder) -> None:
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # get_data, get_filename, … for whoever asks the loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What is imported sees its own loader, as if nobody had been in between.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        hook_torch()
