"""Workloads from wherever they come: our own YAML and CSV, Gavel's and Shockwave's traces, Philly's CSV. Which it is, the file says."""

from dataclasses import replace
from pathlib import Path

from hs_core.errors import RefusedError
from hs_sim.model import Workload
from hs_sim.reading import Sieve, text_of

TRACES = (".trace", ".tsv")


def read(
    path: Path,
    throughputs: Path | None = None,
    gpus_per_server: int = 4,
    sieve: Sieve | None = None,
    first: int = 0,
) -> Workload:
    """`throughputs`: the table beside a trace of Gavel's or Shockwave's. `sieve`: what becomes of bad jobs. `first`: so many jobs, by arrival; 0: all."""
    found = _read(path, throughputs, gpus_per_server, sieve or Sieve())
    if not first or first >= len(found.jobs):
        return found
    jobs = found.jobs[:first]
    users = {job.user for job in jobs}
    tickets = {user: tickets for user, tickets in found.tickets.items() if user in users}
    unnamed = tuple(user for user in found.unnamed if user in users)
    return replace(found, jobs=jobs, tickets=tickets, unnamed=unnamed)


def _read(path: Path, throughputs: Path | None, gpus_per_server: int, sieve: Sieve) -> Workload:
    if throughputs is not None:
        from hs_sim.gavel import load_trace  # noqa: PLC0415 — each format by those who have it

        return load_trace(path, throughputs, gpus_per_server, sieve)
    if path.suffix.lower() in TRACES:
        raise RefusedError(f"{path}: a trace of Gavel's kind; expected --throughputs beside it")
    if path.suffix.lower() == ".csv":
        from hs_sim.philly import is_philly, load_workload  # noqa: PLC0415

        if is_philly(text_of(path)):
            return load_workload(path, gpus_per_server, sieve)
    from hs_sim.files import load  # noqa: PLC0415

    return load(path, sieve)
