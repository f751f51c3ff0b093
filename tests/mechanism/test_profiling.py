"""Profiling runs: where they are made, in which order, for how long, at whose cost, and when there are none."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from hs_core.errors import BrokenError
from hs_core.model import Migrate, MoveReason
from hs_core.names import JobId
from hs_core.plan import check
from hs_core.policies import POLICIES, find
from hs_core.policy import JobFacts, Memory, Policy, Profiling, Snapshot, Trial, Verdict
from hs_core.strategy import Strategy, class_as
from tests.policies.worlds import GIB, Strides, after, having, homes_of, host, job, snapshot

FFT = find("fft")
V, K, Q = host("v", 4, "V100"), host("k", 4, "K80"), host("q", 4, "Q9")  # 16, 12 and 8 GiB
OLD = {("old", model): rate for model, rate in (("V100", 4.0), ("K80", 1.0), ("Q9", 0.5))}
measures = pytest.mark.parametrize(
    "policy",
    [
        find(name)
        for name in (
            "fft",
            "hadar",
            "hadar-exact",
            "gavel-max-min",
            "gavel-sjf",
            "pop",
            "tesserae-las",
            "tesserae-srtf",
        )
    ],
    ids=lambda policy: policy.name,
)
SPEED = {"V100": 4.0, "K80": 2.0, "Q9": 1.0}


def sized(at: int, job_class: str = "new", gang: int = 1, **facts: object) -> JobFacts:
    return replace(job(at, f"u{at}", gang, steps=1e6, job_class=job_class), **facts)  # type: ignore[arg-type]


def decide(asked: Snapshot, memory: Memory | None = None, policy: Policy = FFT) -> Verdict:
    if policy.needs.profiles == 0 and asked.profiling.batches is None:  # those that have them where asked
        asked = replace(asked, profiling=Profiling(batches=20))
    verdict = policy.decide(asked, json.loads(json.dumps(memory or {})))
    check(asked, verdict.plan, policy.needs)
    return verdict


def later(
    asked: Snapshot, verdict: Verdict, seconds: float, *, steps: float = 0.0, edge: bool = False
) -> Snapshot:
    """So many seconds on, of which all in their turn had all: jobs did `steps` mini-batches and could be moved."""
    there = after(asked, verdict, Strides().run(asked, verdict.plan), quanta=0)
    jobs = tuple(
        replace(
            one,
            movable=True,
            attained_gpu_s=one.attained_gpu_s + seconds * one.gang * one.running,
            steps_done=one.steps_done + steps * one.running,
        )
        for one in there.jobs
    )
    return having(there, jobs=jobs, now_s=asked.now_s + seconds, quantum=asked.quantum + edge)


def known(asked: Snapshot, *models: str, job_class: str = "new") -> Snapshot:
    return replace(asked, rates={**asked.rates, **{(job_class, model): SPEED[model] for model in models}})


def trial(verdict: Verdict, at: int = 1) -> str:
    return verdict.plan.trials[JobId(at)].model


def turn(verdict: Verdict) -> tuple[int, ...]:
    return verdict.plan.turns[V.name].gangs


def busy(*hosts: str) -> list[JobFacts]:
    """Jobs of a class that is known, which fill these servers and have run long."""
    return [
        sized(
            10 + at,
            "old",
            4,
            hosts=(name,),
            started=True,
            running=True,
            movable=True,
            attained_gpu_s=9e4,
        )
        for at, name in enumerate(hosts)
    ]


@measures
def test_a_class_is_measured_on_each_model_most_memory_first_and_then_no_more(policy: Policy) -> None:
    asked = snapshot([Q, K, V], [sized(1), *busy("v", "k", "q")], rates=OLD, migrations_left=9, now_s=1e6)
    verdict, seen = decide(asked, policy=policy), []
    for model in ("V100", "K80", "Q9"):
        for _ in range(9):
            if verdict.plan.trials:
                break
            asked = later(asked, verdict, 5.0, edge=True)  # it is on its way
            verdict = decide(asked, verdict.memory, policy)
        seen.append(trial(verdict))
        assert verdict.plan.homes[JobId(1)] == ({"V100": "v", "K80": "k", "Q9": "q"}[model],)
        asked = known(later(asked, verdict, 8.0, steps=30.0, edge=True), model)
        verdict = decide(asked, verdict.memory, policy)
    assert seen == ["V100", "K80", "Q9"]
    for _ in range(3):
        asked = later(asked, verdict, 60.0, edge=True)
        verdict = decide(asked, verdict.memory, policy)
        assert not verdict.plan.trials


@measures
def test_a_run_goes_on_until_both_its_mini_batches_are_done_and_the_rate_is_known(policy: Policy) -> None:
    asked = snapshot([V], [sized(1)], now_s=1e6)
    first = decide(asked, policy=policy)
    assert first.plan.trials[JobId(1)] == Trial(model="V100", from_step=0.0, batches=20)
    fast = later(asked, first, 3.0, steps=100.0)
    second = decide(fast, first.memory, policy)
    assert second.plan.trials, "its rate is not known yet"
    slow = known(later(asked, first, 9.0, steps=12.0), "V100")
    third = decide(slow, first.memory, policy)
    assert third.plan.trials[JobId(1)].text(12) == "profiled on V100: 12 of 20 mini-batches"
    assert not decide(later(slow, third, 6.0, steps=8.0), third.memory, policy).plan.trials


def test_a_run_is_over_where_a_server_that_its_job_would_have_kept_was_drained() -> None:
    """It lives on servers of two models, and was about to be measured on two of one of them."""
    hadar = find("hadar")
    hosts = [host("v1", 2, "V100"), host("v2", 2, "V100"), host("k", 2, "K80")]
    gang = sized(1, gang=4, nodes=2, hosts=("k", "v2"), started=True, movable=True)
    asked = replace(snapshot(hosts, [gang]), migrations_left=10, rates=OLD)
    first = decide(asked, policy=hadar)
    assert set(first.plan.homes[JobId(1)]) == {"v1", "v2"}
    assert first.plan.moves[JobId(1)][0] is MoveReason.PROFILE
    drained = tuple(replace(one, accepts=one.name != "v2") for one in asked.hosts)
    verdict = decide(replace(asked, hosts=drained), first.memory, policy=hadar)
    assert verdict.plan.homes[JobId(1)] == ("k", "v2"), "nobody moves within a round"
    assert not verdict.plan.moves


def test_a_run_is_over_where_its_server_was_drained_and_its_job_has_lost_its_home() -> None:
    """It is placed wherever the policy would have it, not where it was to be measured."""
    asked = snapshot([V, K], [sized(1)])
    first = decide(asked)
    measured_on = homes_of(first)[1]
    drained = tuple(replace(one, accepts=one.name != measured_on) for one in asked.hosts)
    verdict = decide(replace(asked, hosts=drained), first.memory)
    assert homes_of(verdict).get(1) != measured_on
    short = tuple(replace(one, gpus=0 if one.name == measured_on else 4) for one in asked.hosts)
    verdict = decide(replace(asked, hosts=short), first.memory)
    assert homes_of(verdict).get(1) != measured_on


def test_a_slow_job_is_not_kept_longer_than_a_quantum_once_its_rate_is_known() -> None:
    asked = snapshot([V], [sized(1)], now_s=1e6)
    first = decide(asked)
    known_soon = known(later(asked, first, 59.0, steps=3.0), "V100")
    second = decide(known_soon, first.memory)
    assert second.plan.trials
    assert not decide(later(known_soon, second, 1.0), second.memory).plan.trials


def test_who_was_put_aside_for_a_run_goes_on_when_it_is_over_within_the_round() -> None:
    others = [
        replace(one, hosts=("v",), started=True, running=True, movable=True)
        for one in (sized(2, "old", 2), sized(3, "old", 2))
    ]
    asked = snapshot([V], [sized(9, gang=2), *others], rates=OLD, now_s=1e6)
    first = decide(asked)
    assert len({2, 3} & set(turn(first))) == 1
    assert 9 in turn(first)
    over = known(later(asked, first, 9.0, steps=25.0), "V100")
    second = decide(over, first.memory)
    assert (set(turn(second)), second.plan.trials) == ({2, 3}, {})


@measures
def test_between_edges_a_run_begins_only_where_nobody_lives(policy: Policy) -> None:
    asked = snapshot([V, K], busy("v"), rates=OLD, now_s=1e6)
    first = decide(asked, policy=policy)
    there = later(asked, first, 5.0)
    came = having(there, jobs=(*there.jobs, sized(1)), tickets={**there.tickets, sized(1).user: 1})
    assert not decide(came, first.memory, policy).plan.trials, (
        "most memory comes first, and it is taken until the edge"
    )
    at_the_edge = decide(replace(came, quantum=came.quantum + 1), first.memory, policy)
    assert trial(at_the_edge) == "V100"
    empty = replace(came, hosts=(*came.hosts, host("v2", 4, "V100")))
    idle = decide(empty, policy.decide(replace(asked, hosts=empty.hosts), {}).memory, policy)
    assert (trial(idle), homes_of(idle)[1]) == ("V100", "v2")


def test_models_with_less_memory_than_it_was_seen_to_take_are_left_out() -> None:
    here = sized(1, hosts=("v",), started=True, running=True, movable=True, memory_bytes=10 * GIB)
    asked = known(snapshot([V, K, Q], [here], migrations_left=9, now_s=1e6), "V100")
    verdict = decide(asked)
    assert homes_of(verdict)[1] == "k"
    assert verdict.plan.moves[JobId(1)][0] is MoveReason.PROFILE
    there = known(later(asked, verdict, 9.0, steps=30.0, edge=True), "K80")
    for _ in range(3):
        verdict = decide(there, verdict.memory)
        assert homes_of(verdict)[1] != "q", "8 GiB are too few for it, in rounds as well"
        there = later(there, verdict, 60.0, steps=99.0, edge=True)


@pytest.mark.parametrize(("rates", "home"), [({}, "q"), ({("big", "V100"): 4.0}, "v")])
def test_what_a_class_without_a_hook_was_seen_to_take_keeps_its_jobs_from_no_model(
    rates: dict[tuple[str, str], float], home: str
) -> None:
    """JAX takes three quarters of any GPU."""
    here = sized(1, "big", 4, hosts=("v",), started=True, running=True, memory_bytes=12 * GIB)
    asked = replace(snapshot([V, Q], [here, sized(2, "big", 4)], now_s=1e6), rates=rates)
    assert homes_of(decide(asked))[2] == home


@pytest.mark.parametrize(
    "facts",
    [{"migrate": Migrate.NEVER}, {"movable": False}, {"migrate": Migrate.SAME_TYPE}],
    ids=["never", "no checkpoint", "same type"],
)
def test_who_cannot_leave_is_measured_where_it_is_and_another_of_its_class_elsewhere(
    facts: dict[str, object],
) -> None:
    stays = sized(1, hosts=("k",), started=True, running=True, **facts)
    alone = decide(snapshot([V, K], [stays], migrations_left=9, now_s=1e6))
    assert not alone.plan.trials, "of a class of which nothing is known it is to be the V100 first"
    both = snapshot([V, K], [stays, sized(2)], migrations_left=9, now_s=1e6)
    first = decide(both)
    assert {int(at): one.model for at, one in first.plan.trials.items()} == {2: "V100"}
    second = decide(known(later(both, first, 9.0, steps=30.0, edge=True), "V100"), first.memory)
    assert {int(at): one.model for at, one in second.plan.trials.items()} == {1: "K80"}


def test_a_job_that_may_be_laid_over_servers_is_placed_by_the_policy_before_it_is_measured() -> None:
    asked = snapshot([V], [sized(1, gang=2, spreads=(1, 2))], now_s=1e6)
    first = decide(asked)
    assert (first.plan.trials, len(first.plan.homes[JobId(1)])) == ({}, 1)
    placed = later(asked, first, 60.0, edge=True)
    placed = having(placed, jobs=tuple(replace(one, spreads=()) for one in placed.jobs))
    assert decide(placed, first.memory).plan.trials


def test_without_migrations_left_nobody_is_moved_to_be_measured() -> None:
    here = sized(1, hosts=("v",), started=True, running=True, movable=True)
    verdict = decide(known(snapshot([V, K], [here], migrations_left=0, now_s=1e6), "V100"))
    assert (homes_of(verdict)[1], dict(verdict.plan.moves)) == ("v", {})


def test_runs_are_at_most_their_share_of_all_gpu_time() -> None:
    """New classes come all the time, on a cluster of 4 GPUs that a job could fill."""
    filler = busy("v")
    asked = snapshot([V], filler, rates=OLD, now_s=1e6, profiling=Profiling(share=0.05))
    verdict, on, total = decide(asked), Counter[bool](), 4 * 400 * 60.0
    for at in range(400):
        came = sized(100 + at, f"class {at}", 4, arrival_s=asked.now_s)
        gone = tuple(
            one for one in asked.jobs if one.job_class == "old" or one.arrival_s > asked.now_s - 3_000
        )
        asked = having(asked, jobs=(*gone, came), tickets={one.user: 1 for one in (*gone, came)})
        verdict = decide(asked, verdict.memory)
        on[bool(verdict.plan.trials)] += 1
        asked = later(asked, verdict, 60.0, steps=30.0, edge=True)
        for one in verdict.plan.trials:
            found = next(each for each in asked.jobs if each.id == one)
            asked = known(asked, "V100", job_class=found.job_class)
    spent = on[True] * 60.0 * 4
    burst = 0.05 * 4 * 3_600.0
    assert 0.9 * (0.05 * total) < spent < 0.05 * total + burst + 2 * 240.0


def test_one_run_on_a_pool_at_a_time_or_as_many_as_the_share_of_it_holds() -> None:
    jobs = [sized(at, f"class {at}") for at in range(1, 7)]
    few = decide(snapshot([V], jobs, now_s=1e6))
    assert len(few.plan.trials) == 1
    half = decide(snapshot([V], jobs, now_s=1e6, profiling=Profiling(share=0.5)))
    assert len(half.plan.trials) == 2


def test_a_class_that_says_no_rate_is_given_up_for_an_hour() -> None:
    asked = snapshot([V, K], [sized(1)], migrations_left=9, now_s=1e6)
    verdict = decide(asked)
    trials = []
    for _ in range(75):
        asked = later(asked, verdict, 60.0, edge=True)
        verdict = decide(asked, verdict.memory)
        trials.append(bool(verdict.plan.trials))
    assert trials[:4] == [True] * 4
    first_without = trials.index(False)
    assert first_without <= 6
    assert 60 <= trials.index(True, first_without) - first_without <= 62


def test_who_never_gets_there_does_not_keep_gpus_for_ever() -> None:
    asked = snapshot(
        [V, K],
        [sized(1, hosts=("v",), started=True, running=True, movable=True)],
        migrations_left=9,
        now_s=1e6,
    )
    asked = known(asked, "V100")
    verdict = decide(asked)
    assert homes_of(verdict)[1] == "k"
    for at in range(1, 14):
        moving = replace(asked.jobs[0], movable=False)
        verdict = decide(having(asked, jobs=(moving,), now_s=1e6 + 60.0 * at, quantum=at), verdict.memory)
        if not verdict.memory["profiling"]["runs"]:
            break
    assert at == 10


@measures
def test_where_rates_are_known_or_runs_are_switched_off_there_are_none(policy: Policy) -> None:
    asked = snapshot([V, K], [sized(1)], now_s=1e6)
    assert not decide(known(asked, "V100", "K80"), policy=policy).plan.trials
    off = decide(replace(asked, profiling=Profiling(batches=0)), policy=policy)
    assert not off.plan.trials
    assert "profiling" not in off.memory


def test_a_run_that_is_on_ends_when_runs_are_switched_off() -> None:
    asked = snapshot([V], [sized(1)], now_s=1e6)
    first = decide(asked)
    assert first.plan.trials
    assert not decide(replace(asked, profiling=Profiling(batches=0)), first.memory).plan.trials


def test_between_two_edges_at_which_all_was_known_a_new_class_puts_nobody_aside() -> None:
    asked = snapshot([V], busy("v"), rates=OLD, now_s=1e6)
    first = decide(asked)
    there = later(asked, first, 60.0, edge=True)
    second = decide(there, first.memory)
    came = having(there, jobs=(*there.jobs, sized(1)), tickets={**there.tickets, sized(1).user: 1})
    assert not decide(came, second.memory).plan.trials
    assert decide(replace(came, quantum=came.quantum + 1), second.memory).plan.trials


def test_who_runs_to_be_measured_keeps_its_part_of_gavels_time_which_is_divided_anew_once_speeds_are_known() -> (
    None
):
    gavel = find("gavel-max-sum")
    asked = snapshot([V, K], [sized(1), sized(2, "old")], rates=OLD, migrations_left=9, now_s=1e6)
    first = decide(asked, policy=gavel)
    assert list(first.plan.trials) == [1]
    books = first.memory["policy"]["books"]
    assert {unit[0]: sum(part) for unit, part in zip(books["units"], books["fraction"], strict=True)} == {
        1: 1.0,
        2: 1.0,
    }
    nothing_new = later(asked, first, 60.0, edge=True)
    second = decide(nothing_new, first.memory, gavel)
    assert second.memory["policy"]["books"]["reset_s"] == 1e6, "1,920 s are not over"
    third = decide(later(known(nothing_new, "V100", "K80"), second, 60.0, edge=True), second.memory, gavel)
    assert not third.plan.trials
    assert third.memory["policy"]["books"]["reset_s"] == 1e6 + 120.0, "it had rested on guesses"


def test_nobody_shares_the_gpus_of_one_that_is_measured() -> None:
    packed = find("gavel-max-min-packed")
    jobs = [sized(at, "old", 4, gpu_memory_bytes=GIB, memory_bytes=GIB) for at in (2, 3, 4)]
    facts = {("old", "old", model): 1.0 for model in ("V100", "K80")}
    asked = snapshot([V], jobs, rates=OLD, interference=facts, now_s=1e6)
    first = decide(asked, policy=packed)
    (guest,) = first.plan.turns[V.name].guests
    # The rate of their class is lost: one of the two is measured where it is, and the other may not go on beside it.
    lost = replace(later(asked, first, 60.0, edge=True), rates={})
    second = decide(lost, first.memory, packed)
    assert len(second.plan.trials) == 1
    assert not second.plan.turns[V.name].guests
    (alone,) = second.plan.trials
    shared = replace(
        second.plan.turns[V.name], gangs=(alone, guest.job), guests=(replace(guest, beside=(alone,)),)
    )
    with pytest.raises(BrokenError, match="is profiled on V100 and shares GPUs"):
        check(lost, replace(second.plan, turns={V.name: shared}), packed.needs)


def test_a_plan_with_runs_needs_a_policy_that_says_so_and_a_turn_on_that_model() -> None:
    asked = snapshot([V, K], [sized(1)], now_s=1e6)
    plan = decide(asked).plan
    with pytest.raises(BrokenError, match="job 1 is profiled; the policy does not say"):
        check(asked, plan, replace(FFT.needs, profiles=None))
    wrong = replace(plan, trials={JobId(1): replace(plan.trials[JobId(1)], model="K80")})
    with pytest.raises(BrokenError, match="job 1 is profiled on K80; its home is v"):
        check(asked, wrong, FFT.needs)
    with pytest.raises(BrokenError, match="job 1 is profiled on V100 and has no turn"):
        check(asked, replace(plan, turns={}), FFT.needs)


@pytest.mark.parametrize(("batches", "share"), [(1, 0.1), (-3, 0.1), (2_000_000, 0.1), (20, 0.0), (20, 1.5)])
def test_senseless_settings_are_refused(batches: int, share: float) -> None:
    with pytest.raises(ValueError, match=r"profile_(batches|share): "):
        Profiling(batches=batches, share=share)


def test_those_whose_papers_measure_have_such_runs_but_for_those_blind_to_speeds_and_those_that_suspend_nobody() -> (
    None
):
    have = {name: policy.needs.profiles for name, policy in POLICIES.items()}
    gavels = {name for name in POLICIES if name.startswith("gavel-")} - {"gavel-max-min-blind"}
    assert {name for name, batches in have.items() if batches == 20} == {
        "fft",
        "hadar",
        "hadar-exact",
        "pop",
        "themis",
    } | gavels
    where_asked = {name for name, batches in have.items() if batches == 0}
    assert where_asked == {name for name in POLICIES if name.startswith("tesserae-")}


def test_those_that_have_such_runs_suspend_jobs() -> None:
    assert all(policy.needs.preemptive for policy in POLICIES.values() if policy.needs.profiles is not None)


@pytest.mark.parametrize("name", ["tesserae-las", "tesserae-srtf", "tesserae-ftf"])
def test_tesserae_has_runs_only_where_somebody_says_of_how_many_mini_batches(name: str) -> None:
    tesserae, asked = find(name), snapshot([V, K], [sized(1)], now_s=1e6)
    assert not tesserae.decide(asked, {}).plan.trials
    said = replace(asked, profiling=Profiling(batches=50))
    (run,) = tesserae.decide(said, {}).plan.trials.values()
    assert run.batches == 50


def test_who_is_measured_keeps_its_strategy_meanwhile() -> None:
    tesserae = find("tesserae-las")
    dp, tp = Strategy(data=2), Strategy(tensor=2)
    job_class = class_as("new", dp)
    facts = {"strategies": (dp, tp), "gang": 2, "hosts": ("v",), "started": True, "running": True}
    one = sized(1, job_class, movable=True, restartable=True, **facts)
    rates = {(job_class, "V100"): 4.0, (class_as("new", tp), "V100"): 40.0, (class_as("new", tp), "K80"): 4.0}
    asked = snapshot([V, K], [one], rates=rates, migrations_left=9, now_s=1e6)
    assert tesserae.decide(asked, {}).plan.shapes == {1: tp}, "ten times as fast"
    verdict = decide(asked, policy=tesserae)
    assert (homes_of(verdict)[1], verdict.plan.shapes) == ("k", {}), (
        "it goes where its class is to be measured"
    )
