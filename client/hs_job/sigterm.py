"""A script's own handler of SIGTERM while its device memory is another's: what was swapped out is lent to it on the host.

Handlers often save a last checkpoint. Python calls them in the main thread, amid our waiting for the next turn, when tensors have no memory: what they wrote would be worth
nothing, over what may have been good.
"""

from __future__ import annotations

import signal
import threading
from typing import Any, Callable


class Sigterm:
    def __init__(self, lend: Callable[[], Any], take_back: Callable[[Any], None]) -> None:
        self._lend = lend
        self._take_back = take_back
        self._own: Any = None

    def begin(self) -> None:
        """Lends to the script's handler from now on. Another thread's waiting is not interrupted, nor may it set a handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        own = signal.getsignal(signal.SIGTERM)
        if callable(own):  # the default and to ignore it are numbers
            signal.signal(signal.SIGTERM, self._handle)
            self._own = own

    def _handle(self, number: int, frame: Any) -> None:
        lent = self._lend()
        self._own(number, frame)
        # Where it raises, the script is on its way out and may save yet.
        self._take_back(lent)

    def end(self) -> None:
        own, self._own = self._own, None
        if own is not None and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, own)
