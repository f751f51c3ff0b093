"""What a job's main process leaves behind has a moment to end by itself. That it is killed after that: test_shim."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves it out

from conftest import PYTHON, Shims
from hs_agent import shim

CLEARS_UP = """
import os, sys, time
leaves, file = os.pipe(), sys.argv[1]
if os.fork() == 0:
    os.close(leaves[1])
    os.read(leaves[0], 1)  # returns when the main process is gone
    time.sleep(float(sys.argv[3]))
    open(file, "w").write("cleared")
    os._exit(0)
os._exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("status", "takes_s"), [(0, 0.2), (3, 0.2), (75, shim.LEFTOVERS_S + 0.5)])
def test_who_clears_up_after_a_job_that_has_ended_is_not_killed_over_it(
    shims: Shims, tmp_path: Path, status: int, takes_s: float
) -> None:
    """As Python's resource tracker does, which removes shared memory that nobody else would; and ranks whose launcher left before them."""
    file = tmp_path / "cleared"
    record = shims.start(PYTHON, "-c", CLEARS_UP, str(file), str(status), str(takes_s)).wait()
    assert (record["code"], file.read_text()) == (status, "cleared")
