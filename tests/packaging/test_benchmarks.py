"""Benchmarks start, however they are called."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py"))

AS_MODULE = "import importlib; load = lambda name: importlib.import_module(f'benchmarks.{name}')"
AS_SCRIPT = "import runpy; sys.path[0] = 'benchmarks'; load = lambda name: runpy.run_path(f'benchmarks/{name}.py', run_name=name)"
ALL = """
missing = {}
for name in json.loads(sys.argv[1]):
    known, path = {*sys.modules}, [*sys.path]
    try:
        load(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":  # measured where there is one
            missing[name] = str(error)
    # The next one finds what it would find by itself.
    sys.path[:] = path
    for module in {*sys.modules} - known:
        if getattr(sys.modules[module], "__file__", None) and "/benchmarks/" in sys.modules[module].__file__:
            del sys.modules[module]
print(json.dumps(missing))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", [AS_MODULE, AS_SCRIPT], ids=["as_a_module", "as_a_script"])
def test_every_benchmark_finds_what_it_imports(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{way}\n{ALL}", json.dumps(NAMES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
