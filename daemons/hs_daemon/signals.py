"""What stops a daemon in an orderly way."""

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """A hang-up too, but where whoever started it wants that ignored, as `nohup` does."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGTERM, signal.SIGINT, *hang_up)
