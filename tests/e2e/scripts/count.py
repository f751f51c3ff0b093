"""Counts steps through the runtime and writes each to a file: a cheap training job without torch.

usage: count.py FILE STEPS [STEP_S]
"""

import sys
import time
from pathlib import Path

import hs_job

path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.01
with Path(path).open("a", buffering=1) as file:
    for n in range(steps):
        time.sleep(step_s)
        file.write(f"{n} {time.monotonic():.3f}\n")
        hs_job.step()
print("counted", steps)
