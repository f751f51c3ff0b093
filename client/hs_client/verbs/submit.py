"""`submit` and `run`: flags, job files and scripts, laid over each other and checked once."""

import contextlib
import fcntl
import os
import stat
import sys
import termios
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from hs_client import compose, forms, job_words, jobfile, quantities, script, yamlfile
from hs_client.api import Client, Submitted, new_key
from hs_client.completing import files
from hs_client.errors import InvalidError, UnavailableError
from hs_client.follow import wait_all
from hs_client.layers import Layers
from hs_client.verbs.common import connected, json_option, out, stay, warn
from hs_client.verbs.flags import FLAGS, job_options
from hs_client.verbs.strays import Command

_WHAT_IS_RUN = {"file", "command"}
_COMMAND = {"allow_interspersed_args": False}
_ABOUT_HSCTL = ("--dry-run", "--wait", "--detach", "--parsable")


class _Submitting(Command):
    """A command's words are its own; beside a job file there is none, so options may come after KEY=VALUE as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, words = self._said(ctx, args)
        if "file" in given:
            ctx.allow_interspersed_args = True
            given, _ = self._said(ctx, args)
        if ctx.resilient_parsing:  # a shell completes
            return super().parse_args(ctx, args)
        if given.count("file") > 1:
            raise InvalidError("--file: is there more than once: expected one job file")
        if "file" not in given and args[: len(args) - len(words)][-1:] != ["--"]:
            _tell_of_late_ones(words)
        return super().parse_args(ctx, args)

    def _said(self, ctx: click.Context, args: list[str]) -> tuple[list[str | None], Sequence[str]]:
        """Each parameter as often as it is there, and the command's words."""
        said, _, order = self.make_parser(ctx).parse_args(list(args))
        words = said.get("command")
        return [param.name for param in order], words if isinstance(words, tuple) else ()


def _tell_of_late_ones(words: Sequence[str]) -> None:
    for word in words[1:]:
        if word in _ABOUT_HSCTL:
            warn(
                f"{word} comes after the command, so it is the command's own: hsctl's options come before it"
            )


_words = click.argument(
    "command",
    nargs=-1,
    metavar="[--] CMD… | SCRIPT [ARG]… | KEY=VALUE…",
    type=click.UNPROCESSED,
    shell_complete=files,
)


@click.command(cls=_Submitting, context_settings=_COMMAND)
@job_options
@click.option("--dry-run", is_flag=True, help="check it and say what would happen; submit nothing")
@click.option("--wait", is_flag=True, help="until it has ended; exit as it did")
@click.option("--detach", is_flag=True, help="return at once (what submit does anyway)")
@click.option("--parsable", is_flag=True, help="print the jobs' numbers only")
@json_option
@_words
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    *,
    dry_run: bool,
    wait: bool,
    detach: bool,
    parsable: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Submit a job.

    \b
    hsctl submit -G 2 -- python train.py --lr 0.1   the words as they are: no shell
    hsctl submit -f job.yaml resources.gpus=4       a job file, and fields changed
    hsctl submit train.sh                           a script with #SBATCH or #HS lines
    """
    if wait and detach:
        raise InvalidError("--wait and --detach: expected one of them")
    if dry_run and wait:
        raise InvalidError("--wait and --dry-run: expected one of them")
    if parsable and as_json:
        raise InvalidError("--parsable and --json: expected one of them")
    with connected(ctx) as client:
        specs = request(flags, client)
        done = send(client, specs, dry_run=dry_run)
        _tell(done, specs, dry_run=dry_run, parsable=parsable, as_json=as_json)
        return wait_all(client, done.job_ids, report=warn) if wait else 0


@click.command(cls=_Submitting, context_settings=_COMMAND)
@job_options
@click.option("--detach", is_flag=True, help="do not follow the output: the same as submit")
@click.option("-q", "--quiet", is_flag=True, help="only the job's own output")
@_words
@click.pass_context
def run(ctx: click.Context, /, *, detach: bool, quiet: bool, **flags: Any) -> int:
    """Submit a job, print its output until it ends, and exit as it did.

    After Ctrl-C the job goes on (exit status 130); `hsctl attach JOB` takes it up again.
    Its standard input is empty: what is piped into `hsctl run` goes nowhere.
    """
    if detach and quiet:
        raise InvalidError("--detach and --quiet: expected one of them")
    with connected(ctx) as client:
        specs = request(flags, client)
        if len(specs) != 1:
            raise InvalidError(f"{len(specs)} jobs: expected one; arrays and sweeps are for `hsctl submit`")
        done = send(client, specs)
        if detach:
            _tell(done, specs, dry_run=False, parsable=False, as_json=False)
            return 0
        job_id = done.job_ids[0]
        if not quiet:
            warn(f"job {job_id} submitted")
            if flags["file"] != "-" and _something_waits():
                warn(
                    "standard input is not handed on: the job's is empty; have it read a file that its server sees"
                )
        return stay(client, job_id, quiet=quiet)


def _something_waits() -> bool:
    """Whether a pipe or a file at standard input has bytes now; nothing is read."""
    with contextlib.suppress(OSError, ValueError):  # closed, or no file
        fd = sys.stdin.fileno()
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > 0
        if stat.S_ISFIFO(found.st_mode):
            waiting = fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4)
            return int.from_bytes(waiting, sys.byteorder) > 0
    return False


def request(flags: dict[str, Any], client: Client) -> list[Any]:
    """The JobSpecs that flags, file and script come to."""
    layers = Layers()
    if flags["file"]:
        _lay_file(layers, flags)
    elif flags["command"]:
        _lay_command(layers, flags, client)
    else:
        raise InvalidError("nothing to run: expected a command, a script, or a job file with -f")
    _lay_flags(layers, flags, lambda flag: flag)
    shown = {flag.field: flag.shown for flag in FLAGS if flag.field}
    source = _named(flags["file"]) if flags["file"] else ""
    job = jobfile.parse(layers.data, layers.origins, source=source, flags=shown)
    place = compose.Place.here(check=_files_are_here())
    return compose.specs(job, place, layers.origins, partial(job_words.job_ids, client))


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _files_are_here() -> bool:
    """A forwarded socket leads to another machine, whose folders we cannot see; HS_REMOTE=1 says so."""
    said = os.environ.get("HS_REMOTE", "")
    if said not in {"", "0", "1"}:
        raise InvalidError(f"HS_REMOTE={said!r}: expected 1 (the controller is elsewhere) or 0")
    return said != "1"


def _lay_file(layers: Layers, flags: dict[str, Any]) -> None:
    if flags["file"] == "-":
        raw = sys.stdin.buffer.read(jobfile.MAX_SPEC_BYTES + 1)
        if len(raw) > jobfile.MAX_SPEC_BYTES:
            raise InvalidError(f"{_named('-')}: expected at most {jobfile.MAX_SPEC_BYTES // 1024} KiB")
        layers.lay(*yamlfile.parse(raw, _named("-")))
    else:
        layers.lay(*yamlfile.read(Path(flags["file"])))
    for word in flags["command"]:
        layers.override(word)


def _lay_command(layers: Layers, flags: dict[str, Any], client: Client) -> None:
    words = list(flags["command"])
    folder = Path(flags["chdir"] or ".").expanduser()
    path = script.looks_like(words[0], Path()) or script.looks_like(words[0], folder)
    if path is None:
        layers.put(("run",), words, compose.ON_THE_LINE)
        return
    read = script.read(path, words[1:])
    for warning in read.warnings:
        warn(warning)
    for field, value, where in read.data:
        named = job_words.as_slurm_has_it(client, value, where) if field == ("after",) else value
        layers.put(field, named, where)
    for line, where in read.hs_words:
        _lay_flags(layers, _parse_line(line, where), partial("{}: {}".format, where))
    layers.put(("run",), read.command, str(path))
    if not layers.data.get("name"):
        layers.put(("name",), path.stem, str(path))


def _parse_line(words: Sequence[str], where: str) -> dict[str, Any]:
    """The flags of an #HS line."""
    try:
        with submit.make_context("#HS", list(words), help_option_names=[]) as context:
            flags = dict(context.params)
    except click.ClickException as error:
        raise InvalidError(f"{where}: {error.format_message()}") from None
    extra = [
        name
        for name in ("dry_run", "wait", "detach", "parsable", "as_json", *_WHAT_IS_RUN)
        if flags.get(name)
    ]
    if extra:
        shown = {"command": f"{flags['command'][0]!r}" if flags["command"] else ""}.get(
            extra[0], "--" + extra[0].replace("_", "-")
        )
        raise InvalidError(f"{where}: {shown}: expected only what describes the job")
    return flags


def _lay_flags(layers: Layers, flags: dict[str, Any], where: Callable[[str], str]) -> None:
    for flag in FLAGS:
        value = flags.get(flag.parameter)
        if flag.field and value is not None and value != ():
            layers.put(flag.field, flag.read(value), where(flag.shown))
    for word in flags.get("env", ()):
        key, equals, value = word.partition("=")
        layers.put(("env", key), value if equals else None, where("--env"))
    swept: set[str] = set()
    for word in flags.get("sweep", ()):
        key, equals, values = word.partition("=")
        if not equals or not values:
            raise InvalidError(f"{where('--sweep')}: {word!r}: expected NAME=VALUE,VALUE…, e.g. lr=1e-3,3e-4")
        if key in swept:
            raise InvalidError(
                f"{where('--sweep')}: {key} is there more than once: expected it once, with all of its values, e.g. {key}=1e-3,3e-4"
            )
        swept.add(key)
        layers.put(("sweep", key), values.split(","), where("--sweep"))


def send(client: Client, specs: list[Any], *, dry_run: bool = False) -> Submitted:
    """One key for this invocation: whatever is sent again is the same request."""
    done = client.submit(*specs, dry_run=dry_run, key=new_key())
    if not dry_run and len(done.job_ids) != len(specs):
        raise UnavailableError(
            f"the controller answered {len(done.job_ids)} jobs for {len(specs)}: it is of another version"
        )
    for note in done.notes:
        warn(note)
    return done


def _tell(done: Submitted, specs: Sequence[Any], *, dry_run: bool, parsable: bool, as_json: bool) -> None:
    if as_json:
        out(
            forms.text(
                {"job_ids": list(done.job_ids), "notes": list(done.notes), "dry_run": dry_run}, indent=2
            )
        )
    elif parsable:
        for job_id in done.job_ids:
            out(str(job_id))
    elif dry_run:
        gpus = specs[0].gpus * specs[0].nodes
        limit = (
            f", at most {quantities.span_text(specs[0].max_duration_s)}" if specs[0].max_duration_s else ""
        )
        out(f"would be accepted: {_jobs(specs)}, {gpus} GPU{'s' * (gpus > 1)} each{limit}")
    elif len(done.job_ids) == 1:
        out(f"submitted job {done.job_ids[0]} ({specs[0].name})")
    else:
        out(f"submitted {_jobs(specs)}: {done.job_ids[0]} to {done.job_ids[-1]}")


def _jobs(specs: Sequence[Any]) -> str:
    if len(specs) == 1:
        return f"job {specs[0].name!r}"
    first, last = specs[0].name, specs[-1].name
    return f"{len(specs)} jobs {first!r}" + (f" to {last!r}" if last != first else "")
