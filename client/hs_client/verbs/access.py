"""Verbs about who may come in: login, cert, token."""

import os
import sys
import time

import click

from hs_client import address, forms, login, quantities, screen, tables, tls
from hs_client.api import Client
from hs_client.completing import files
from hs_client.errors import FAILED, InvalidError
from hs_client.verbs.common import Verbs, connected, json_option, list_options, out, show_list, span, warn
from hs_client.verbs.strays import Command


@click.command("login", cls=Command)
@click.argument("controller", metavar="HOST:PORT", required=False)
@click.option(
    "--token-file",
    metavar="FILE",
    shell_complete=files,
    help="holds the token; - reads standard input  [asked for]",
)
@click.option("--ca", "ca_file", metavar="FILE", shell_complete=files, help="the cluster's CA certificate")
@click.option("--ca-sha256", metavar="HEX", help="or its SHA-256, as your administrator tells it")
@click.option("--forget", is_flag=True, help="log out: remove what an earlier login stored")
def log_in(
    controller: str | None, token_file: str | None, ca_file: str | None, ca_sha256: str | None, forget: bool
) -> None:
    """Store where the controller is, its CA and your token, after trying them.

    The token comes from your administrator (hsctl token create). Without --ca and --ca-sha256 you are shown the CA's
    hash and asked whether it is the right one.
    """
    if forget:
        if controller or token_file or ca_file or ca_sha256:
            raise InvalidError("--forget: expected nothing else with it")
        out(f"removed {login.file()}" if login.remove() else "nobody was logged in")
        return
    if controller is None:
        raise InvalidError("expected the controller's address, e.g. hsctl login gpu-head:7443")
    if controller.startswith(("unix:", "/", "http://")):
        raise InvalidError(
            f"{controller!r}: expected HOST:PORT: a login is for TLS; a socket knows you anyhow"
        )
    host, port = address.split(controller.removeprefix("https://").rstrip("/"), "address")
    given = login.ca_in(ca_file) if ca_file else ""
    if ca_sha256:
        tls.hash_of(ca_sha256)
    seen = tls.look(f"{host}:{port}", given)
    if not seen.is_controller:
        raise InvalidError(f"{host}:{port}: what answers there is no controller of HeteroShare")
    if ca_sha256:
        tls.check_hash(seen, ca_sha256)
    elif not given:
        _ask(seen)
    made = login.Login(
        controller=f"{host}:{port}",
        ca=seen.ca_pem,
        token=_read_token(token_file),
    )
    _keep(made)


def _ask(seen: tls.Presented) -> None:
    question = (
        f"the CA of {seen.target} has SHA-256\n  {seen.ca_sha256}\nis that what your administrator told you?"
    )
    if not sys.stdin.isatty():
        raise InvalidError(
            f"{seen.target}: expected --ca-sha256 or --ca: nobody is here to say whether {seen.ca_sha256} is right"
        )
    if not click.confirm(question, err=True):
        raise click.Abort


def _read_token(name: str | None) -> str:
    if name is None and sys.stdin.isatty():
        return login.check_token(click.prompt("token", hide_input=True, err=True), "token")
    if name in {None, "-"}:
        return login.check_token(sys.stdin.read(login.MAX_TOKEN + 2), "token on standard input")
    if warning := login.seen_by_all(str(name)):
        warn(warning)
    return login.token_in(str(name))


def _keep(made: login.Login) -> None:
    """Stored only once it has worked."""
    where = address.Address(target=made.controller, token=made.token, ca=made.ca, origin="login")
    with Client(where, timeout_s=10.0) as client:
        info = client.info()
    path = login.write(made)
    out(f"logged in to {made.controller} as {info.you}{' (admin)' if info.admin else ''}; kept in {path}")


@click.command(cls=Command)
@click.argument("controller", metavar="[HOST:PORT]", required=False)
@json_option
@click.pass_context
def cert(ctx: click.Context, /, *, controller: str | None, as_json: bool) -> int:
    """Show what the controller presents: its CA's SHA-256, names and ends; exit status 1 if it is not the CA you trust.

    That is --ca FILE before the verb, else HS_CA, else your login's.
    """
    given = ctx.find_root().obj or {}
    known = login.read()
    asked = controller or given.get("controller") or (known.controller if known else None)
    if not asked:
        raise InvalidError("expected the controller's address, e.g. hsctl cert gpu-head:7443")
    if asked.startswith(("unix:", "/", "http://")):
        raise InvalidError(
            f"{asked!r}: expected HOST:PORT: there is no certificate on a socket or in plaintext"
        )
    host, port = address.split(asked.removeprefix("https://").rstrip("/"), "address")
    whose, ca = _trusted(given.get("ca_file"), known, f"{host}:{port}")
    seen = tls.look(f"{host}:{port}")
    ours = tls.sha256_of(ca) if ca else ""
    row = {
        "controller": seen.target, "ca_sha256": seen.ca_sha256, "ca_not_after": seen.ca_not_after,
        "not_after": seen.not_after, "names": list(seen.names), "uris": list(seen.uris), "tls": seen.protocol,
        "is_controller": seen.is_controller, "trusted": ours == seen.ca_sha256 if ours else None,
    }  # fmt: skip
    if as_json:
        out(forms.text(row, indent=2))
    else:
        out(
            f"controller:   {seen.target} ({seen.protocol}){'' if seen.is_controller else '; not a controller of HeteroShare'}"
        )
        out(f"CA SHA-256:   {seen.ca_sha256}")
        out(f"CA ends:      {_end(seen.ca_not_after)}")
        out(f"certificate:  {', '.join((*seen.names, *seen.uris))}")
        out(f"it ends:      {_end(seen.not_after)}")
        if ours:
            out(f"{whose + ':':13} {'the same CA' if row['trusted'] else 'ANOTHER CA: ' + ours}")
    return FAILED if row["trusted"] is False or not seen.is_controller else 0


def _trusted(ca_file: str | None, known: login.Login | None, target: str) -> tuple[str, str]:
    """The CA that is to be there, in PEM, and who says so; empty: nobody has said."""
    named = ca_file or os.environ.get("HS_CA")
    if named:
        return "--ca" if ca_file else "HS_CA", login.ca_in(named)
    return "your login", known.ca if known and known.controller == target else ""


def _end(at: float) -> str:
    left = at - time.time()
    return f"{screen.clock(at)} ({'in ' + quantities.span_text(left) if left > 0 else 'it has ended'})"


@click.group(
    cls=Verbs,
    elsewhere={"ls": "token list", "add": "token create", "delete": "token revoke", "remove": "token revoke"},
)
def token() -> None:
    """Make, list and revoke tokens: what people log in with from other machines."""


@token.command(stray="expected --for {} for that user's")
@click.option("--for", "user", metavar="NAME", default="", help="somebody else's (admins)  [yours]")
@click.option("--label", metavar="TEXT", default="", help="to tell them apart, e.g. laptop")
@click.option("--valid", metavar="TIME", help="e.g. 30d  [90d]")
@json_option
@click.pass_context
def create(ctx: click.Context, /, *, user: str, label: str, valid: str | None, as_json: bool) -> None:
    """Make a token and print it, once: the controller keeps only its hash."""
    with connected(ctx) as client:
        made = client.create_token(user=user, label=label, valid_s=span("--valid", valid))
    if as_json:
        out(forms.text(forms.token(made.view) | {"token": made.token}, indent=2))
        return
    warn(
        f"token {made.view.id} of {made.view.user}, until {screen.clock(made.view.not_after)}; it is not shown again"
    )
    out(made.token)


@token.command("list")
@click.option("--me", is_flag=True, help="only mine")
@click.option("-u", "--of", "of_user", metavar="NAME", help="only this user's")
@list_options
@click.option("--jsonl", is_flag=True, help="one JSON object a line")
@click.pass_context
def list_tokens(
    ctx: click.Context, /, *, me: bool, of_user: str | None, as_json: bool, no_header: bool, jsonl: bool
) -> None:
    """List your tokens, or for an admin everybody's, and the invitations of nodes that can still be used."""
    if me and of_user:
        raise InvalidError("--me and --of: expected one of them")
    if as_json and jsonl:
        raise InvalidError("--json and --jsonl: expected one of them")
    with connected(ctx) as client:
        reply = client.listed_tokens(user=client.whoami() if me else of_user or "")
    rows = [forms.token(view) for view in reply.tokens]
    show_list(rows, lambda: tables.tokens(reply), as_json=as_json, jsonl=jsonl, no_header=no_header)


@token.command()
@click.argument("token_id", metavar="ID")
@json_option
@click.pass_context
def revoke(ctx: click.Context, /, *, token_id: str, as_json: bool) -> None:
    """Make a token worthless at once; for an admin also an invitation (hsctl node enroll)."""
    with connected(ctx) as client:
        view = client.revoke_token(token_id)
    what = f"the invitation {view.id} of {view.node}" if view.node else f"token {view.id} of {view.user}"
    out(forms.text(forms.token(view), indent=2) if as_json else f"{what} revoked")
