"""However a script ends, its last words are said: at Python's end, and where it leaves without one."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import Callable, NoReturn, Optional

from hs_job.leaving import EXIT

_LAST_WORD_S = 1.0


class Ending:
    def __init__(self, say: Callable[[], None]) -> None:
        """`say`: may be called twice, and from a thread of its own."""
        self._say = say
        self._caught: Optional[BaseException] = None

    def watch(self) -> None:
        atexit.register(self._say)
        os._exit = self._leave
        sys.exit = self._exit

    @staticmethod
    def forget() -> None:
        """In a forked child: it has nobody to say anything to."""
        os._exit = EXIT

    @property
    def error(self) -> Optional[BaseException]:
        """What has ended the script, as far as it ended by an error: one that came to its top, or which it had caught as it ended itself."""
        return getattr(sys, "last_value", self._caught)

    def _exit(self, status: object = None) -> NoReturn:
        self._caught = sys.exc_info()[1]
        raise SystemExit(status)

    def _leave(self, status: int) -> NoReturn:
        """Scripts of gangs end so: torch may abort in what it does at exit. Watchdogs, too, which nothing may hold up: a lock that is never let go, an agent that does not listen."""
        self._caught = sys.exc_info()[1]
        with contextlib.suppress(RuntimeError):  # the interpreter is at its end, and starts none
            last = threading.Thread(target=self._say, daemon=True)
            last.start()
            last.join(_LAST_WORD_S)
        EXIT(status)
