"""What an agent puts on a job's PYTHONPATH, in Pythons that the runtime is not for."""

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
