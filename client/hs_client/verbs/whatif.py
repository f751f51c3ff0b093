"""What would another policy have done: the cluster's own jobs again, in the simulator."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from hs_client import quantities
from hs_client.api import Client
from hs_client.errors import ConflictError, HeteroShareError, InvalidError
from hs_client.limits import MOST_JOBS
from hs_client.replay import Past, past
from hs_client.there import exists, is_dir, is_file
from hs_client.verbs.common import connected, json_option, out, span, warn
from hs_client.verbs.strays import Command

_SIMULATOR_NEEDS = ("numpy", "scipy", "ortools")
KEPT_AS = (".yaml", ".yml", ".json")


@click.command(cls=Command, stray="expected --policy {}")
@click.option("--policy", "policies", multiple=True, required=True, metavar="NAME", help="repeat it for more")
@click.option("--since", default="7d", metavar="TIME", help="jobs submitted since  [7d]")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="FILE", help="keep the workload for hs-sim here"
)
@json_option
@click.pass_context
def simulate(
    ctx: click.Context, /, *, policies: tuple[str, ...], since: str, keep: Path | None, as_json: bool
) -> None:
    """Replay the jobs of the last days in the simulator, under the policy in office and under others.

    \b
    hsctl simulate --policy gavel-max-min --policy srtf --since 30d

    Jobs arrive when they could first have run, have the steps they had and all that they declared; speeds are those that were measured. Both are
    simulated: what a real cluster loses to failures and people is in neither.
    """
    missing = [name for name in _SIMULATOR_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConflictError(
            f"{', '.join(missing)} missing: the simulator needs more than hsctl: pip install 'heteroshare[sim]'"
        )
    since_s = span("--since", since)
    if keep is not None:
        _check_keep(keep)
    with connected(ctx) as client:
        view = client.policy()
        for name in policies:
            if name not in view.available:
                hint = quantities.did_you_mean(name, view.available)
                raise InvalidError(f"policy {name!r}: expected one of {', '.join(view.available)}{hint}")
        found = _past(client, since_s)
    if found.left_out:
        one = found.left_out == 1
        warn(
            f"{quantities.counted(found.left_out, 'job')} {'has' if one else 'have'} not trained and {'is' if one else 'are'} left out"
        )
    if found.unknown:
        few = ", ".join(found.unknown[:3]) + (" …" if len(found.unknown) > 3 else "")
        warn(f"strategies that were never measured are left out: {few}")
    with tempfile.TemporaryDirectory(prefix="hsctl-") as folder:
        file = keep or Path(folder) / "workload.yaml"
        try:
            file.write_text(json.dumps(found.workload, indent=1), encoding="utf-8")  # JSON is YAML
        except OSError as error:
            raise InvalidError(f"--keep {str(file)!r}: cannot be written: {error.strerror}") from None
        names = list(dict.fromkeys((view.name, *policies)))
        rows = Path(folder) / "rows.json"
        _run(file, found, names, ("--round-s", f"{view.quantum_s:g}", "--json", str(rows)), quiet=as_json)
        if as_json:
            out(json.dumps([_as_it_was(found), *json.loads(rows.read_text(encoding="utf-8"))], indent=2))
            return
    out(_sentence(found))
    out(_took(found))


def _check_keep(file: Path) -> None:
    """Before jobs are asked for one by one, which may take long."""
    why = ""
    try:
        if is_dir(file):
            why = "it is a folder"
        elif not exists(file):
            with tempfile.TemporaryFile(dir=file.parent):
                pass
        elif is_file(file):
            with file.open("r+b"):
                pass
        else:
            why = "it is no plain file"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise InvalidError(f"--keep {str(file)!r}: cannot be written: {why}")
    if file.suffix not in KEPT_AS:
        raise InvalidError(
            f"--keep {str(file)!r}: expected a name that ends in {', '.join(KEPT_AS)}: hs-sim goes by it"
        )


def _past(client: Client, since_s: float) -> Past:
    begin = client.now_s() - since_s
    views = [job for job in client.jobs(ended=True, limit=MOST_JOBS) if job.submitted_at >= begin]
    if len(views) >= MOST_JOBS:
        warn(f"the newest {MOST_JOBS} jobs, not all of that time, are replayed")
    tickets = {row.user: row.tickets for row in client.shares().shares if row.tickets > 0}
    return past([client.job(job.id) for job in views], client.nodes(), tickets)


def _run(file: Path, found: Past, names: list[str], words: Sequence[str], *, quiet: bool) -> None:
    """hs-sim's own table is the answer."""
    costs = [word for name, seconds in found.costs.items() for word in (f"--{name}-s", f"{seconds:.6g}")]
    done = subprocess.run(
        [
            sys.executable, "-m", "hs_sim", "compare", "--policies", ",".join(names), "--trace", str(file),
            "--cluster", found.cluster, "--known-rates", "--skip-bad", *costs, *words,
        ],
        stdout=subprocess.DEVNULL if quiet else None,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise HeteroShareError(f"hs-sim ended with {done.returncode}; its reason is above")


def _as_it_was(found: Past) -> dict[str, object]:
    return {
        "policy": "as it was",
        "jobs": found.jobs,
        "finished": found.ended,
        "mean_jct_s": found.mean_jct_s,
        "makespan_s": found.makespan_s,
        **{f"{name}_s": found.costs.get(name) for name in ("start", "suspend", "resume")},
    }


def _took(found: Past) -> str:
    """What switches are taken to cost, and why."""
    of = {"start": f"median of {found.starts}", "suspend": "in the mean", "resume": "in the mean"}
    measured = [
        f"a {name} {quantities.span_text(round(seconds, 2))} ({of[name]})"
        for name, seconds in found.costs.items()
    ]
    usual = [name for name in of if name not in found.costs]
    words = [f"as measured, {', '.join(measured)}"] if measured else []
    words += [f"as hs-sim has it, a {' and a '.join(usual)}, which nobody saw"] if usual else []
    return f"taken to last: {'; '.join(words)}"


def _sentence(found: Past) -> str:
    if found.mean_jct_s is None or found.makespan_s is None:
        return f"as it was: none of {quantities.counted(found.jobs, 'job')} has ended yet"
    return (
        f"as it was: {found.ended} of {quantities.counted(found.jobs, 'job')} ended, "
        f"mean time to completion {quantities.span_text(found.mean_jct_s)}, all within {quantities.span_text(found.makespan_s)}"
    )
