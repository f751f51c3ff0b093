"""`hs-controller`: the daemon's command line."""

import asyncio
import gc
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import click

from hs_daemon import unheard
from hs_daemon.extras import not_installed
from hs_daemon.notify import give_up

try:
    gc.disable()  # nothing of what is imported is garbage: looked through again and again it takes a tenth of the start
    import structlog

    from hs_controller import app, backup, config, garbage, pki
    from hs_controller.callers import SecretError
    from hs_controller.config import ConfigError
    from hs_controller.doors import DoorError
    from hs_controller.pki import PkiError
    from hs_controller.sqlite import StoreError, StoreFullError, StoreRefusedError
    from hs_controller.thinker import still_at_it
    from hs_core import policies
    from hs_core.errors import BrokenError, RefusedError
    from hs_core.words import counted
    from hs_daemon import logs, version
except ModuleNotFoundError as missing:
    sys.exit(f"hs-controller: {not_installed(missing, 'controller')}")
gc.freeze()  # nor at the end, for a quarter of the time that a command takes
gc.enable()

log = structlog.get_logger("hs_controller")

REFUSED_TO_START, BAD_CONFIG, BROKEN, DISK, TRY_AGAIN = 1, 2, 70, 74, 75
FULL_S = 10.0  # before systemd may start it again, which gives up after ten times within a minute


_config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help=f"Configuration, TOML.  [default: {config.DEFAULT_FILE}]",
)


@click.group(
    cls=unheard.Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(version(), prog_name="hs-controller")
@_config_option
@click.pass_context
def cli(context: click.Context, file: Path | None) -> None:
    """The controller: decides where jobs live and how much each weighs. Without a command: run."""
    context.obj = file
    if context.invoked_subcommand is None:
        logs.set_up()
        _leave(_run(file or config.DEFAULT_FILE))


@cli.command()
@_config_option
@click.pass_obj
def run(before: Path | None, file: Path | None) -> None:
    """Run in the foreground until SIGTERM (the default)."""
    logs.set_up()
    _leave(_run(file or before or config.DEFAULT_FILE))


@cli.command()
@_config_option
@click.pass_obj
def init(before: Path | None, file: Path | None) -> None:
    """Make the cluster's certificate authority, once, before the controller listens to other hosts."""
    try:
        sha256 = pki.init(_settings(file or before or config.DEFAULT_FILE).state_dir)
    except ConfigError as error:
        sys.exit(_complain(error, BAD_CONFIG))
    except PkiError as error:
        sys.exit(_complain(error, REFUSED_TO_START))
    print(f"CA SHA-256: {sha256}")


@cli.command(stray="expected --from {}")
@_config_option
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What `hsctl backup` wrote.",
)
@click.option("--force", is_flag=True, help="Put a journal that is there aside.")
@click.pass_obj
def restore(before: Path | None, file: Path | None, *, source: Path, force: bool) -> None:
    """Put a backup in the journal's place, while no controller runs."""
    try:
        settings = _settings(file or before or config.DEFAULT_FILE)
        jobs, aside = backup.restore(settings.state_dir, source, force=force)
    except ConfigError as error:
        sys.exit(_complain(error, BAD_CONFIG))
    except StoreError as error:
        sys.exit(_complain(error, REFUSED_TO_START))
    print(f"restored, with {counted(jobs, 'job')}" + (f"; what was there is now {aside}" if aside else ""))


def _settings(file: Path) -> config.Config:
    if file == config.DEFAULT_FILE:
        try:
            file.stat()
        except FileNotFoundError:
            return config.parse({}, file)
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    return config.load(file)


def _run(file: Path) -> int:
    try:
        settings = _settings(file)
        try:
            policy = policies.find(settings.policy)
        except RefusedError as refused:
            raise ConfigError(f"{file}: policy = {settings.policy!r}: {refused}") from None
        garbage.rarely()
        asyncio.run(app.run(settings, policy))
    except ConfigError as error:
        return _complain(error, BAD_CONFIG)
    except StoreFullError as error:
        return _full(error)
    except (StoreRefusedError, DoorError, PkiError, SecretError) as error:
        return _complain(error, REFUSED_TO_START)
    except StoreError as error:
        return _complain(error, DISK)
    except ModuleNotFoundError as missing:
        print(f"hs-controller: {not_installed(missing, 'controller')}", file=sys.stderr)
        return REFUSED_TO_START
    except BrokenError as error:
        log.exception("broken", why=str(error))
        return BROKEN
    except Exception:
        log.exception("broken")
        return BROKEN
    return 0


def _full(error: StoreFullError) -> int:
    status = _complain(error, TRY_AGAIN)
    if os.environ.get("NOTIFY_SOCKET"):
        time.sleep(FULL_S)
    return status


def _leave(status: int) -> NoReturn:
    """All is written by now. Where a thread is still at a decision nothing is taken apart any more: a solver's library would be under its feet."""
    if still_at_it():
        os._exit(status)
    unheard.forget_unsaid()
    sys.exit(status)


def _complain(error: Exception, status: int) -> int:
    give_up("hs-controller", error)
    return status


def main() -> None:
    cli(prog_name="hs-controller")


if __name__ == "__main__":
    main()
