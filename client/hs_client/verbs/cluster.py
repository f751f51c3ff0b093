"""Verbs about the cluster: share, usage, gpus, nodes, trades, events, info, doctor."""

from collections.abc import Callable, Iterator
from typing import Any

import click

from hs_client import forms, job_words, printing, quantities, screen, tables
from hs_client.api import Client
from hs_client.errors import FAILED, InvalidError
from hs_client.limits import MOST_JOBS, MOST_TRADES
from hs_client.verbs import common
from hs_client.verbs.common import connected, json_option, list_options, out, present, watch_options
from hs_client.verbs.strays import Command
from hs_client.version import VERSION
from hs_proto import dialect
from hs_proto.v1 import controller_pb2 as wire


@click.command(cls=Command, stray="it shows all users, or yours alone with --me")
@click.option("--window", metavar="TIME", help="mean over this time, e.g. 10m  [60s]")
@click.option("--me", is_flag=True, help="only mine")
@list_options
@watch_options
@click.pass_context
def share(ctx: click.Context, /, *, window: str | None, me: bool, **how: Any) -> None:
    """Show who is entitled to how many GPUs, and who gets them."""
    window_s = common.span("--window", window)
    with connected(ctx, patient=how["watch"]) as client:
        user = client.whoami() if me else ""

        def fetch() -> tuple[list[forms.Row], Callable[[], screen.Table]]:
            reply = client.shares(window_s=window_s)
            if me:
                mine = [row for row in reply.shares if row.user == user]
                del reply.shares[:]
                reply.shares.extend(mine)
            return forms.shares(reply), lambda: tables.share(reply)

        present(fetch, **how)


@click.command(cls=Command, stray="expected --of {} for that user alone")
@click.option("--since", metavar="TIME", help="of the last 1h, 7d, …  [all]")
@click.option("--me", is_flag=True, help="only mine")
@click.option("-u", "--of", "of_user", metavar="NAME", help="only this user's")
@list_options
@click.option("--jsonl", is_flag=True, help="one JSON object a line")
@click.pass_context
def usage(
    ctx: click.Context,
    /,
    *,
    since: str | None,
    me: bool,
    of_user: str | None,
    as_json: bool,
    no_header: bool,
    jsonl: bool,
) -> None:
    """Show the GPU time users received."""
    if me and of_user:
        raise InvalidError("--me and --of: expected one of them")
    since_s = common.span("--since", since)
    with connected(ctx) as client:
        rows = client.usage(user=client.whoami() if me else of_user or "", since_s=since_s)
    made = [forms.usage(row) for row in rows]
    common.show_list(made, lambda: tables.usage(rows), as_json=as_json, jsonl=jsonl, no_header=no_header)


LISTED_TRADES = 1000  # where nobody says how many
CERTIFICATE_LOW_S = 2 * 86400.0  # agents renew theirs, of 7 days, when a third is left


@click.command(cls=Command, stray="it lists those of all servers")
@click.option("--me", is_flag=True, help="only those that run or keep my jobs")
@list_options
@watch_options
@click.pass_context
def gpus(ctx: click.Context, /, *, me: bool, **how: Any) -> None:
    """List GPUs and who is on them."""
    with connected(ctx, patient=how["watch"]) as client:
        user = client.whoami() if me else ""

        def fetch() -> tuple[list[forms.Row], Callable[[], screen.Table]]:
            live = client.jobs(limit=MOST_JOBS)  # the newest, where there are more
            own = client.jobs(user=user, limit=MOST_JOBS) if me else []
            epochs, mine = {job.id: job.epoch for job in [*live, *own]}, {job.id for job in own}
            rows = [row for node in client.nodes() for row in forms.gpus(node, epochs)]
            if me:
                rows = [row for row in rows if mine & {job["id"] for job in row["jobs"]}]
            return rows, lambda: tables.gpus(rows)

        present(fetch, **how)


@click.command(cls=Command, stray="it lists all servers")
@click.option("--me", is_flag=True, help="only those that run or keep my jobs")
@list_options
@watch_options
@click.pass_context
def nodes(ctx: click.Context, /, *, me: bool, **how: Any) -> None:
    """List servers."""
    with connected(ctx, patient=how["watch"]) as client:
        user = client.whoami() if me else ""

        def fetch() -> tuple[list[forms.Row], Callable[[], screen.Table]]:
            reply, live = client.listed_nodes(), client.jobs(limit=MOST_JOBS)
            own = client.jobs(user=user, limit=MOST_JOBS) if me else []
            if me:
                mine = {host for job in own for host in forms.homes(job)}
                views = [view for view in reply.nodes if view.name in mine]
                del reply.nodes[:]
                reply.nodes.extend(views)
            epochs = {job.id: job.epoch for job in [*live, *own]}
            return [forms.node(view, epochs) for view in reply.nodes], lambda: tables.nodes(reply)

        present(fetch, **how)


@click.command(cls=Command, stray="it lists those of all users, or yours alone with --me")
@click.option("-a", "--all", "undone", is_flag=True, help="undone ones too")
@click.option("--me", is_flag=True, help="only mine")
@click.option("-n", "--limit", type=click.IntRange(1, MOST_TRADES), metavar="N", help="the newest N  [1000]")
@list_options
@watch_options
@click.pass_context
def trades(ctx: click.Context, /, *, undone: bool, me: bool, limit: int | None, **how: Any) -> None:
    """List trades: who gives fast GPUs and receives slow ones, of whom, and at what price."""
    with connected(ctx, patient=how["watch"]) as client:
        user = client.whoami() if me else ""

        def fetch() -> tuple[list[forms.Row], Callable[[], screen.Table]]:
            views = client.trades(undone=undone, limit=MOST_TRADES if me else limit or 0)
            if me:
                mine = [view for view in views if user in {view.gives, view.receives}]
                views = mine[-(limit or LISTED_TRADES) :]
            return [forms.trade(view) for view in views], lambda: tables.trades(views)

        present(fetch, **how)


@click.command(cls=Command, stray="expected --job {} for those about a job, --of {} for those about a user")
@click.option("-f", "--follow", is_flag=True, help="go on with what happens from now")
@click.option("-j", "--job", metavar="JOB", help="only about this job")
@click.option("-u", "--of", "of_user", metavar="NAME", help="only about this user")
@click.option("--me", is_flag=True, help="only about me")
@click.option("--deeds", is_flag=True, help="only what administrators did")
@click.option("-n", "--tail", type=click.IntRange(1, 100_000), metavar="N", help="the newest N  [1000]")
@click.option(
    "--after", "after_seq", type=click.IntRange(0, 2**63 - 1), metavar="SEQ", help="only later than this one"
)
@click.option("--jsonl", is_flag=True, help="one JSON object a line")
@json_option
@click.option("--no-header", is_flag=True, expose_value=False, help="as every list; there is none")
@click.pass_context
def events(
    ctx: click.Context, /, *, follow: bool, job: str | None, of_user: str | None, me: bool, deeds: bool,
    tail: int | None, after_seq: int | None, jsonl: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print what happened, oldest first."""
    if as_json and follow:
        raise InvalidError("--json prints one answer: expected --jsonl with --follow")
    if me and of_user:
        raise InvalidError("--me and --of: expected one of them")
    if tail is not None and after_seq is not None:
        raise InvalidError("--tail and --after: expected one of them")
    with connected(ctx) as client:
        found = client.events(
            job_id=job_words.one_job(client, job) if job else 0,
            user=client.whoami() if me else of_user or "",
            after_seq=after_seq,
            tail=tail or 0,
            follow=follow,
            deeds=deeds,
        )
        if as_json:
            out(forms.text([forms.event(event) for event in found], indent=2))
            return
        if not follow and not jsonl:
            lines = tables.event_lines(list(found))
            for line in lines:
                out(line)
            if not lines:
                click.echo("no events", err=True)
            return
        columns = tables.EventColumns()
        for event in found:
            print(forms.text(forms.event(event)) if jsonl else columns.line(event), flush=follow)


@click.command(cls=Command)
@json_option
@click.pass_context
def info(ctx: click.Context, /, *, as_json: bool) -> None:
    """Show the controller, and whom it takes you for."""
    with connected(ctx) as client:
        reply, target = client.info(), client.address.target
    if as_json:
        out(forms.text(forms.plain(reply) | {"controller": target, "client_version": VERSION}, indent=2))
        return
    out(
        f"controller: {target} (version {reply.version}, term {reply.term}, up {quantities.span_text(reply.uptime_s)})"
    )
    out(
        f"policy:     {reply.policy}, quantum {reply.quantum_s:g} s{', read-only just now' if reply.read_only else ''}"
    )
    out(f"you:        {reply.you}{' (admin)' if reply.admin else ''}")


@click.command(cls=Command, stray="it looks at all of them; `hs-agent doctor` on a server looks at that one")
@json_option
@click.pass_context
def doctor(ctx: click.Context, /, *, as_json: bool) -> int:
    """Check that all is well; exit status 1 if something is not."""
    with connected(ctx) as client:
        checks = _checks(client)
    if as_json:
        out(forms.text(checks, indent=2))
    for check in checks if not as_json else ():
        out(f"{check['result']:<5} {check['what']}: {printing.printable(check['text'])}")
        if check["fix"]:
            out(f"      {check['fix']}")
    return FAILED if any(check["result"] == "fail" for check in checks) else 0


def _checks(client: Client) -> list[dict[str, str]]:
    reply = client.info()
    you = _check("ok", "you", f"{reply.you}{' (admin)' if reply.admin else ''}")
    listed = client.listed_nodes()
    none = _check("fail", "nodes", "none has joined", "start hs-agent on a GPU host")
    return [
        *_checks_of_controller(client, reply),
        *_checks_of_policy(client.policy()),
        you,
        *([] if listed.nodes else [none]),
        *(check for node in listed.nodes for check in _checks_of(node, reply.version, listed.wall_now)),
    ]


def _checks_of_controller(client: Client, reply: wire.InfoReply) -> Iterator[dict[str, str]]:
    up = quantities.span_text(reply.uptime_s)
    yield _check("ok", "controller", f"answers at {client.address.target}, up {up}")
    unlike = dialect.unlike(
        dialect.Speaker("the controller", reply.version, reply.dialect),
        dialect.Speaker("this hsctl", VERSION, dialect.of_clients()),
    )
    same = not unlike and _alike(reply.version, VERSION)
    fix = "" if same else "install the same version of heteroshare here and there"
    text = unlike or f"controller {reply.version}, hsctl {VERSION}"
    yield _check("ok" if same else "warn", "version", text, fix)
    if reply.read_only:
        fix = "free space on the controller's disk; its log says more"
        yield _check("fail", "store", "cannot be written just now", fix)


def _checks_of_policy(policy: wire.PolicyView) -> Iterator[dict[str, str]]:
    another = "put another one in office: hsctl policy set NAME"
    if policy.failure:
        yield _check("fail", "policy", f"it fails: {policy.failure}", another)
    if policy.deciding_s > policy.quantum_s:
        text = f"it has been deciding for {policy.deciding_s:.0f} s"
        yield _check("fail", "policy", text, f"{another} (the same one is asked anew)")
    if policy.given_up:
        text = f"{policy.given_up} of the decisions that were given up have not come to their end"
        yield _check("warn", "policy", text, "they end with the controller: restart it when it suits you")


def _alike(one: str, other: str) -> bool:
    """Versions between which nothing that is said changes."""
    return one.split(".")[:2] == other.split(".")[:2]


def _checks_of(node: wire.NodeView, version: str, wall_now_s: float) -> list[dict[str, str]]:
    """`version` and `wall_now_s`: the controller's."""
    bad = [gpu for gpu in node.gpus if not gpu.healthy]
    result = "ok" if node.state == "up" and not (bad or node.warnings or node.draining) else "warn"
    fix = ""
    emptied = node.draining and not node.jobs and not node.needed_by  # to be switched off
    if node.state != "up" and not emptied:
        result = "fail"
        fix = f"start hs-agent there, its log says why it stopped; `hsctl node remove {node.name}` takes out one that will not come back"
    found = [
        _check(
            result,
            f"node {node.name}",
            f"{tables.node_state(node)}, {len(node.gpus) - len(bad)} of {len(node.gpus)} GPUs healthy",
            fix,
        )
    ]
    found += [_check("fail", f"gpu {node.name}/{gpu.index}", gpu.why_unhealthy or "unhealthy") for gpu in bad]
    found += [_check("warn", f"node {node.name}", warning) for warning in node.warnings]
    left_s = node.certificate_until - wall_now_s
    if node.certificate_until and left_s < CERTIFICATE_LOW_S:
        text = (
            f"its certificate ends in {quantities.span_text(left_s)}"
            if left_s > 0
            else "its certificate has ended"
        )
        found.append(
            _check(
                "warn" if left_s > 0 or emptied else "fail",
                f"node {node.name}",
                text,
                "see its agent's log; `hsctl node enroll` makes a new one",
            )
        )
    if node.version and not _alike(node.version, version):
        text = f"its agent is of version {node.version}, the controller of {version}"
        fix = "install the same version of heteroshare here and there: the controller first, then the agents (docs/controller.md)"
        found.append(_check("warn", f"node {node.name}", text, fix))
    return found


def _check(result: str, what: str, text: str, fix: str = "") -> dict[str, str]:
    return {"result": result, "what": what, "text": text, "fix": fix}
