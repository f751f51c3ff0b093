"""hs-sim. Verbs are imported when they are called: `hs-sim --help` loads click and nothing else."""

import signal
import sys
from typing import NoReturn

from hs_sim import cli


def main() -> int:
    """As a process of its own."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else `nohup` wants it ignored
            signal.signal(number, _told_to_end)
    return cli.main()


def _told_to_end(number: int, _: object) -> NoReturn:
    """Not at once: processes are ended first, and what is half written is taken away."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
