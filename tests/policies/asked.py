"""Gandiva_fair, asked about small clusters in which every cool-down is over."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hs_core.model import MoveReason
from hs_core.names import HostName
from hs_core.policies import find
from hs_core.policy import HostFacts, JobFacts, Snapshot, Verdict

from .worlds import Run, homes_of, job, snapshot  # noqa: TID252 — tests are no package on the path

GANDIVA_FAIR = find("gandiva-fair")
LONG_AGO = 1e6  # seconds: every cool-down is over


def ask(hosts: list[HostFacts], jobs: list[JobFacts], **facts: object) -> Snapshot:
    settled = [replace(one, movable=True) for one in jobs]
    return snapshot(hosts, settled, **{"now_s": LONG_AGO, "migrations_left": 1_000, **facts})  # type: ignore[arg-type]  # the tests' own facts


def at(name: str, *jobs: JobFacts) -> list[JobFacts]:
    return [replace(one, hosts=tuple(map(HostName, name.split("+"))), started=True) for one in jobs]


def run(hosts: list[HostFacts], jobs: list[JobFacts], *, delay: int = 0, **facts: object) -> Run:
    return Run(GANDIVA_FAIR, ask(hosts, jobs, **facts), delay=delay)


def decide(hosts: list[HostFacts], jobs: list[JobFacts], **facts: object) -> Verdict:
    return GANDIVA_FAIR.decide(ask(hosts, jobs, **facts), {})


def moves(verdict: Verdict) -> dict[int, MoveReason]:
    return {int(job_id): reason for job_id, (reason, _) in verdict.plan.moves.items()}


def sweep(first: int, count: int, user: str, gang: int = 1, of: str = "", **facts: object) -> list[JobFacts]:
    return [job(first + n, user, gang, job_class=of or f"{user}/x", **facts) for n in range(count)]


def rates(**classes: Mapping[str, float]) -> dict[tuple[str, str], float]:
    return {(f"{user}/x", model): rate for user, of in classes.items() for model, rate in of.items()}


def where(verdict: Verdict) -> Counter[str]:
    return Counter(homes_of(verdict).values())
