"""Jobs that tests let hs-agent run."""

import sys

from hs_core.model import SuspendMode

UNSUSPENDED = {"suspend": SuspendMode.NONE}
FROZEN = {"suspend": SuspendMode.TRANSPARENT}
COUNT = "import time\ni = 0\nwhile True:\n    i += 1\n    print(i, flush=True)\n    time.sleep(0.02)"


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def lines(daemon, number: int) -> int:
    log = daemon.place / f"state/jobs/{number}-1/log"
    return log.read_bytes().count(b"\n") if log.exists() else 0
