"""Verbs for admins: node, gpu, user, policy, backup, restore."""

import hashlib
import math
import shlex
import sys
import time
from pathlib import Path
from typing import BinaryIO

import click

from hs_client import forms, printing, quantities, screen, tables, whole_file
from hs_client.api import Client
from hs_client.completing import files
from hs_client.errors import ConflictError, HeteroShareError, InvalidError, NotFoundError, WaitTimeoutError
from hs_client.limits import MOST_JOBS
from hs_client.there import exists
from hs_client.verbs.common import Verbs, connected, json_option, list_options, out, show_list, span, warn
from hs_client.verbs.strays import Command
from hs_proto.v1 import controller_pb2 as wire

POLL_S = 0.5


# --- node, gpu -------------------------------------------------------------------------------------------------------


@click.group(
    cls=Verbs,
    elsewhere={
        "list": "nodes",
        "ls": "nodes",
        "show": "nodes",
        "add": "node enroll",
        "delete": "node remove",
    },
)
def node() -> None:
    """Take servers in, empty them, take them out (admins)."""


@node.command(stray="one server at a time")
@click.argument("name")
@click.option("--valid", metavar="TIME", help="how long the token may be used  [1h]")
@json_option
@click.pass_context
def enroll(ctx: click.Context, /, *, name: str, valid: str | None, as_json: bool) -> None:
    """Print the command that makes the server NAME join; its token works once."""
    with connected(ctx) as client:
        made = client.enroll_node(name, valid_s=span("--valid", valid))
    if as_json:
        out(forms.text(forms.plain(made) | {"node": name, "command": _join(name, made)}, indent=2))
        return
    warn(f"on {name}, as root, by {screen.clock(made.not_after)}:")
    out(" ".join(_join(name, made)))


def _join(name: str, made: wire.EnrollNodeReply) -> list[str]:
    return [
        "hs-agent",
        "join",
        "--controller",
        made.controller,
        "--name",
        name,
        "--token",
        made.token,
        "--ca-sha256",
        made.ca_sha256,
    ]


@node.command(stray="one server at a time")
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="shown to everybody whose jobs are there")
@click.option(
    "--deadline", metavar="TIME", help="what has not left by then is ended and queued again  [none]"
)
@click.option("--wait", is_flag=True, help="until it is empty, and nobody needs a checkpoint that it has")
@click.option("--timeout", metavar="TIME", help="with --wait: give up after it (exit status 124)")
@json_option
@click.pass_context
def drain(
    ctx: click.Context, /, *, name: str, reason: str, deadline: str | None, wait: bool, timeout: str | None, as_json: bool
) -> None:  # fmt: skip
    """Empty a server: nothing new comes, what is there leaves by migration."""
    deadline_s, timeout_s = span("--deadline", deadline), span("--timeout", timeout)
    if timeout and not wait:
        raise InvalidError("--timeout: expected --wait with it")
    with connected(ctx, patient=wait) as client:
        view = client.drain_node(name, reason=reason, deadline_s=deadline_s)
        if wait:
            view = _until_empty(client, view, timeout_s)
    _told(view, as_json=as_json)


def _until_empty(client: Client, view: wire.NodeView, timeout_s: float) -> wire.NodeView:
    give_up = time.monotonic() + timeout_s if timeout_s else math.inf
    told = ""
    while left := _what_is_left(client, view):
        if left != told:
            told = left
            warn(f"{view.name}: {left}")
        if time.monotonic() > give_up:
            raise WaitTimeoutError(f"{view.name} is not empty: {left}; it goes on being drained")
        time.sleep(POLL_S)
        view = _node(client, view.name)
        if not view.draining:
            raise ConflictError(
                f"{view.name}: somebody ended the draining; {quantities.counted(view.jobs, 'job')} {'is' if view.jobs == 1 else 'are'} there"
            )
    return view


def _what_is_left(client: Client, view: wire.NodeView) -> str:
    """Jobs; then checkpoints that others are yet to fetch."""
    away = "; the server is away, and until it is back nothing leaves it" if view.state == "away" else ""
    if view.jobs:
        return f"{view.jobs} job{'s' * (view.jobs != 1)} left: {_who_is_left(client, view.name)}{away}"
    if view.needed_by:
        known = {job.id: job for job in client.jobs(limit=MOST_JOBS)}
        who = _listed([_at(known[job]) if job in known else str(job) for job in view.needed_by])
        return f"job{'s' * (len(view.needed_by) > 1)} {who} yet to fetch a checkpoint that only it has{away}"
    return ""


def _who_is_left(client: Client, name: str) -> str:
    return _listed([_at(job) for job in client.jobs(limit=MOST_JOBS) if name in forms.homes(job)])


def _at(job: wire.JobView) -> str:
    """With its state: one that is paused goes nowhere before it is resumed."""
    return f"{job.id} ({'moving to ' + job.moving_to if job.moving_to else job.state})"


def _listed(jobs: list[str]) -> str:
    return ", ".join(jobs[:8]) + (f" and {len(jobs) - 8} more" if len(jobs) > 8 else "")


def _node(client: Client, name: str) -> wire.NodeView:
    found = next((view for view in client.nodes() if view.name == name), None)
    if found is None:
        raise NotFoundError(f"no such node: {name}")
    return found


def _told(view: wire.NodeView, *, as_json: bool) -> None:
    if as_json:
        out(forms.text(forms.node(view, {}), indent=2))
    else:
        out(f"{view.name}: {tables.draining(view) or 'takes jobs'}")


@node.command(stray="one server at a time")
@click.argument("name")
@json_option
@click.pass_context
def undrain(ctx: click.Context, /, *, name: str, as_json: bool) -> None:
    """Let a drained server take jobs again."""
    with connected(ctx) as client:
        _told(client.undrain_node(name), as_json=as_json)


@node.command(stray="one server at a time")
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="also one that is away while jobs may still run there: sure that it is switched off? They run twice otherwise",
)
@json_option
@click.pass_context
def remove(ctx: click.Context, /, *, name: str, force: bool, as_json: bool) -> None:
    """Take a server out for good: its certificate is refused from now on, its jobs are queued again.

    Jobs outlive an agent that is stopped. One that is away while jobs may still run there is refused without --force.
    """
    with connected(ctx) as client:
        done = client.remove_node(name, force=force)
    if as_json:
        out(forms.text(forms.plain(done), indent=2))
        return
    again = ", ".join(map(str, done.requeued_jobs))
    out(f"{done.node} removed" + (f"; queued again: {again}" if again else ""))


@click.group(cls=Verbs, elsewhere={"list": "gpus", "ls": "gpus", "show": "gpus"})
def gpu() -> None:
    """Take single GPUs out of use and in again (admins)."""


def _gpu_verb(name: str, text: str, *, draining: bool) -> None:
    @gpu.command(name, help=text)
    @click.argument("node_name", metavar="NODE")
    @click.argument("indices", metavar="INDEX…", nargs=-1, required=True, type=click.IntRange(0, 1023))
    @click.option("--reason", default="", metavar="TEXT", help="shown to everybody in `hsctl events`")
    @json_option
    @click.pass_context
    def verb(
        ctx: click.Context, /, *, node_name: str, indices: tuple[int, ...], reason: str, as_json: bool
    ) -> None:
        with connected(ctx) as client:
            _told(client.drain_gpus(node_name, indices, drain=draining, reason=reason), as_json=as_json)


_gpu_verb(
    "drain",
    "Take GPUs of NODE out of use: what is on them leaves when its turn ends; what cannot be moved stays until it ends.",
    draining=True,
)
_gpu_verb("undrain", "Take them into use again.", draining=False)


# --- user, policy ----------------------------------------------------------------------------------------------------


@click.group(
    cls=Verbs,
    elsewhere={
        "show": "user list",
        "ls": "user list",
        "add": "user set",
        "create": "user set",
        "delete": "user remove",
    },
)
def user() -> None:
    """List users, set what they have, take them out (admins)."""


@user.command("list")
@click.option("--me", is_flag=True, help="only me")
@list_options
@click.option("--jsonl", is_flag=True, help="one JSON object a line")
@click.pass_context
def list_users(ctx: click.Context, /, *, me: bool, as_json: bool, no_header: bool, jsonl: bool) -> None:
    """List users: their role, tickets, live jobs and what they received; to who is no admin only themselves."""
    if as_json and jsonl:
        raise InvalidError("--json and --jsonl: expected one of them")
    with connected(ctx) as client:
        views = client.users(user=client.whoami() if me else "")
    rows = [forms.plain(view) for view in views]
    show_list(rows, lambda: tables.users(views), as_json=as_json, jsonl=jsonl, no_header=no_header)


@user.command("remove")
@click.argument("name")
@json_option
@click.pass_context
def remove_user(ctx: click.Context, /, *, name: str, as_json: bool) -> None:
    """Take a user out who has no jobs under way: its tokens are revoked, what it received stays in `hsctl usage`."""
    with connected(ctx) as client:
        done = client.remove_user(name)
    if as_json:
        out(forms.text(forms.plain(done), indent=2))
    else:
        revoked = quantities.counted(done.revoked_tokens, "token")
        out(f"{done.name} removed" + (f"; {revoked} revoked" if done.revoked_tokens else ""))
    if done.configured:
        warn(
            f"[users.{done.name}] is still in the controller's configuration: changed there, it makes the user anew"
        )


@user.command("set", stray="expected --tickets {}")
@click.argument("name")
@click.option("--tickets", type=float, metavar="N", help="their share follows these")
@click.option("--run-as", metavar="ACCOUNT", help="the account their jobs run as")
@json_option
@click.pass_context
def set_user(
    ctx: click.Context, /, *, name: str, tickets: float | None, run_as: str | None, as_json: bool
) -> None:
    """Set a user's tickets or account."""
    if tickets is None and run_as is None:
        raise InvalidError("nothing to set: expected --tickets or --run-as")
    if tickets is not None and not quantities.LEAST_TICKETS <= tickets <= quantities.MOST_TICKETS:
        raise InvalidError(f"--tickets {tickets:g}: expected {quantities.TICKETS_EXPECTED}")
    with connected(ctx) as client:
        made = client.set_user(name, tickets=tickets, run_as=run_as)
    if as_json:
        out(forms.text(forms.plain(made), indent=2))
    else:
        out(f"{made.name}: {made.tickets:g} tickets, jobs run as {made.run_as or made.name}")


@click.group(cls=Verbs, elsewhere={"list": "policy show", "ls": "policy show", "get": "policy show"})
def policy() -> None:
    """Show and set the policy that shares the GPUs."""


@policy.command("show")
@json_option
@click.pass_context
def show_policy(ctx: click.Context, /, *, as_json: bool) -> None:
    """Show the policy in force, what it promises, and the others that are there."""
    with connected(ctx) as client:
        view = client.policy()
    if as_json:
        out(forms.text(forms.plain(view), indent=2))
        return
    promises = [
        ("fair", view.fair),
        ("preemptive", view.preemptive),
        ("work-conserving", view.work_conserving),
    ]
    out(f"policy:     {view.name}: {printing.printable(view.text)}")
    out(f"it is:      {', '.join(name if true else f'not {name}' for name, true in promises)}")
    out(f"quantum:    {view.quantum_s:g} s")
    if view.decided_at:
        out(f"decided:    {screen.clock(view.decided_at)}, in {view.decision_s * 1000:.1f} ms")
    if view.deciding_s > view.quantum_s:
        out(
            f"deciding:   for {view.deciding_s:.0f} s now; jobs go on in the turns that it gave last: hsctl policy set NAME"
        )
    if view.given_up:
        out(f"given up:   {view.given_up} decisions have not come to their end: they do with the controller")
    if view.failure:
        out(f"it fails:   {printing.printable(view.failure)}")
        out("            what it said last stands, and nobody is given a home: hsctl policy set NAME")
    out(f"available:  {', '.join(view.available)}")


@policy.command("check")
@click.argument("name")
@click.pass_context
def check_policy(ctx: click.Context, /, *, name: str) -> None:
    """Say whether the controller has the policy NAME; exit status 2 if not."""
    with connected(ctx) as client:
        view = client.policy()
    if name not in view.available:
        hint = quantities.did_you_mean(name, view.available)
        raise InvalidError(f"policy {name!r}: expected one of {', '.join(view.available)}{hint}")
    out(f"{name}: {'in force' if name == view.name else 'available'}")


@policy.command("set", stray="one of them is in office")
@click.argument("name")
@click.pass_context
def set_policy(ctx: click.Context, /, *, name: str) -> None:
    """Put the policy NAME in office; no job is restarted.

    It decides at once: where the one before is at a decision that one is given up. The one that is in office is asked anew where it has been at a
    decision for longer than a quantum. It stays in office over restarts of the controller, until its configuration names another one.
    """
    with connected(ctx) as client:
        before = client.policy()
        if name not in before.available:
            hint = quantities.did_you_mean(name, before.available)
            raise InvalidError(f"policy {name!r}: expected one of {', '.join(before.available)}{hint}")
        view = client.set_policy(name)
    out(
        f"{view.name} is in office"
        + (" as before" if before.name == name else f", in place of {before.name}")
    )
    if before.deciding_s > before.quantum_s:
        out(f"the decision at which {before.name} has been for {before.deciding_s:.0f} s is given up")


# --- backup, restore -------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("file", metavar="FILE", shell_complete=files)
@click.option("--force", is_flag=True, help="replace FILE")
@click.pass_context
def backup(ctx: click.Context, /, *, file: str, force: bool) -> None:
    """Write a consistent copy of all that the controller knows to FILE, or - for standard output."""
    with connected(ctx) as client:
        if file == "-":
            count, digest = _copy(client, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            warn(f"{quantities.size_text(count)}, SHA-256 {digest}")
            return
        path = Path(file).absolute()
        if exists(path) and not force:
            raise InvalidError(f"{path} is there already: expected a new name, or --force")
        with whole_file.written(path, replace=force) as stream:
            count, digest = _copy(client, stream)
    out(f"{path}: {quantities.size_text(count)}, SHA-256 {digest}")


def _copy(client: Client, stream: BinaryIO) -> tuple[int, str]:
    seen, count, promised = hashlib.sha256(), 0, ""
    for chunk in client.backup():
        stream.write(chunk.data)
        seen.update(chunk.data)
        count += len(chunk.data)
        promised = chunk.sha256 or promised
    if seen.hexdigest() != promised:
        raise HeteroShareError(
            "the copy is not whole: it was cut off or changed on its way; nothing was kept"
        )
    return count, promised


@click.command(cls=Command)
@click.argument("file", metavar="FILE", shell_complete=files, required=False)
def restore(file: str | None) -> None:
    """Say how a backup is put back: on the controller's machine, while it is stopped."""
    raise InvalidError(
        "a running controller cannot be given another past: on its machine, as its account:\n"
        f"  systemctl stop hs-controller\n  hs-controller restore --force --from {shlex.quote(file) if file else 'FILE'}\n"
        "  systemctl start hs-controller\n"
        "jobs go on where they are; those that were submitted or moved since the backup do not (docs/controller.md)"
    )
