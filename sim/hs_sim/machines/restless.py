"""A policy that moves jobs for no reason but trouble: migrations are where things go wrong, and sound policies make few."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hs_core.dice import roll
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Plan, Policy, Snapshot, Verdict
from hs_core.wanted import Turn


def restless(policy: Policy, likely: float) -> Policy:
    """As `policy`; and in each quantum every job that may be moved is, so likely, to other servers that it fits."""

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = policy.decide(snapshot, memory)
        moved = dict(_moved(snapshot, verdict.plan, likely))
        if not moved:
            return replace(verdict, sequel=None)
        plan = verdict.plan
        homes = {**plan.homes, **moved}
        moves = {**plan.moves, **dict.fromkeys(moved, (MoveReason.BALANCE, "for the sake of moving"))}
        turns = {host: _without(turn, moved) for host, turn in plan.turns.items()}
        trials = {job: trial for job, trial in plan.trials.items() if job not in moved}
        made = replace(plan, homes=homes, moves=moves, turns=turns, trials=trials)
        return replace(verdict, sequel=None, plan=made)

    return replace(policy, decide=decide, needs=replace(policy.needs, every_quantum=True))


def _moved(snapshot: Snapshot, plan: Plan, likely: float) -> Iterator[tuple[JobId, tuple[HostName, ...]]]:
    left = snapshot.migrations_left
    for job in snapshot.jobs:
        if left <= 0:
            return
        if not (job.started and job.movable) or job.id in plan.moves or plan.homes.get(job.id) != job.hosts:
            continue
        if job.migrate is Migrate.NEVER:
            continue
        dice = roll(snapshot.seed, "restless", snapshot.quantum, job.id)
        if dice.random() >= likely:
            continue
        able = [host for host in snapshot.hosts if _fits(host, job)]
        if job.migrate is Migrate.SAME_TYPE:
            model = next((host.model for host in snapshot.hosts if host.name == job.host), "")
            able = [host for host in able if host.model == model]
        dice.shuffle(able)
        home = next(
            (h for model in sorted({h.model for h in able}) if (h := _of(able, model, job.nodes))), ()
        )
        if home and home != job.hosts:
            left -= 1
            yield job.id, home


def _of(able: list[HostFacts], model: str, nodes: int) -> tuple[HostName, ...]:
    names = tuple(host.name for host in able if host.model == model)[:nodes]
    return names if len(names) == nodes else ()


def _fits(host: HostFacts, job: JobFacts) -> bool:
    model = not job.gpu_types or host.model in job.gpu_types
    starts = host.starts and host.name not in job.barred
    return host.connected and host.accepts and starts and model and job.per_node <= host.gpus


def _without(turn: Turn, moved: Mapping[JobId, object]) -> Turn:
    """Their GPUs are the other jobs' there: the policy, had it moved them, would have given these to somebody."""
    gangs = tuple(job for job in turn.gangs if job not in moved)
    seats = tuple(seat for seat in turn.seats if seat.job in gangs)
    return turn if gangs == turn.gangs else replace(turn, gangs=gangs, local=True, seats=seats)
