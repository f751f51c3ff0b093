"""hsctl from its first moment: who interrupts it while it is being loaded sees no more of that than later."""

import _signal as signal  # type: ignore[import-not-found]  # signal itself imports enum, which takes a while
import os
import sys

INTERRUPTED = 130


def _gone(*_: object) -> None:
    """Nothing was begun. An exception would come amid somebody's import, who may make another of it."""
    os._exit(INTERRUPTED)


def main() -> None:
    loads = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # else whoever started it wants it ignored
    if loads:
        signal.signal(signal.SIGINT, _gone)
    from hs_client import program

    program.prepare()
    if loads:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(program.run())


if __name__ == "__main__":
    main()
