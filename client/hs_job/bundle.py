"""The folder that makes any Python on it load this runtime: `sitecustomize.py` and a copy of the package."""
# `os` is there already in every process this runs in, pathlib is not:
# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH110, PTH112, PTH114, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import os
import shutil

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_CACHE = "__pycache__"
_NO_CACHE = b"No folder: a Python that finds the disk full keeps half of what it has compiled, and no later one reads past that.\n"

# Runs in every Python that a job starts, old ones too: plain syntax, and never an error of ours in the user's way.
SITECUSTOMIZE = '''\
"""Loads HeteroShare's runtime once torch is imported, then the sitecustomize that this one hides."""
import sys


class _TooOld(object):
    """Says so to a script that imports hs_job. One that does not is frozen as a whole, and need not know."""

    why = "hs_job needs Python 3.9 or newer; this is Python %d.%d (%s)" % (sys.version_info[:2] + (sys.executable,))

    def find_spec(self, name, path=None, target=None):
        if name == "hs_job":
            raise ImportError(self.why)

    def find_module(self, name, path=None):  # Python 2 hears an ImportError only of a loader
        return self if name == "hs_job" else None

    def load_module(self, name):
        raise ImportError(self.why)


try:
    if sys.version_info >= (3, 9):
        from hs_job import inject

        inject.prepare()
    else:
        sys.meta_path.insert(0, _TooOld())
except Exception as error:
    sys.stderr.write("heteroshare: not hooked: %s: %s\\n" % (type(error).__name__, error))


def _next_sitecustomize():
    import importlib.machinery
    import importlib.util
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    path = [each for each in sys.path if os.path.abspath(each or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_next_sitecustomize()
'''


def write(folder: str) -> None:
    """Replaces what an older version left there; whoever runs jobs from it keeps reading whole files."""
    os.makedirs(folder, exist_ok=True)
    package = os.path.join(folder, "hs_job")
    os.makedirs(package, exist_ok=True)
    names = {name for name in os.listdir(_PACKAGE) if name.endswith(".py") or name == "py.typed"}
    for name in sorted(names):
        _replace(os.path.join(package, name), _read(os.path.join(_PACKAGE, name)))
    for name in set(os.listdir(package)) - names - {_CACHE}:
        _remove(os.path.join(package, name))
    _replace(os.path.join(folder, "sitecustomize.py"), SITECUSTOMIZE.encode())
    for place in (folder, package):
        cache = os.path.join(place, _CACHE)
        if os.path.isdir(cache):
            _remove(cache)
        _replace(cache, _NO_CACHE)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _replace(path: str, content: bytes) -> None:
    """What is there already is not written again: an agent is to start on a full disk, too."""
    if os.path.exists(path) and not os.path.islink(path) and _read(path) == content:
        return
    temporary = path + ".new"
    with open(temporary, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)
    os.replace(temporary, path)
