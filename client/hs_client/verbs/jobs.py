"""Verbs about jobs: queue, why, logs, exec, attach, pause, resume, cancel, wait."""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from hs_client import forms, job_words, printing, quantities, screen, tables
from hs_client.api import Client
from hs_client.completing import one_of
from hs_client.ends import ENDED
from hs_client.errors import FAILED, TIMEOUT, InvalidError, NotFoundError
from hs_client.follow import wait_all, write_chunk
from hs_client.limits import LISTED, MOST_JOBS
from hs_client.verbs.common import (
    agreed,
    connected,
    json_option,
    list_options,
    out,
    present,
    span,
    stay,
    warn,
    watch_options,
)
from hs_client.verbs.strays import Command
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

MOST_EXEC_S = 3600.0
STATES = (
    "queued",
    "starting",
    "running",
    "suspended",
    "paused",
    "cancelling",
    "succeeded",
    "failed",
    "cancelled",
)


@click.command(
    cls=Command, stray="`hsctl show {}` is about one job; -u {} lists those of a user, -s {} those in a state"
)
@click.option("--me", is_flag=True, help="only mine")
@click.option("-u", "--of", "of_user", metavar="NAME", help="only this user's")
@click.option(
    "-s",
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    shell_complete=one_of(*STATES),
    help=f"only in these: {', '.join(STATES)}",
)
@click.option("-a", "--all", "ended", is_flag=True, help="ended ones too")
@click.option("-n", "--limit", type=click.IntRange(1, MOST_JOBS), help="the newest so many")
@list_options
@watch_options
@click.pass_context
def queue(
    ctx: click.Context,
    /,
    *,
    me: bool,
    of_user: str | None,
    states: tuple[str, ...],
    ended: bool,
    limit: int | None,
    **how: Any,
) -> None:
    """List jobs that have not ended."""
    if me and of_user:
        raise InvalidError("--me and --of: expected one of them")
    wanted = _states(states)
    with connected(ctx, patient=how["watch"]) as client:
        user = client.whoami() if me else of_user or ""
        listed = set[int]()

        def fetch() -> tuple[list[forms.Row], Callable[[], screen.Table]]:
            views = client.jobs(
                user=user, states=wanted, ended=ended or bool(ENDED & set(wanted)), limit=limit or 0
            )
            if limit is None and len(views) >= LISTED and not how["watch"]:
                warn(f"the newest {LISTED} are listed; -n asks for more of them, up to {MOST_JOBS}")
            rows = [forms.job(view) for view in views]
            if how["watch"] and how["jsonl"]:
                here = {view.id for view in views}
                rows += [forms.job(view) for view in _now(client, listed - here)]
                listed.clear()
                listed.update(here)
            return rows, lambda: tables.queue(views)

        present(fetch, **how)


def _now(client: Client, gone: Collection[int]) -> Iterator[wire.JobView]:
    """Those that are not in a list any more, as they are: who follows it is to hear of their end."""
    for job_id in sorted(gone):
        with contextlib.suppress(NotFoundError):  # it ended long since
            yield client.job(job_id).view


def _states(words: Sequence[str]) -> list[str]:
    states = [state for word in words for state in word.split(",")]
    for state in states:
        if state not in STATES:
            hint = quantities.did_you_mean(state, STATES)
            raise InvalidError(f"--state {state!r}: expected one of {', '.join(STATES)}{hint}")
    return states


@click.command(cls=Command, stray="one job at a time")
@click.argument("job", metavar="JOB")
@json_option
@click.pass_context
def why(ctx: click.Context, /, *, job: str, as_json: bool) -> None:
    """Say why a job is where it is: one reason, its evidence, and what comes next."""
    with connected(ctx) as client:
        reply = client.why(job_words.one_job(client, job))
    if as_json:
        out(forms.text(forms.why(reply), indent=2))
        return
    stands = "has ended" if reply.state in ENDED else f"is {reply.state}"
    reason = f" ({reply.reason})" if reply.reason not in {"", reply.state} else ""
    out(f"job {reply.job_id} {stands}{reason}: {printing.printable(reply.text)}")
    if reply.expected_wait_s >= 0 and reply.state not in ENDED and reply.state != "running":
        out(f"expected wait: {quantities.span_text(reply.expected_wait_s)}")
    if reply.next_step:
        out(f"next: {printing.printable(reply.next_step)}")


@click.command(cls=Command, stray="one job at a time")
@click.argument("job", metavar="JOB")
@click.option("-f", "--follow", "following", is_flag=True, help="until the job ends")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0, 1_000_000),
    metavar="N",
    help="the last N lines  [all that is kept]",
)
@click.option(
    "--since",
    metavar="TIME|DURATION",
    help="only what was written since, e.g. 90s, 2h, 14:30 or 2026-05-01T14:30",
)
@click.option(
    "--rank",
    type=click.IntRange(0, 1023),
    metavar="N",
    help="of several servers that with this node rank  [0]",
)
@click.pass_context
def logs(
    ctx: click.Context, /, *, job: str, following: bool, tail: int | None, since: str | None, rank: int | None
) -> None:
    """Print a job's output.

    Of a job over several servers that of the first; with --rank what its newest start has said on another.

    --since goes to the second, or to a thousandth of the time for which there is log, where that is more; in doubt it prints what is older, too, and from the
    beginning of its line. Times are taken when a server writes the log.
    """
    with connected(ctx) as client:
        since_s = _ago("--since", since, client)
        job_id = job_words.one_job(client, job)
        if rank is None and (nodes := len(client.job(job_id).view.hosts)) > 1:
            warn(
                f"it is on {nodes} servers, and this is the first: --rank 1{f' to {nodes - 1}' if nodes > 2 else ''} for {'another' if nodes > 2 else 'the other'}"
            )
        lines = -1 if tail is None else tail
        chunks = client.output(job_id, tail_lines=lines, since_s=since_s, follow=following, rank=rank or 0)
        for chunk in chunks:
            write_chunk(chunk, warn)


def _ago(flag: str, text: str | None, client: Client) -> float:
    """0: nothing was asked. A time is one of the controller's clock, as all that people see."""
    if text is None:
        return 0.0
    try:
        return quantities.since(text, lambda: datetime.fromtimestamp(client.now_s(), UTC))
    except ValueError as error:
        raise InvalidError(f"{flag} {text!r}: {error}") from None


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option(
    "--rank",
    type=click.IntRange(0, 1023),
    default=0,
    metavar="N",
    help="of several servers on that with this node rank  [0]",
)
@click.option(
    "--timeout", metavar="TIME", help="end it after, e.g. 30s or 10m (exit status 124)  [1h, the most]"
)
@click.argument("job", metavar="JOB")
@click.argument("command", metavar="[--] CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_(
    ctx: click.Context, /, *, job: str, command: tuple[str, ...], rank: int, timeout: str | None
) -> int:
    """Run a command beside a job that has its turn, and exit as it did.

    It runs as the job's user on the job's server, within the job's limits, in its folder, with its environment but for HS_HOOK=0: it does not count as one of its processes. No shell
    is added (`-- sh -c '…'` is yours to say), there is no terminal, and nothing on its standard input.

    It ends with the job's turn: where the job is suspended, moves or ends, it is ended at once (exit status 1), for its GPUs are others' then. So it is, a second after it
    was told to, with Ctrl-C or a lost connection. It may say 64 MiB. `hsctl events` says who asked for what program.
    """
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise InvalidError("expected a command after --")
    limit_s = span("--timeout", timeout)
    if limit_s > MOST_EXEC_S:
        raise InvalidError(f"--timeout {timeout!r}: expected an hour at most")
    with connected(ctx) as client:
        job_id = job_words.one_job(client, job)
        for chunk in client.exec(job_id, words, rank=rank, limit_s=limit_s):
            stream = sys.stderr if chunk.is_error else sys.stdout
            stream.buffer.write(chunk.data)
            stream.buffer.flush()
            if chunk.HasField("end"):
                return _exit_of(chunk.end)
    raise AssertionError("the last chunk says how it ended")


def _exit_of(end: common.ExecEnd) -> int:
    if end.why:
        warn(f"the command was ended: {end.why}")
        return TIMEOUT if end.is_late else FAILED
    return 128 + end.signal if end.signal else end.code


@click.command(cls=Command, stray="one job at a time")
@click.argument("job", metavar="JOB")
@click.option("-q", "--quiet", is_flag=True, help="only the job's own output")
@click.pass_context
def attach(ctx: click.Context, /, *, job: str, quiet: bool) -> int:
    """Print a job's output until it ends, and exit as it did.

    As `hsctl run` does for a job that it submits. After Ctrl-C the job goes on (exit status 130).
    """
    with connected(ctx) as client:
        return stay(client, job_words.one_job(client, job), quiet=quiet)


def _changing(
    name: str, text: str, change: Callable[..., wire.JobsReply], said: Callable[[wire.JobView, bool], str]
) -> click.Command:
    """`said`: of a job as it is now, and whether there was anything to be done to it."""

    @click.command(name, help=text)
    @click.argument("jobs", metavar="JOB…", nargs=-1, required=True)
    @json_option
    @click.pass_context
    def verb(ctx: click.Context, /, *, jobs: tuple[str, ...], as_json: bool) -> None:
        with connected(ctx) as client:
            ids = job_words.job_ids(client, jobs, under_way=True)
            # Some of an array may end between that look and the change.
            reply = change(client, *ids, leave_ended=job_words.are_many(jobs))
        if as_json:
            out(forms.text([forms.job(view) for view in reply.jobs], indent=2))
        for view in reply.jobs if not as_json else ():
            over = view.state in ENDED or view.state == "cancelling"
            text = f"is left as it is ({view.state})" if over else said(view, view.id not in reply.unchanged)
            out(f"job {view.id} {text}")

    return verb


pause = _changing(
    "pause",
    "Take jobs out of their turns until you resume them.",
    Client.pause,
    lambda view, changed: (
        ("paused" if changed else "was paused already")
        + (f" ({view.state})" if view.state != "paused" else "")
    ),
)
resume = _changing(
    "resume",
    "Let paused jobs have their turns again.",
    Client.resume,
    lambda view, changed: f"{'resumed' if changed else 'was not paused'} ({view.state})",
)


@click.command()
@click.argument("jobs", metavar="JOB…", nargs=-1)
@click.option("--me", is_flag=True, help="all of mine")
@click.option("-y", "--yes", is_flag=True, help="with --me: do not ask")
@json_option
@click.pass_context
def cancel(ctx: click.Context, /, *, jobs: tuple[str, ...], me: bool, yes: bool, as_json: bool) -> None:
    """End jobs: SIGTERM, then whatever is left of them."""
    if bool(jobs) == me:
        raise InvalidError("expected jobs to cancel, or --me for all of yours")
    with connected(ctx) as client:
        if me:
            ids = [view.id for view in client.jobs(user=client.whoami(), limit=MOST_JOBS)]
            question = f"cancel {quantities.counted(len(ids), 'job')}?"
            if ids and not yes and not agreed(question, instead="-y to cancel them unasked"):
                return
        else:
            ids = job_words.job_ids(client, jobs)
        views = client.cancel(*ids).jobs if ids else []
    if as_json:
        out(forms.text([forms.job(view) for view in views], indent=2))
    for view in views if not as_json else ():
        out(f"job {view.id} {'is being cancelled' if view.state == 'cancelling' else view.state}")
    if len(ids) == MOST_JOBS and me:
        warn(f"{MOST_JOBS} jobs at a time: run it again for the others")
    if not ids:
        warn("no jobs")


@click.command()
@click.argument("jobs", metavar="JOB…", nargs=-1, required=True)
@click.option(
    "--timeout", metavar="TIME", help="give up after, e.g. 30s or 2h (exit status 124; the jobs go on)"
)
@json_option
@click.pass_context
def wait(ctx: click.Context, /, *, jobs: tuple[str, ...], timeout: str | None, as_json: bool) -> int:
    """Wait until jobs have ended; exit as the first of them that did not succeed."""
    try:
        timeout_s = _timeout(timeout) if timeout else None
    except ValueError as error:
        raise InvalidError(f"--timeout {timeout!r}: {error}") from None
    with connected(ctx) as client:
        ids = job_words.job_ids(client, jobs)
        code = wait_all(client, ids, report=warn, timeout_s=timeout_s)
        if as_json:
            out(forms.text([forms.job(client.job(job_id).view) for job_id in ids], indent=2))
    return code


def _timeout(text: str) -> float:
    """Unlike a job's limit a bare number is seconds, as in timeout(1)."""
    try:
        seconds = float(text)
    except ValueError:
        return quantities.duration(text)
    if not 0 < seconds <= quantities.MAX_SECONDS:
        raise ValueError(quantities.DURATION_EXPECTED)
    return seconds
