"""What stops a daemon in an orderly way."""

import asyncio
import contextlib
import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """A hang-up too, but where whoever started it wants that ignored, as `nohup` does."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGTERM, signal.SIGINT, *hang_up)


def heed(told_to_stop: asyncio.Event) -> None:
    """Any of them sets it, however busy the loop is.

    What a loop is told by `add_signal_handler` comes through the pipe by which threads wake it: full once some hundred of them have an answer for a loop that
    is at something, and a signal that comes then is lost.
    """
    loop = asyncio.get_running_loop()

    def heard(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            loop.call_soon_threadsafe(told_to_stop.set)

    for number in stop_signals():
        signal.signal(number, heard)
