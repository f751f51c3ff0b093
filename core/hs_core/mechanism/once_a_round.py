"""Policies that decide once a round: what changes in between waits for the next edge, but GPUs that would idle are used at once.

Between two edges everybody keeps the GPUs of the round, also who is still on the way to them: not who stays where it is after all, or has got
another home since, where it also stays until the next edge. What is left goes to who waits, by arrival, where that moves nobody: a job with a
process at its home, one without wherever it is fastest. A server that comes, goes, is drained or loses GPUs is no small change: then the round is
decided anew. Who shares GPUs goes on beside the same jobs; who was to join one and is still on the way does so in the next round.

By an order of all jobs who comes in between has the GPUs of those behind it, and these in turn those of others behind them; what is left goes to the first in that order, which may move for it. What jobs
have had or done meanwhile counts at the next edge only: with every report another one would be the first, and be sent where it is not for long.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

from hs_core.mechanism.idle_elsewhere import WITHIN_A_ROUND
from hs_core.mechanism.later import Later
from hs_core.mechanism.placing import Home, by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Memory, Policy, Snapshot, Verdict

Decide = Callable[[Snapshot, Memory], Verdict]
Order = Callable[[Snapshot], Sequence[JobFacts]]


def once_a_round(policy: Policy, order: Order | None = None) -> Policy:
    """`order`: in which the policy serves jobs, if newcomers are not to wait for the next edge behind who comes after them in it."""
    needs = replace(policy.needs, rounds=True)
    decide = partial(_decide, whole=policy.decide, strategies=needs.strategies, order=order)
    return replace(policy, needs=needs, decide=decide)


def _decide(
    snapshot: Snapshot, memory: Memory, *, whole: Decide, strategies: bool, order: Order | None
) -> Verdict:
    servers = _servers(snapshot)
    if memory and memory["round"] == snapshot.quantum and memory["servers"] == servers:
        return _between(snapshot, memory, strategies=strategies, order=order)
    verdict = whole(snapshot, memory.get("policy", {}))
    kept = _kept(snapshot, verdict, verdict.memory, {}, snapshot.now_s)
    return replace(verdict, memory=kept, sequel=None)


def _servers(snapshot: Snapshot) -> int:
    said = [(host.name, host.gpus, host.connected, host.accepts, host.starts) for host in snapshot.hosts]
    return crc32(repr(sorted(said)).encode())


def _kept(
    snapshot: Snapshot, verdict: Verdict, of_policy: Memory, without: Mapping[str, Any], since_s: float
) -> Memory:
    """`without`: homes that the round has for those who have no GPUs."""
    plan = verdict.plan
    # Who runs to be measured has its GPUs for that, and not for the round.
    here = {job for turn in plan.turns.values() for job in turn.gangs} - snapshot.reserved.keys()
    guests: dict[str, dict[str, list[list[int]]]] = {}
    for name, turn in plan.turns.items():
        for guest in turn.guests:
            at = guests.setdefault(str(guest.job), {host: [] for host in plan.homes[guest.job]})
            at[name] = [[int(job), gpus] for job, gpus in zip(guest.beside, guest.gpus, strict=True)]
    return {
        "policy": of_policy,
        "round": snapshot.quantum,
        "since_s": since_s,
        "servers": _servers(snapshot),
        "homes": {**{str(job): list(plan.homes[job]) for job in sorted(here)}, **without},
        "guests": dict(sorted(guests.items())),
    }


def _between(snapshot: Snapshot, memory: Memory, *, strategies: bool, order: Order | None) -> Verdict:
    seats = Seats(snapshot)
    homes = {JobId(int(job)): tuple(map(HostName, home)) for job, home in memory["homes"].items()}
    line = sorted(snapshot.jobs, key=by_arrival) if order is None else order(snapshot)
    guests = memory["guests"]
    alone = {job: home for job, home in homes.items() if str(job) not in guests}
    came = None if order is None else _came(snapshot, memory)
    without, elsewhere, put_aside = _stay(seats, line, alone, came)
    homes = {job: home for job, home in homes.items() if job not in put_aside}
    jobs = {job.id: job for job in snapshot.jobs} if guests else {}
    for job in line if guests else ():
        if (said := guests.get(str(job.id))) is not None:
            beside = {
                HostName(name): {JobId(partner): gpus for partner, gpus in at} for name, at in said.items()
            }
            if not seats.share_again(job, beside, jobs):
                seats.rest(job)
    why = Later(
        lambda: {
            job.id: "the GPUs of its server are others'"
            if job.started
            else "nothing that it could take is idle"
            for job in line
        }
    )
    for job in line:
        if job.id not in homes:
            if not seats.rest(job) and order is not None:
                seats.press_in(job, {})  # also elsewhere: it is in nobody's way
        elif job.id in elsewhere and not seats.rest(job, stays=True):
            without[str(job.id)] = list(homes[job.id])
    within = {
        JobId(int(guest)): JobId(partner)
        for guest, at in guests.items()
        for there in at.values()
        for partner, _ in there
    }
    stays = WITHIN_A_ROUND if order is None else ""
    verdict = seats.verdict({}, why, (), strategies=strategies, within=within, stays=stays)
    return replace(verdict, memory=_kept(snapshot, verdict, memory["policy"], without, memory["since_s"]))


def _came(snapshot: Snapshot, memory: Memory) -> frozenset[JobId]:
    """Within the round, and has not been given a place yet."""
    return frozenset(job.id for job in snapshot.jobs if job.arrival_s > memory["since_s"] and not job.hosts)


def _stay(
    seats: Seats, line: Sequence[JobFacts], homes: Mapping[JobId, Home], came: Container[JobId] | None
) -> tuple[dict[str, Any], set[JobId], set[JobId]]:
    """Everybody keeps the GPUs of the round (`homes`), but for those that somebody of `came` takes who stands before it in `line` (None: nobody may).

    The answer: who is still on the way to its GPUs, by where these are; who stays elsewhere after all; who is put aside.
    """
    without: dict[str, Any] = {}
    elsewhere: set[JobId] = set()
    put_aside: set[JobId] = set()
    claims = Counter[HostName]()
    # Of a thousand jobs most wait.
    line = [job for job in line if job.id in homes or (came is not None and job.id in came)]
    for job in line:
        for name in homes.get(job.id, ()):
            claims[name] += job.per_node
    for job in line:
        if came is not None and job.id in came:
            seats.press_in(job, claims)
        home = homes.get(job.id)
        if home is None:
            continue
        for name in home:
            claims[name] -= job.per_node
        if home != job.hosts and (job.movable or not job.started):  # it is not on its way there any more
            elsewhere.add(job.id)
            if job.started:
                seats.keep(job)
        elif not seats.stay(job, home):
            if came is not None and home == job.hosts and job.going is None:
                put_aside.add(job.id)
                seats.press_in(job, claims)  # at the expense of who comes later still
            else:
                without[str(job.id)] = list(home)
    return without, elsewhere, put_aside
