"""A support bundle: what somebody who was not there needs to find a fault, and nothing that is secret."""

import io
import platform
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

from hs_client import forms
from hs_client.api import Client
from hs_client.errors import HeteroShareError, NotAllowedError
from hs_client.limits import MOST_JOBS
from hs_client.version import VERSION
from hs_proto.v1 import controller_pb2 as wire

CONTENTS = "CONTENTS.txt"
OF_THE_CONTROLLER = {
    "configuration.json": "its configuration as it is in force",
    "office.json": "versions, its term and policy, how long the last decision took, jobs by state",
    "metrics.txt": "what Prometheus would read, histograms of decisions, cycles and commits among it",
    "doctor.txt": "what `hs-agent doctor` says there now",
}
NOTICE = """\
Not in it: keys, tokens and their hashes, environments and commands of jobs, what jobs have said.
In it are names: of users, their accounts, jobs, servers, their folders and addresses, and why jobs failed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str  # below the bundle's folder
    what: str
    data: bytes = b""
    missing: str = ""  # why there is nothing


def parts(client: Client, events: int) -> list[Part]:
    """All of it. What cannot be had is named; raises HeteroShareError where the controller cannot be asked at all."""
    own = list(_of_the_controller(client))
    return [
        *own,
        Part(name="hsctl.json", what="the client that made this", data=_json(_about(client))),
        *(_part(name, what, make) for name, what, make in _state(client, events)),
    ]


def _of_the_controller(client: Client) -> Iterator[Part]:
    found: dict[str, list[bytes]] = {}
    missing: dict[str, str] = {}
    for piece in client.support():
        name = _safe(piece.name)
        found.setdefault(name, []).append(piece.data)
        if piece.missing:
            missing[name] = piece.missing
    for name, pieces in found.items():
        what = OF_THE_CONTROLLER.get(PurePosixPath(name).name, "")
        yield Part(name=name, what=what, data=b"".join(pieces), missing=missing.get(name, ""))


def _safe(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise HeteroShareError(f"the controller names a file {name!r}, which is outside of the bundle")
    return str(path)


def _state(client: Client, events: int) -> Sequence[tuple[str, str, Callable[[], bytes]]]:
    def lines(rows: Iterable[forms.Row]) -> bytes:
        return forms.lines(rows).encode()

    return (
        ("state/info.json", "as `hsctl info`", lambda: _json(forms.plain(client.info()))),
        ("state/nodes.jsonl", "servers and GPUs", lambda: lines(map(forms.plain, client.nodes()))),
        (
            "state/jobs.jsonl",
            f"jobs that have not ended, the newest {MOST_JOBS}, without what they said",
            lambda: lines(forms.plain(_quiet(view)) for view in client.jobs(limit=MOST_JOBS)),
        ),
        ("state/users.jsonl", "users, tickets, roles", lambda: lines(map(forms.plain, client.users()))),
        ("state/shares.json", "who is entitled to what", lambda: _json(forms.plain(client.shares()))),
        ("state/trades.jsonl", "trades that stand", lambda: lines(map(forms.plain, client.trades()))),
        ("state/policy.json", "the policy in office", lambda: _json(forms.plain(client.policy()))),
        (
            "state/events.jsonl",
            f"what happened, the newest {events}",
            lambda: lines(map(forms.event, client.events(tail=events))),
        ),
        (
            "state/deeds.jsonl",
            f"what administrators did, the newest {events}",
            lambda: lines(map(forms.event, client.events(tail=events, deeds=True))),
        ),
    )


def _part(name: str, what: str, make: Callable[[], bytes]) -> Part:
    try:
        return Part(name=name, what=what, data=make())
    except NotAllowedError:
        raise  # whoever may not make a bundle gets none
    except HeteroShareError as error:
        return Part(name=name, what=what, missing=str(error))


def _quiet(view: wire.JobView) -> wire.JobView:
    if view.HasField("exit"):
        view.exit.ClearField("log_tail")
    return view


def _about(client: Client) -> dict[str, str]:
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "system": platform.platform(),
        "controller": client.address.target,
        "found_by": client.address.origin,
    }


def _json(value: object) -> bytes:
    return forms.text(value, indent=2).encode() + b"\n"


def write(stream: BinaryIO, folder: str, made: Sequence[Part], now_s: float, title: str) -> None:
    """As .tar.gz, its list of contents first."""
    with tarfile.open(fileobj=stream, mode="w:gz") as bundle:
        listed = Part(name=CONTENTS, what="", data=contents(made, title).encode())
        for part in (listed, *made):
            data = part.data or (f"missing: {part.missing}\n".encode() if part.missing else b"")
            about = tarfile.TarInfo(f"{folder}/{part.name}")
            about.size, about.mtime, about.mode = len(data), int(now_s), 0o600
            bundle.addfile(about, io.BytesIO(data))


def contents(made: Sequence[Part], title: str) -> str:
    widest = max((len(part.name) for part in made), default=0)
    lines = [
        f"{len(part.data):>10}  {part.name:<{widest}}  {part.what}"
        + (f" (missing: {part.missing})" if part.missing else "")
        for part in made
    ]
    return "\n".join([title, "", NOTICE, "     bytes  file", *map(str.rstrip, lines), ""])
