"""What a program does whose reader has had enough (`hs-agent doctor | head`): it ends as one that a shell shows as ended by SIGPIPE, and not as one that failed."""

import contextlib
import os
import sys
from typing import Any, TextIO

import click

from hs_daemon import strays

BROKEN_PIPE = 141


class Group(strays.Group):
    """click would make 1 of it, which most programs say for something else."""

    def make_context(self, *args: Any, **said: Any) -> click.Context:
        try:
            return super().make_context(*args, **said)
        except BrokenPipeError:  # of `--help`
            raise _unheard() from None
        except OSError as error:
            if error.filename is not None:
                raise
            silence()
            raise click.ClickException(f"standard output cannot be written: {error.strerror}") from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            raise _unheard() from None


def _unheard() -> click.exceptions.Exit:
    silence()
    return click.exceptions.Exit(BROKEN_PIPE)


def silence(stream: TextIO | None = None) -> None:
    """What could not be written, to standard output unless said, is not tried again at exit, which would make its own status of it (120)."""
    with contextlib.suppress(OSError, ValueError):  # it may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def forget_unsaid() -> None:
    """The same of what a library could not say on standard error, a log on a full disk, say: a daemon's status tells how it ended."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        silence(sys.stderr)
