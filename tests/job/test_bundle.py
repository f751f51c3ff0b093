"""What an agent puts on a job's PYTHONPATH, in Pythons that the runtime is not for."""

import importlib.util
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

import hs_job


def run_as(version: tuple[int, int], folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """With `sitecustomize` as a Python of that version sees it."""
    hs_job.install(str(folder))
    start = (
        f"import sys; sys.version_info = ({version[0]}, {version[1]}, 0, 'final', 0); import sitecustomize"
    )
    return subprocess.run(
        [sys.executable, "-S", "-c", f"{start}\n{code}"],
        env={"PYTHONPATH": str(folder), "HS_AGENT_SOCKET": str(folder / "none.sock")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 8)])
def test_a_python_that_is_too_old_for_hs_job_says_which_is_needed(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    done = run_as(version, tmp_path, "import hs_job")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: hs_job needs Python 3.9 or newer; this is Python {version[0]}.{version[1]} ({sys.executable})"
    )


def test_a_script_of_an_old_python_that_does_not_ask_for_hs_job_runs_as_it_is(tmp_path: Path) -> None:
    done = run_as((3, 8), tmp_path, "import json; print('ran')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_python_3_9_has_hs_job(tmp_path: Path) -> None:
    done = run_as((3, 9), tmp_path, "import hs_job; print(hs_job.accumulation_steps())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_python_that_runs_from_it_keeps_nothing_there_that_a_full_disk_could_cut_off(
    tmp_path: Path,
) -> None:
    """What is compiled and cut off is not looked past: every job after that would fail at its import."""
    hs_job.install(str(tmp_path))
    for place in (tmp_path, tmp_path / "hs_job"):  # as another version's jobs may have left it
        (place / "__pycache__").unlink(missing_ok=True)
        (place / "__pycache__").mkdir()
    cut_off = Path(importlib.util.cache_from_source(str(tmp_path / "hs_job" / "handed.py")))
    py_compile.compile(str(tmp_path / "hs_job" / "handed.py"))
    cut_off.write_bytes(cut_off.read_bytes()[:100])
    done = run_as((3, 11), tmp_path, "import hs_job.handed; print('imported')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")
    assert list(tmp_path.rglob("*.pyc")) == []
