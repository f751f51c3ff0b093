"""Whether a rank waits for others: where its thread stays at one place."""

import threading
from queue import SimpleQueue

import pytest

from hs_job import blocked


class Thread(threading.Thread):
    """Waits in code of a file of this name, until it is told to go on to the next wait, or to end."""

    def __init__(self, file: str) -> None:
        super().__init__(daemon=True)
        self.waits, self.goes_on = SimpleQueue[None](), SimpleQueue[None]()  # whose calls have no frame
        wait = "    waits.put(None)\n    goes_on.get()\n"
        text = f"def run(waits, goes_on):\n{wait}{wait}"
        names: dict[str, object] = {}
        exec(compile(text, file, "exec"), names)
        self._run = names["run"]

    def run(self) -> None:
        self._run(self.waits, self.goes_on)  # type: ignore[operator]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr(blocked.time, "monotonic", lambda: now_s[0])
    return now_s


def heard(
    watch: blocked.Watch, thread: Thread, clock: list[float], seconds: list[float]
) -> list[bool | None]:
    """What is news, so many seconds later each time. The thread has come to its wait by the second look."""
    found = []
    for more_s in seconds:
        clock[0] += more_s
        found.append(watch.news(thread.ident))
    return found


def stands(thread: Thread) -> None:
    """It has got to where it waits, and no further."""
    thread.waits.get()
    before = None
    while before is None or before != blocked.at(thread.ident):
        before = blocked.at(thread.ident)


@pytest.mark.parametrize(
    ("file", "news"),
    [
        ("/lib/torch/distributed/distributed_c10d.py", [None, True, None, None]),
        ("/home/ann/train.py", [None, None, None, True]),
    ],
)
def test_who_stays_at_one_place_is_blocked_at_once_in_a_call_to_others_and_after_a_while_in_its_own_code(
    clock: list[float], file: str, news: list[bool | None]
) -> None:
    thread = Thread(file)
    thread.start()
    stands(thread)
    watch = blocked.Watch()
    assert heard(watch, thread, clock, [0.0, 1.0, 28.0, 1.0]) == news
    thread.goes_on.put(None)
    stands(thread)
    assert heard(watch, thread, clock, [1.0]) == [False], "it has got further"
    thread.goes_on.put(None)
    thread.join()
