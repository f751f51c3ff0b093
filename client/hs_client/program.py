"""hsctl. Verbs are imported when they are called: `hsctl --help` loads click and nothing else."""

import codecs
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from hs_client import errors
from hs_client.completing import files
from hs_client.verbs.table import ALIASES, ELSEWHERE, GROUPS, VERBS

PROGRAM = "hsctl"


class LazyGroup(click.Group):
    """Knows verbs by name and one line of help; the module behind one is loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        verb = VERBS.get(ALIASES.get(cmd_name, cmd_name))
        if verb is None:
            return None
        from importlib import import_module

        module, _, attribute = verb.where.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":
            args = [*args[1:], "--help"]
        name = args[0]
        known = name in VERBS or name in ALIASES or name.startswith("-")
        if not known and not ctx.resilient_parsing:  # a shell that completes would show it in its line
            from hs_client.quantities import did_you_mean

            near = did_you_mean(ELSEWHERE.get(name, name), [*VERBS, *ALIASES, *ELSEWHERE.values()])
            ctx.fail(f"no such command {name!r}{near or f'; see {PROGRAM} --help'}")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **said: Any) -> click.Context:
        try:
            return super().make_context(*args, **said)
        except BrokenPipeError:  # of `--help`
            raise click.exceptions.Exit(_unheard()) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would make this a failure
            return _unheard()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title in GROUPS:
            rows = [(name, verb.help) for name, verb in VERBS.items() if verb.group == title]
            with formatter.section(title):
                formatter.write_dl(rows)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from hs_client.version import VERSION

        click.echo(f"{PROGRAM} {VERSION}")
        ctx.exit()


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("--controller", metavar="ADDRESS", help="HOST:PORT (TLS) or unix:/path  [HS_CONTROLLER]")
@click.option(
    "--token-file",
    metavar="FILE",
    shell_complete=files,
    help="with HOST:PORT: holds your token  [HS_TOKEN_FILE, the login]",
)
@click.option(
    "--ca",
    "ca_file",
    metavar="FILE",
    shell_complete=files,
    help="with HOST:PORT: the cluster's CA  [HS_CA, the login]",
)
@click.option("--user", metavar="NAME", help="act for this user (admins only)")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="print the version"
)
@click.pass_context
def cli(
    ctx: click.Context, controller: str | None, token_file: str | None, ca_file: str | None, user: str | None
) -> None:
    """Shares GPUs fairly among training jobs.

    Exit status: 0 ok, 1 failed, 2 bad usage or job, 3 can never run here, 4 not found, 5 not allowed, 6 controller
    unreachable or of another version, 124 timeout, 130 interrupted. `run`, `attach`, `wait` and `submit --wait` exit as the job did, `exec` as its command.
    """
    given = {"controller": controller, "token_file": token_file, "ca_file": ca_file, "user": user}
    for name, value in given.items():
        if value == "":  # an unset variable of a script, most likely: who is meant is not to be guessed
            option = next(one for one in ctx.command.params if one.name == name)
            raise click.BadParameter("expected text that is not empty.", ctx, option)
    ctx.obj = given | {"user": user or ""}


def say(message: str) -> None:
    """For people, never for pipes."""
    from hs_client.printing import printable

    print(printable(message), file=sys.stderr)


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def _unheard() -> int:
    """Whoever read us has had enough; nothing may be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.BROKEN_PIPE


def run(arguments: Sequence[str] | None = None) -> int:
    """hsctl's exit status."""
    try:
        outcome: Any = cli.main(
            args=None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False
        )
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else errors.OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return errors.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except errors.HeteroShareError as error:
        for line in str(error).splitlines() or [error.kind]:
            say(f"{PROGRAM}: {line}")
        return error.exit_code
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":  # of the terminal, not of what is sent
            raise
        say(f"{PROGRAM}: {error.object[:200]!r}: expected UTF-8 text")
        return errors.BAD_USAGE
    except BrokenPipeError:
        return _unheard()
    except OSError as error:
        if error.filename is not None:  # no verb asks for files that nobody named
            say(f"{PROGRAM}: {str(error.filename)[:200]}: {error.strerror}")
            return errors.BAD_USAGE
        if error.errno == errno.ENOENT:  # only getcwd takes no name
            say(f"{PROGRAM}: the folder you are in was removed: expected one that exists (cd)")
            return errors.BAD_USAGE
        if error.errno not in _NO_ROOM:
            raise
        _unheard()
        say(f"{PROGRAM}: standard output cannot be written: {error.strerror}")
        return errors.FAILED


def _open_closed() -> None:
    """What the caller has closed (`>&-`): Python has None for it, and `print` takes that for standard output."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _show_what_can_be_shown() -> None:
    """A terminal of another encoding than UTF-8 has `?` for what it has no character for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")


def _told_to_end(number: int, _: object) -> NoReturn:
    """Not at once: what is open is closed first, and the terminal is as it was."""
    sys.exit(128 + number)


def prepare() -> None:
    """As a process of its own."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else `nohup` wants it ignored
            signal.signal(number, _told_to_end)
    _open_closed()
    _show_what_can_be_shown()
