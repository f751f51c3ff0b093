"""A job that does all it can to survive its own end: double fork, a session of its own, ignored signals.

usage: hide.py FILE   (process ids are written there)
"""

import os
import signal
import sys
from pathlib import Path

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)


def note() -> None:
    with Path(sys.argv[1]).open("a") as file:
        file.write(f"{os.getpid()}\n")


note()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note()
    else:
        os._exit(0)
while True:
    signal.pause()
