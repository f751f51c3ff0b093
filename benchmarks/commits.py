"""How long commits of the journal take while other threads compute, as the event loop and a decision do.

For each statement the database driver lets go of the interpreter, and then has to wait until it gets it back.
"""

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from hs_controller.journal import Journal
from hs_controller.rows import Answered, Batch, Event
from hs_core.dice import roll
from hs_core.facts import Fact
from hs_core.model import Job, JobSpec
from hs_core.names import JobId, UserName

COMMITS = 200
SUBMITS = (3, 7, 15, 30, 47)  # that come to one commit: two events each, and what was answered


def batch(first: int, jobs: int) -> Batch:
    numbers = range(first, first + jobs)
    return Batch(
        jobs=tuple(
            Job(id=JobId(at), user=UserName("ann"), spec=JobSpec(name="j", command=("true",)), arrival_s=1.0)
            for at in numbers
        ),
        events=tuple(
            Event(seq=2 * at + which, fact=Fact(now_s=1.0, kind="placed", text=f"event of {at}"))
            for at in numbers
            for which in range(2)
        ),
        answered=tuple(
            Answered(caller="ann", key=str(at), digest=b"x" * 32, answer=b"y" * 60, at_s=1.0)
            for at in numbers
        ),
        meta={"quantum": first},
    )


def measure(busy: int) -> list[float]:
    """Seconds of each, least first, beside so many busy threads."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(number * number for number in range(2000))

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(busy)]
    dice, first, took = roll(1, busy), 1, []
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.open(Path(folder) / "state")
        for thread in threads:
            thread.start()
        for _ in range(COMMITS):
            jobs = dice.choice(SUBMITS)
            one = batch(first, jobs)
            first += jobs
            began_s = time.perf_counter()
            journal.commit(one)
            took.append(time.perf_counter() - began_s)
        over.set()
        for thread in threads:
            thread.join()
        journal.close()
    return sorted(took)


def main() -> None:
    for busy in (0, 1, 2):
        took = [1e3 * seconds for seconds in measure(busy)]
        mean, median, late = statistics.mean(took), took[len(took) // 2], took[int(0.99 * len(took))]
        print(f"beside {busy} busy threads: {mean:.1f} ms on average, p50 {median:.1f}, p99 {late:.1f} ms")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
