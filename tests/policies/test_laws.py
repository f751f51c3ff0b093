"""What holds for every policy in the table, from its first day."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import strategies as st

from hs_core.errors import RefusedError
from hs_core.mechanism.placing import takes_new
from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies import POLICIES, find
from hs_core.policy import HostFacts, JobFacts, Policy, Snapshot, Verdict
from hs_core.wanted import Turn
from tests.policies.lawful import law
from tests.policies.worlds import (
    Strides,
    after,
    fits,
    having,
    on_four_gpus,
    snapshots,
    upset,
)

FAIR = [policy for policy in POLICIES.values() if policy.needs.fair]


def in_turn(verdict: Verdict) -> set[JobId]:
    return {job for turn in verdict.plan.turns.values() for job in turn.gangs}


@law(snapshots())
def test_every_plan_passes_the_check(policy: Policy, asked: Snapshot) -> None:
    check(asked, policy.decide(asked, {}).plan, policy.needs)


@law(snapshots())
def test_no_gpu_is_promised_twice_and_gangs_are_whole_or_absent(policy: Policy, asked: Snapshot) -> None:
    plan = policy.decide(asked, {}).plan
    jobs = {job.id: job for job in asked.jobs}
    placed = Counter(job for turn in plan.turns.values() for job in turn.gangs)
    assert all(times == len(plan.homes[job]) for job, times in placed.items())
    assert all(len(home) == plan.nodes(jobs[job]) or job in plan.copies for job, home in plan.homes.items())
    for host in asked.hosts:  # `gpus` counts healthy ones only: the others are unused
        turn = plan.turns.get(host.name, Turn())
        shared = sum(sum(guest.gpus) for guest in turn.guests)
        assert sum(plan.per_node(jobs[job]) for job in turn.gangs) - shared <= host.gpus


@law(snapshots())
def test_the_same_question_gets_the_same_answer(policy: Policy, asked: Snapshot) -> None:
    assert policy.decide(asked, {}) == policy.decide(asked, {})


@law(snapshots(), st.randoms(use_true_random=False))
def test_the_order_of_a_snapshot_does_not_matter(policy: Policy, asked: Snapshot, dice: Random) -> None:
    jobs, hosts, tickets = list(asked.jobs), list(asked.hosts), list(asked.tickets.items())
    for things in (jobs, hosts, tickets):
        dice.shuffle(things)
    shuffled = having(asked, jobs=tuple(jobs), hosts=tuple(hosts), tickets=dict(tickets))
    assert policy.decide(asked, {}) == policy.decide(shuffled, {})


@law(snapshots(), st.fractions(Fraction(1, 100), Fraction(100), max_denominator=100))
def test_scaling_all_tickets_changes_nothing(policy: Policy, asked: Snapshot, by: Fraction) -> None:
    scaled = replace(asked, tickets={user: tickets * by for user, tickets in asked.tickets.items()})
    assert policy.decide(asked, {}) == policy.decide(scaled, {})


def without(turn: Turn, guests: Collection[JobId]) -> Turn:
    return replace(
        turn,
        gangs=tuple(job for job in turn.gangs if job not in guests),
        guests=tuple(guest for guest in turn.guests if guest.job not in guests),
    )


@law(snapshots())
def test_deciding_again_with_nothing_changed_moves_nobody(policy: Policy, asked: Snapshot) -> None:
    first = policy.decide(asked, {})
    ran = Strides().run(asked, first.plan)
    again = policy.decide(after(asked, first, ran, quanta=0), first.memory).plan
    # Who has just started may have a guest now, or be copied as was planned, from where it is.
    came = again.homes.keys() - first.plan.homes.keys() if policy.needs.sharing else set()
    assert came <= {guest.job for turn in again.turns.values() for guest in turn.guests}
    copied = again.copies.keys() - first.plan.copies.keys()
    assert all(again.homes[job][:1] == first.plan.homes[job] for job in copied)
    others = {job: home for job, home in again.homes.items() if job not in came | copied}
    assert others == {job: home for job, home in first.plan.homes.items() if job not in copied}
    before = {name: without(turn, copied) for name, turn in first.plan.turns.items()}
    assert {name: without(turn, came | copied) for name, turn in again.turns.items()} == before
    # Their users' tickets are divided among one job more.
    users = {job.user for job in asked.jobs if job.id in came}
    known = {job.id for job in asked.jobs if job.user not in users}
    tickets = [
        {job: plan.tickets[job] for job in plan.tickets.keys() & known} for plan in (first.plan, again)
    ]
    assert tickets[0] == tickets[1]


@law(snapshots(), st.integers(1, 6))
def test_laws_hold_from_quantum_to_quantum(policy: Policy, asked: Snapshot, quanta: int) -> None:
    strides = Strides()
    verdict = Verdict(plan=policy.decide(asked, {}).plan)
    for _ in range(quanta):
        memory = json.loads(json.dumps(verdict.memory))
        verdict = policy.decide(asked, memory)
        check(asked, verdict.plan, policy.needs)
        for job in asked.jobs:
            known = {host.name for host in asked.hosts}.issuperset(job.hosts)
            if job.started and known and not job.movable:
                assert verdict.plan.homes[job.id] == job.hosts
        asked = after(asked, verdict, strides.run(asked, verdict.plan))


@law(snapshots(), st.data())
def test_a_plan_passes_the_check_whatever_became_of_the_cluster_since_the_decision_before(
    policy: Policy, asked: Snapshot, data: st.DataObject
) -> None:
    first = policy.decide(asked, {})
    then = upset(data.draw, after(asked, first, Strides().run(asked, first.plan), quanta=0))
    check(then, policy.decide(then, json.loads(json.dumps(first.memory))).plan, policy.needs)


@law(snapshots())
def test_memory_survives_json(policy: Policy, asked: Snapshot) -> None:
    memory = policy.decide(asked, {}).memory
    assert json.loads(json.dumps(memory)) == memory


@law(snapshots())
def test_who_does_not_run_is_told_why_in_one_line(policy: Policy, asked: Snapshot) -> None:
    verdict = policy.decide(asked, {})
    runs = in_turn(verdict)
    if all(turn.local for turn in verdict.plan.turns.values()):
        # A gang over several servers runs in turns that it was given, and never by a server's own stride.
        runs = {
            job.id for job in asked.jobs if job.id in asked.running and (job.nodes == 1 or job.id in runs)
        }
    assert verdict.why.keys() == {job.id for job in asked.jobs} - runs
    assert verdict.how.keys() <= runs, "how a job runs is said of those that do"
    assert all(line and "\n" not in line for line in [*verdict.why.values(), *verdict.how.values()])


@law(snapshots())
def test_what_cannot_be_suspended_stays_in_its_turn(policy: Policy, asked: Snapshot) -> None:
    plan = policy.decide(asked, {}).plan
    hosts = {host.name: host for host in asked.hosts}
    for job in asked.jobs:
        if job.started and job.id in asked.running and not job.sliceable and hosts.keys() >= set(job.hosts):
            turns = [plan.turns.get(name, Turn()) for name in job.hosts]
            assert all((turn.local and job.nodes == 1) or job.id in turn.gangs for turn in turns)


@law(snapshots())
def test_a_server_that_is_away_keeps_its_jobs_and_what_runs_there(policy: Policy, asked: Snapshot) -> None:
    plan = policy.decide(asked, {}).plan
    hosts = {host.name for host in asked.hosts}
    away = {host.name for host in asked.hosts if not host.connected}
    for job in asked.jobs:
        if away.intersection(job.hosts) and hosts.issuperset(job.hosts):
            assert plan.homes[job.id] == job.hosts
            turns = [plan.turns.get(name, Turn()) for name in job.hosts]
            assert job.id not in asked.running or all(turn.local or job.id in turn.gangs for turn in turns)
        elif plan.homes.get(job.id) != job.hosts:
            assert not away.intersection(plan.homes.get(job.id, ()))


def leaves(job: JobFacts, hosts: Mapping[HostName, HostFacts]) -> bool:
    """Its GPUs wait for it where it goes; not while a server that it is to leave is away."""
    return hosts.keys() >= set(job.hosts) and all(hosts[name].connected for name in job.hosts)


def is_seen_not_to_run(policy: Policy, asked: Snapshot, job_class: str, model: str) -> bool:
    """Its rate there is 0; or, to policies that measure, a job of that class took more memory than GPUs of that model have, whatever others of it say."""
    if (rate := asked.rates.get((job_class, model))) is not None or policy.needs.profiles is None:
        return rate == 0.0
    takes = [job.memory_bytes for job in asked.jobs if job.started and job.job_class == job_class]
    return max(takes, default=0) > max(host.gpu_memory_bytes for host in asked.hosts if host.model == model)


@law(snapshots(), policies=[policy for policy in POLICIES.values() if policy.needs.work_conserving])
def test_no_gpu_idles_while_a_job_could_use_it_where_that_is_claimed(policy: Policy, asked: Snapshot) -> None:
    plan = policy.decide(asked, {}).plan
    ran = Strides().run(asked, plan)
    jobs = {job.id: job for job in asked.jobs}
    free = {h.name: h.gpus - sum(plan.per_node(jobs[job]) for job in ran[h.name]) for h in asked.hosts}
    for name, turn in plan.turns.items():
        free[name] += sum(sum(guest.gpus) for guest in turn.guests)
    hosts = {host.name: host for host in asked.hosts}
    running = {job for jobs_there in ran.values() for job in jobs_there}
    on_their_way = {job.id: job.going for job in asked.jobs if job.going is not None and leaves(job, hosts)}
    for going in on_their_way.values():
        for name in going.hosts:
            free[name] -= going.gpus
    for job in asked.jobs:
        if job.id in {*running, *on_their_way} or not hosts.keys() >= set(job.hosts):
            continue
        if (home := plan.homes.get(job.id)) is not None:
            nowhere = any(
                is_seen_not_to_run(policy, asked, job.job_class, hosts[name].model) for name in home
            )
            if not nowhere and all(hosts[name].connected for name in home):
                assert any(free[name] < plan.per_node(job) for name in home)
            continue
        room = Counter(
            h.model
            for h in asked.hosts
            if takes_new(h) and fits(job, h) and free[h.name] >= job.per_node
            if not is_seen_not_to_run(policy, asked, job.job_class, h.model)
        )
        assert max(room.values(), default=0) < job.nodes


@law(
    st.sampled_from([1, 2, 4]),
    st.lists(st.tuples(st.integers(1, 6), st.integers(50, 400)), min_size=1, max_size=4),
    policies=FAIR,
    examples=60,
)
def test_long_run_shares_are_within_a_quantum_of_entitlement(
    policy: Policy, gang: int, users: list[tuple[int, int]]
) -> None:
    names = "ABCD"[: len(users)]
    asked = on_four_gpus(
        {name: (gang, jobs) for name, (jobs, _) in zip(names, users, strict=True)},
        {name: tickets for name, (_, tickets) in zip(names, users, strict=True)},
    )
    user_of = {job.id: job.user for job in asked.jobs}
    verdict, strides, got = policy.decide(asked, {}), Strides(), Counter[str]()
    for quantum in range(1, 101):
        for jobs in strides.run(asked, verdict.plan).values():
            got.update({user: gang * sum(user_of[job] == user for job in jobs) for user in names})
        for name, (jobs_of, _) in zip(names, users, strict=True):
            entitled = verdict.entitled[user_of[next(j.id for j in asked.jobs if j.user == name)], "V100"]
            # A quantum of each of its jobs, and one for the order among users: no more is lost to the grain of time.
            assert abs(got[name] - quantum * entitled) <= gang * (jobs_of + 1)


@law(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 3), st.integers(50, 400)), min_size=2, max_size=4
    ),
    policies=FAIR,
)
def test_mixed_gangs_share_by_tickets_where_every_user_could_fill_the_server(
    policy: Policy, users: list[tuple[int, int, int]]
) -> None:
    names = "ABCD"[: len(users)]
    sizes = {name: (gang, 4 // gang + more) for name, (gang, more, _) in zip(names, users, strict=True)}
    asked = on_four_gpus(sizes, {name: tickets for name, (_, _, tickets) in zip(names, users, strict=True)})
    facts = {job.id: job for job in asked.jobs}
    verdict, strides, got = policy.decide(asked, {}), Strides(), Counter[str]()
    quanta = 300
    for _ in range(quanta):
        for jobs in strides.run(asked, verdict.plan).values():
            for job in jobs:
                got[facts[job].user] += facts[job].gang
    for user, model in verdict.entitled:
        assert got[user] / quanta == pytest.approx(float(verdict.entitled[user, model]), rel=0.03)


def test_policies_are_found_by_name() -> None:
    assert all(find(name) is policy and policy.name == name for name, policy in POLICIES.items())


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        RefusedError, match=r"'gandiva-fare'; there are allox, .*; did you mean gandiva-fair\?"
    ):
        find("gandiva-fare")
    with pytest.raises(RefusedError, match=rf"there are {', '.join(sorted(POLICIES))}$"):
        find("zzz")
