"""Policies that decide once a round: between two edges nobody is put aside or moved, and no GPU idles that somebody could use."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.names import HostName, JobId
from hs_core.policies import POLICIES, find
from hs_core.policy import JobFacts, Policy, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.metrics import summarize
from hs_sim.model import Costs, Experiment, SimJob, Workload
from hs_sim.quanta import run_quanta
from tests.policies.lawful import law
from tests.policies.worlds import Strides, after, having, homes_of, host, job, snapshot, snapshots

IN_ORDER = [
    find(name) for name in ("las", "srtf", "srsf")
]  # these give who comes within a round the GPUs of those behind it
OF_THEIR_OWN = {"hadar", "hadar-exact", "hadare", "pal"}  # they see themselves to what becomes of a round
ROUNDS = [
    policy
    for policy in POLICIES.values()
    if policy.needs.rounds and policy not in IN_ORDER and policy.name not in OF_THEIR_OWN
]
every_policy_in_order = pytest.mark.parametrize("policy", IN_ORDER, ids=lambda policy: policy.name)
every_round_policy = pytest.mark.parametrize("policy", ROUNDS, ids=lambda policy: policy.name)
FFT = find("fft")


def runs(verdict: Verdict) -> set[JobId]:
    return {job for turn in verdict.plan.turns.values() for job in turn.gangs}


def followed(asked: Snapshot, verdict: Verdict) -> Snapshot:
    """In the same round, with all where they were sent."""
    return after(asked, verdict, Strides().run(asked, verdict.plan), quanta=0)


def sized(at: int, gang: int = 1, **facts: object) -> JobFacts:
    return replace(job(at, f"u{at}", gang, **facts), steps=1e4, job_class="c")


def test_the_policies_of_papers_that_decide_in_rounds_do_so() -> None:
    assert {policy.name for policy in ROUNDS} >= {"fft", "pop", "gavel-max-min", "gavel-ftf", "tesserae-las"}
    assert not any(find(name).needs.rounds for name in ("gandiva-fair", "fifo", "sjf-bsbf", "lottery"))


@every_round_policy
@settings(max_examples=15, deadline=None)
@given(snapshots())
def test_between_edges_nobody_is_put_aside_or_moved_for_a_newcomer(policy: Policy, asked: Snapshot) -> None:
    first = policy.decide(asked, {})
    new = sized(99, 1, arrival_s=asked.now_s)
    there = followed(asked, first)
    users = {**asked.tickets, new.user: next(iter(asked.tickets.values()), 1)}
    second = policy.decide(having(there, jobs=(*there.jobs, new), tickets=users), first.memory)
    assert runs(first) <= runs(second)
    assert {job: second.plan.homes.get(job) for job in first.plan.homes} == dict(first.plan.homes)
    assert not second.plan.moves


def test_a_newcomer_has_an_idle_gpu_at_once() -> None:
    asked = snapshot([host("h", 2)], [sized(1)], rates={("c", "V100"): 1.0})
    first = FFT.decide(asked, {})
    there = followed(asked, first)
    new = sized(2, arrival_s=5.0)
    second = FFT.decide(
        having(there, jobs=(*there.jobs, new), tickets={**there.tickets, new.user: 1}), first.memory
    )
    assert homes_of(second) == {1: "h", 2: "h"}
    assert runs(second) == {1, 2}
    # And keeps it, as long as the round lasts.
    assert runs(
        FFT.decide(
            replace(
                followed(there, second),
                jobs=followed(having(there, jobs=(*there.jobs, new)), second).jobs,
                tickets={**there.tickets, new.user: 1},
            ),
            second.memory,
        )
    ) == {1, 2}


def test_on_full_gpus_a_newcomer_waits_for_the_next_round_and_is_told_so() -> None:
    srtf = find("tesserae-srtf")
    asked = snapshot([host("h", 1)], [replace(sized(1), steps=1e6)], rates={("c", "V100"): 1.0})
    first = srtf.decide(asked, {})
    there = followed(asked, first)
    new = replace(sized(2, arrival_s=5.0), steps=10.0)
    later = having(there, jobs=(*there.jobs, new), tickets={**there.tickets, new.user: 1})
    second = srtf.decide(later, first.memory)
    assert runs(second) == {1}
    assert "next round" in second.why[JobId(2)]
    third = srtf.decide(replace(later, quantum=later.quantum + 1), second.memory)
    assert runs(third) == {2}, "it is the shorter"


def told_to_move() -> tuple[Snapshot, Verdict]:
    """A job that runs on an old GPU has one of this round on another server."""
    asked = snapshot(
        [host("old", 1, "K80"), host("new", 1)],
        [sized(1, hosts=(HostName("old"),), started=True, running=True, movable=True)],
        rates={("c", "V100"): 5.0, ("c", "K80"): 1.0},
        migrations_left=5,
    )
    first = FFT.decide(asked, {})
    assert homes_of(first) == {1: "new"}
    return asked, first


def test_what_is_on_the_way_keeps_its_gpus_until_it_is_there() -> None:
    asked, first = told_to_move()
    (mover,) = asked.jobs
    leaving = replace(mover, movable=False)
    other = sized(2, arrival_s=5.0)
    tickets = {**asked.tickets, other.user: 1}
    second = FFT.decide(having(asked, jobs=(leaving, other), tickets=tickets), first.memory)
    assert homes_of(second) == {1: "old"}, "nobody else gets a GPU meanwhile"
    arrived = replace(mover, hosts=(HostName("new"),), running=False)
    third = FFT.decide(having(asked, jobs=(arrived, other), tickets=tickets), second.memory)
    assert homes_of(third) == {1: "new", 2: "old"}
    assert runs(third) == {1, 2}


def test_what_is_on_the_way_needs_no_other_gpus_on_a_server_where_it_is() -> None:
    policy = find("tesserae-las")
    hosts = [host(name, 2) for name in "abc"]
    gang = job(1, gang=2, nodes=2, hosts=("a", "b"), started=True, running=True)
    stands = job(2, hosts=("b",), started=True)
    first = policy.decide(snapshot(hosts, [gang, stands]), {})
    assert runs(first) == {1, 2}
    memory = {**first.memory, "homes": {**first.memory["homes"], "1": ["b", "c"]}}
    second = policy.decide(snapshot(hosts, [gang, stands]), memory)
    assert runs(second) == {1, 2}


@every_round_policy
def test_gpus_of_a_round_are_not_kept_for_one_that_has_got_another_home_since(policy: Policy) -> None:
    """It was moved by somebody else than the policy, and waits there. Who stands where it was runs at once, and not when the round is over."""
    moved = sized(1, hosts=(HostName("b"),), movable=True)
    other = sized(2, hosts=(HostName("b"),), started=True, running=True)
    stands = sized(3, hosts=(HostName("a"),), started=True)
    asked = snapshot([host("a", 1), host("b", 1)], [moved, other, stands], rates={("c", "V100"): 1.0})
    memory = {**policy.decide(asked, {}).memory, "homes": {"1": ["a"], "2": ["b"]}, "guests": {}}
    verdict = policy.decide(asked, memory)
    assert runs(verdict) == {2, 3}
    assert homes_of(verdict) == {1: "b", 2: "b", 3: "a"}


def test_gpus_of_a_round_are_not_kept_for_one_that_stays_where_it_is_after_all() -> None:
    """Its checkpoint was not written, say."""
    asked, first = told_to_move()
    (stays,) = asked.jobs
    other = sized(2, arrival_s=5.0)
    tickets = {**asked.tickets, other.user: 1}
    second = FFT.decide(having(asked, jobs=(stays, other), tickets=tickets), first.memory)
    assert homes_of(second) == {1: "old", 2: "new"}
    assert runs(second) == {1, 2}


def test_without_one_of_its_servers_a_round_is_decided_anew() -> None:
    jobs = [sized(1), sized(2)]
    asked = snapshot([host("a", 1), host("b", 1)], jobs, rates={("c", "V100"): 1.0})
    first = FFT.decide(asked, {})
    assert runs(first) == {1, 2}
    there = followed(asked, first)
    drained = replace(
        there, hosts=(replace(there.hosts[0], accepts=False), *there.hosts[1:]), migrations_left=5
    )
    again = FFT.decide(drained, first.memory)
    assert again == FFT.decide(
        drained, {"policy": first.memory["policy"], "round": -1, "servers": 0, "homes": {}}
    )


@law(snapshots(), st.randoms(use_true_random=False), policies=IN_ORDER, examples=15)
def test_within_a_round_what_jobs_have_had_and_done_since_takes_nobodys_gpus(
    policy: Policy, asked: Snapshot, dice: Random
) -> None:
    first = policy.decide(asked, {})
    there = followed(asked, first)
    jobs = [
        replace(job, attained_gpu_s=dice.uniform(0, 1e4), steps_done=dice.uniform(0, 1e4))
        for job in there.jobs
    ]
    running = frozenset(job.id for job in jobs if job.id in runs(first) and dice.random() < 0.5)
    second = policy.decide(replace(there, jobs=tuple(jobs), running=running), first.memory)
    assert runs(first) <= runs(second)
    assert {job: second.plan.homes.get(job) for job in runs(first)} == {
        job: first.plan.homes[job] for job in runs(first)
    }


def has_had(at: int, gpu_s: float, name: str = "h", gang: int = 1, **facts: object) -> JobFacts:
    """And has as much to do still: in all orders the one with the smaller number comes first."""
    said = {"hosts": (HostName(name),), "started": True, "running": True, "movable": True, **facts}
    return replace(sized(at, gang, **said), attained_gpu_s=gpu_s, steps=gpu_s)


@every_policy_in_order
def test_who_comes_has_the_gpus_of_one_behind_it_at_once_and_the_others_keep_theirs(policy: Policy) -> None:
    asked = snapshot([host("h", 2)], [has_had(1, 500.0), has_had(2, 5e4)], rates={("c", "V100"): 1.0})
    first = policy.decide(asked, {})
    new = replace(sized(3, arrival_s=5.0), steps=1e3)
    tickets = {**asked.tickets, new.user: 1}
    second = policy.decide(having(asked, jobs=(*asked.jobs, new), tickets=tickets), first.memory)
    assert runs(second) == {1, 3}
    # Nothing that has changed a second later makes it go to and fro.
    waits = replace(asked.jobs[1], running=False)
    comes = replace(new, hosts=(HostName("h"),), attained_gpu_s=1e6, steps=1e6)
    later = having(asked, jobs=(asked.jobs[0], waits, comes), tickets=tickets)
    assert runs(policy.decide(later, second.memory)) == {1, 3}
    behind = replace(sized(4, arrival_s=5.0), steps=1e9, attained_gpu_s=1e9)
    there = having(asked, jobs=(*asked.jobs, behind), tickets={**asked.tickets, behind.user: 1})
    assert runs(policy.decide(there, first.memory)) == {1, 2}


@every_policy_in_order
def test_who_makes_room_for_one_that_comes_has_idle_gpus_elsewhere_at_once(policy: Policy) -> None:
    hosts = [host("h", 1), host("i", 1, "K80")]
    rates = {("c", "V100"): 5.0, ("c", "K80"): 1.0}
    asked = snapshot(hosts, [has_had(1, 5e4)], rates=rates, migrations_left=5)
    first = policy.decide(asked, {})
    new = replace(sized(2, arrival_s=5.0), steps=1e3)
    there = having(asked, jobs=(*asked.jobs, new), tickets={**asked.tickets, new.user: 1})
    second = policy.decide(there, first.memory)
    assert homes_of(second) == {1: "i", 2: "h"}
    assert runs(second) == {1, 2}


@every_policy_in_order
def test_who_makes_room_for_one_that_comes_has_the_gpus_of_one_behind_it(policy: Policy) -> None:
    hosts = [host("h", 1), host("i", 1, "K80")]
    rates = {("c", "V100"): 5.0, ("c", "K80"): 1.0}
    jobs = [has_had(1, 5e4), has_had(2, 9e5, "i")]
    asked = snapshot(hosts, jobs, rates=rates, migrations_left=5)
    first = policy.decide(asked, {})
    assert homes_of(first) == {1: "h", 2: "i"}
    new = replace(sized(3, arrival_s=5.0), steps=1e3)
    there = having(asked, jobs=(*asked.jobs, new), tickets={**asked.tickets, new.user: 1})
    second = policy.decide(there, first.memory)
    assert runs(second) == {1, 3}
    assert (homes_of(second)[1], homes_of(second)[3]) == ("i", "h")


@every_policy_in_order
def test_gpus_that_one_leaves_within_a_round_go_to_the_first_in_order(policy: Policy) -> None:
    jobs = [has_had(1, 500.0), has_had(3, 7e4, running=False), has_had(2, 6e4, running=False)]
    early = [replace(job, arrival_s=float(-job.id)) for job in jobs]  # the last in the order came first
    asked = snapshot([host("h", 1)], early, rates={("c", "V100"): 1.0})
    first = policy.decide(asked, {})
    assert runs(first) == {1}
    assert runs(policy.decide(having(asked, jobs=early[1:]), first.memory)) == {2}


def test_in_the_simulator_changes_inside_a_round_move_nobody() -> None:
    """Jobs that come in the middle of rounds, on GPUs of two models, all of them busy."""
    users = [f"u{at}" for at in range(12)]
    jobs = tuple(
        SimJob(id=at + 1, user=user, arrival_s=70.0 * at, steps=2_000, job_class="c", state_bytes=10**8)  # type: ignore[arg-type]
        for at, user in enumerate(users)
    )
    load = Workload(
        name="busy",
        jobs=jobs,
        tickets=dict.fromkeys(users, 100.0),  # type: ignore[arg-type]
        rates={("c", "V100"): 3.0, ("c", "K80"): 1.0},
    )
    experiment = Experiment(
        cluster=parse_cluster("v100:2,k80:2", 2),
        workload=load,
        policy="tesserae-srtf",
        quantum_s=300.0,
        costs=Costs(start_s=1.0),
        known_rates=True,
    )
    whole = summarize(run_quanta(experiment))
    edges = whole.makespan_s is not None and whole.makespan_s / 300.0
    assert whole.finished == 12
    assert whole.migrations <= 2 * (edges + 1), "at most both V100s change hands at an edge"
