"""Gandiva_fair over many servers and pools: split stride, pools by effective rate, moves, drains, trades."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from hs_core.model import Migrate, MoveReason
from hs_core.names import JobId
from hs_core.policies.gandiva_fair import LIMITS
from hs_core.policy import JobFacts

from .asked import GANDIVA_FAIR, LONG_AGO, ask, at, decide, moves, rates, run, sweep, where  # noqa: TID252 — tests are no package on the path
from .worlds import having, homes_of, host, job  # noqa: TID252 — tests are no package on the path

# --- split stride -----------------------------------------------------------------------------------------------------


def test_section_5_2_two_thirds_of_four_gpus_each_then_four_and_four() -> None:
    """Figure 5: an 8-GPU job, two of 2 GPUs, four of 1 GPU, on two servers of 4."""
    jobs = [job(1, "A", 8, nodes=2), *sweep(2, 2, "B", 2), *sweep(4, 4, "C", 1)]
    world = run([host("x"), host("y")], jobs)
    world.go(90)
    assert world.by_user() == {"A": 240, "B": 240, "C": 240}
    world.change(jobs=tuple(one for one in world.asked.jobs if one.user != "A"))
    world.gpus.clear()
    verdict = world.go(30)
    assert world.by_user() == {"B": 120, "C": 120}
    assert verdict.plan.turns == {}
    assert "books" not in verdict.memory


def test_a_large_job_lives_on_the_least_loaded_servers_of_one_pool() -> None:
    hosts = [host("a"), host("b"), host("c"), host("k", 8, "K80")]
    jobs = [*at("a", job(1, "B", 4)), job(2, "A", 8, nodes=2)]
    assert homes_of(decide(hosts, jobs))[2] == "b+c"
    verdict = decide([host("a"), host("k", 4, "K80")], [job(2, "A", 8, nodes=2)])
    assert "asks for 2 servers of one model with 4 GPUs each; there are 1" in verdict.why[JobId(2)]


def test_a_quantum_is_charged_once_however_often_it_is_decided() -> None:
    jobs = [job(1, "A", 8, nodes=2), *sweep(2, 8, "B")]
    world = run([host("x"), host("y")], jobs)
    world.go(3)
    first = GANDIVA_FAIR.decide(world.asked, world.memory)
    again = GANDIVA_FAIR.decide(world.asked, first.memory)
    assert again.plan.turns == first.plan.turns
    assert again.memory == first.memory
    gone = having(world.asked, jobs=world.asked.jobs[1:])
    assert GANDIVA_FAIR.decide(gone, first.memory).plan.turns == {}


@pytest.mark.parametrize("others", [sweep(2, 8, "B"), []], ids=["others have left", "it has come"])
def test_a_gang_has_its_turn_in_the_next_quantum_where_nobody_else_could_use_its_gpus(
    others: list[JobFacts],
) -> None:
    """Else it would stand beside idle GPUs until the quantum after that."""
    gang, local = job(1, "A", 8, nodes=2), job(10, "B", 1)
    hosts, there = [host("x"), host("y"), host("z")], at("z", local)
    everybody = ask(
        hosts, [*there, *at("x", *others[:4]), *at("y", *others[4:]), *at("x+y", gang)[: len(others)]]
    )
    first = GANDIVA_FAIR.decide(everybody, {})
    assert first.plan.turns == {}
    left = ask(hosts, [*there, *at("x+y", gang)])
    verdict = GANDIVA_FAIR.decide(left, first.memory)
    assert {name: turn.gangs for name, turn in verdict.plan.turns.items()} == {"x": (1,), "y": (1,)}
    assert verdict.memory.get("books") == first.memory.get("books"), "nobody is charged for that"


# --- pools ------------------------------------------------------------------------------------------------------------

HETERO = [host("k", 4, "K80"), host("v", 4, "V100")]


def test_eight_vae_end_half_on_each_model() -> None:
    """The spec's golden case: speed-up 1.25, four V100 and four K80."""
    world = run(HETERO, at("v", *sweep(1, 8, "A")), rates=rates(A={"V100": 1.25, "K80": 1.0}))
    verdict = world.go(3)
    assert where(verdict) == {"v": 4, "k": 4}
    assert len(world.moved) == 4
    world.go(200)
    assert len(world.moved) == 4


def test_dcgan_at_five_times_stays_on_the_fast_ones() -> None:
    world = run(HETERO, at("v", *sweep(1, 8, "A")), rates=rates(A={"V100": 5.0, "K80": 1.0}))
    assert where(world.go(50)) == {"v": 8}
    assert world.moved == []


def test_moves_under_way_are_not_made_twice() -> None:
    facts = {"rates": rates(A={"V100": 1.25, "K80": 1.0})}
    world = run(HETERO, at("v", *sweep(1, 8, "A")), delay=5, **facts)
    assert where(world.go(20)) == {"v": 4, "k": 4}
    assert len(world.moved) == 4


def test_one_job_finds_out_about_a_pool_that_its_class_was_not_measured_on() -> None:
    world = run(HETERO, at("v", *sweep(1, 8, "A")), rates=rates(A={"V100": 5.0}))
    verdict = world.go(10)
    assert where(verdict) == {"v": 7, "k": 1}
    assert len(world.moved) == 1


def test_classes_without_any_rate_are_spread_over_the_shares() -> None:
    assert where(run(HETERO, at("v", *sweep(1, 8, "A"))).go(10)) == {"v": 4, "k": 4}


def test_a_new_job_goes_where_its_effective_rate_is_highest() -> None:
    there = at("v", *sweep(1, 4, "A"))
    known = rates(A={"V100": 5.0, "K80": 1.0})
    assert homes_of(decide(HETERO, [*there, *sweep(9, 1, "A")], rates=known))[9] == "v"
    known = rates(A={"V100": 1.1, "K80": 1.0})
    assert homes_of(decide(HETERO, [*there, *sweep(9, 1, "A")], rates=known))[9] == "k"


@pytest.mark.parametrize("migrate", [Migrate.NEVER, Migrate.SAME_TYPE])
def test_who_must_not_change_the_model_does_not(migrate: Migrate) -> None:
    jobs = at("v", *sweep(1, 8, "A", migrate=migrate))
    world = run(HETERO, jobs, rates=rates(A={"V100": 1.0, "K80": 1.0}))
    verdict = world.go(5)
    assert world.moved == []
    assert verdict.entitled == {("A", "V100"): 4}


def test_pins_are_demand_for_their_pool_only() -> None:
    jobs = [*at("v", *sweep(1, 8, "A", gpu_types=("V100",))), *at("k", *sweep(20, 4, "B"))]
    verdict = decide(HETERO, jobs)
    assert verdict.entitled == {("A", "V100"): 2, ("B", "V100"): 2, ("B", "K80"): 2} or verdict.entitled == {
        ("A", "V100"): 2, ("B", "V100"): 2, ("B", "K80"): 2,
    }  # fmt: skip


# --- trades -----------------------------------------------------------------------------------------------------------

TABLE_3_HOSTS = [host(f"v{n}", 4, "V100") for n in range(3)] + [host(f"k{n:02}", 4, "K80") for n in range(15)]
TABLE_3_RATES = rates(A={"V100": 1.25, "K80": 1.0}, B={"V100": 5.0, "K80": 1.0}, C={"V100": 6.25, "K80": 1.0})


def table_3(each: int = 60) -> list[JobFacts]:
    return [one for n, user in enumerate("ABC") for one in sweep(1 + n * 100, each, user)]


def test_table_3_from_jobs_to_trades_and_shares() -> None:
    verdict = decide(TABLE_3_HOSTS, table_3(), rates=TABLE_3_RATES)
    assert verdict.base == {
        (user, model): gpus for user in "ABC" for model, gpus in (("V100", 4), ("K80", 20))
    }
    assert verdict.entitled == {("A", "K80"): 40, ("B", "V100"): 4, ("B", "K80"): 20, ("C", "V100"): 8}
    assert sum(trade.fast_gpus for trade in verdict.trades) == 4
    assert {trade.price for trade in verdict.trades} == {5.0}


def test_jobs_follow_the_trades_and_users_gain() -> None:
    world = run(TABLE_3_HOSTS, table_3(), delay=1, migrations_left=100)
    world.go(2)
    world.change(
        rates=TABLE_3_RATES, now_s=world.asked.now_s + 10 * LIMITS.cool_down_quanta * world.asked.quantum_s
    )
    world.go(60)
    model = {h.name: h.model for h in TABLE_3_HOSTS}
    homes = Counter((one.user, model[one.hosts[0]]) for one in world.asked.jobs)
    assert homes["A", "V100"] == 0
    assert homes["A", "K80"] == 60
    assert homes["C", "V100"] > 8
    before = Counter(world.gpus)
    world.go(60)
    speed = {"A": 1.25, "B": 5.0, "C": 6.25}
    got: Counter[str] = Counter()
    for one in world.asked.jobs:
        rate = speed[one.user] if model[one.hosts[0]] == "V100" else 1.0
        got[one.user] += (world.gpus[one.id] - before[one.id]) * rate / 60
    assert got["A"] > 25
    assert got["B"] > 40 * 0.97
    assert got["C"] > 45


def test_a_user_who_comes_takes_back_what_the_others_no_longer_have() -> None:
    world = run(TABLE_3_HOSTS, table_3(), rates=TABLE_3_RATES)
    first = world.step()
    assert first.news
    assert not any(news.undone for news in first.news)
    world.change(
        jobs=(*world.asked.jobs, *(replace(one, movable=True) for one in sweep(900, 60, "D"))),
        tickets={**world.asked.tickets, "D": Fraction(100)},
    )
    after = world.step()
    assert any(news.undone for news in after.news)
    assert all(gpus >= 0 for gpus in after.entitled.values())
    assert sum(after.entitled.values()) == 72


# --- drains -------------------------------------------------------------------------------------------------------------


def test_a_drained_server_is_emptied_at_once_and_says_why() -> None:
    jobs = [replace(one, settled_s=LONG_AGO) for one in at("a", *sweep(1, 4, "A"))]
    verdict = decide([host("a", accepts=False), host("b"), host("c")], jobs)
    assert moves(verdict) == dict.fromkeys(range(1, 5), MoveReason.DRAIN)
    assert where(verdict) == {"b": 2, "c": 2}
    assert "a is drained" in verdict.plan.moves[JobId(1)][1]


def test_a_gang_leaves_with_all_its_parts() -> None:
    jobs = at("a+b", job(1, "A", 8, nodes=2))
    verdict = decide([host("a", accepts=False), host("b"), host("c")], jobs)
    assert set(homes_of(verdict)[1].split("+")) == {"b", "c"}
    assert moves(verdict) == {1: MoveReason.DRAIN}


def test_who_may_not_or_cannot_move_stays_on_a_drained_server() -> None:
    hosts = [host("a", accepts=False), host("k", model="K80")]
    jobs = at("a", job(1, migrate=Migrate.NEVER), job(2, migrate=Migrate.SAME_TYPE), job(3))
    assert where(decide(hosts, jobs)) == {"a": 2, "k": 1}
    stuck = having(ask(hosts, jobs), jobs=tuple(replace(one, movable=False) for one in jobs))
    assert where(GANDIVA_FAIR.decide(stuck, {})) == {"a": 3}


def test_a_job_whose_server_lost_gpus_goes_to_one_that_has_them() -> None:
    verdict = decide([host("a", 2), host("b")], at("a", job(1, "A", 4)))
    assert where(verdict) == {"b": 1}


def test_servers_that_lost_gpus_are_left_as_the_budget_allows() -> None:
    world = run([host("a", 1), host("b")], at("a", *sweep(1, 2, "A", 2)), migrations_left=1)
    world.go(4)
    assert [quantum for quantum, _ in world.moved] == [0, 1]


def test_who_needs_no_budget_does_not_wait_behind_who_finds_none() -> None:
    """Both servers have too few GPUs in health; job 2 has no process yet. Job 3 lives on a drained one."""
    waits = [replace(one, started=False) for one in at("sick", job(2, "B", 2))]
    jobs = [*at("a", job(1, "A", 2)), *waits, *at("drained", job(3, "A", 1))]
    hosts = [host("a", 1), host("sick", 1), host("drained", accepts=False), host("free")]
    assert where(decide(hosts, jobs, migrations_left=0)) == {"a": 1, "free": 2}


# --- edges --------------------------------------------------------------------------------------------------------------


def test_shares_and_trades_stand_while_a_job_that_was_moved_is_starting() -> None:
    hosts = [host("v", 8), host("k", 8, "K80")]
    speeds = rates(A={"V100": 1.2, "K80": 1.0}, B={"V100": 4.0, "K80": 1.0})
    jobs = [*at("v", *sweep(1, 8, "A")), *at("k", *sweep(9, 8, "A")), *at("v", *sweep(17, 16, "B"))]
    calm = decide(hosts, jobs, rates=speeds)
    assert calm.trades
    starting = [replace(one, movable=one.id > 8) for one in ask(hosts, jobs).jobs]
    asked = having(ask(hosts, jobs, rates=speeds), jobs=tuple(starting))
    verdict = GANDIVA_FAIR.decide(asked, calm.memory)
    assert (verdict.trades, verdict.base) == (calm.trades, calm.base)
    assert not any(one.undone for one in verdict.news)
    rooted = having(asked, jobs=tuple(replace(one, rooted=not one.movable) for one in starting))
    assert GANDIVA_FAIR.decide(rooted, calm.memory).base != calm.base, (
        "what is there for good asks for no other pool"
    )


def test_a_class_nobody_has_measured_on_an_idle_newer_model_sends_one_job_there_to_find_out() -> None:
    hosts = [host("v", 4), host("k", 4, "K80")]
    jobs = at("k", *sweep(1, 2, "A", started=True, running=True))
    known = rates(A={"K80": 1.0})
    assert list(moves(decide(hosts, jobs, rates=known)).values()) == [MoveReason.POOL]
    for faster, told in ((2.5, "gets 2.50 times as much done"), (70.0, "gets many times as much done")):
        planned = decide(hosts, jobs, rates=rates(A={"K80": 1.0, "V100": faster})).plan.moves
        assert planned
        assert all(told in text for _, text in planned.values()), planned
    here = [
        *at("v", *sweep(1, 1, "A", started=True, running=True)),
        *at("k", *sweep(2, 1, "A", started=True, running=True)),
    ]
    assert not moves(decide(hosts, here, rates=known)), "one is enough"


@pytest.mark.parametrize(("tickets", "goes"), [(150, True), (100, True), (99, False)])
def test_who_has_some_turns_of_a_newer_model_finds_out_about_it_though_its_job_is_wider_than_its_share(
    tickets: int, goes: bool
) -> None:
    """Every other turn at least: as long as nobody knows how fast it is there, its only job would stay on old GPUs."""
    hosts = [host("v"), host("k", 4, "K80")]
    known = {**rates(B={"V100": 1.0, "K80": 1.0}), ("A/x", "K80"): 1.0}
    jobs = [*at("k", job(1, "A", 4, job_class="A/x", started=True)), *at("v", *sweep(2, 8, "B"))]
    found = decide(hosts, jobs, rates=known, tickets={"A": tickets, "B": 100})
    assert (JobId(1) in found.plan.moves) is goes


@pytest.mark.parametrize("share", [4, 0])
def test_classes_find_out_one_after_the_other_about_a_newer_model_that_their_user_has_a_share_of(
    share: int,
) -> None:
    """Its other jobs have those GPUs, and came first; to whoever has no share of them it is nothing."""
    hosts = [host("v", share or 4), host("k", 8, "K80")]
    known = {**rates(A={"V100": 1.2, "K80": 1.0}), ("y", "K80"): 1.0, ("w", "K80"): 1.0}
    first = [*at("v", *sweep(1, 4, "A")), *at("k", *sweep(5, 4, "A"))]
    new = [*at("k", *sweep(9, 3, "A", of="y")), *at("k", *sweep(12, 2, "A", of="w"))]
    if not share:
        first = [replace(one, gpu_types=("K80",)) for one in at("k", *sweep(1, 8, "A"))]
        new = [*at("k", *sweep(9, 3, "B", of="y")), *at("v", *sweep(20, 4, "C", of="C/x"))]
    tickets = None if share else {"B": 1, "C": 10_000}
    world = run(hosts, [*first, *new], rates=known, tickets=tickets)
    verdict = world.step()
    if not share:
        assert not any(job_id in range(9, 12) for job_id in verdict.plan.moves)
        return
    ((scout, (reason, text)),) = verdict.plan.moves.items()
    assert scout in range(9, 14)
    assert (reason, text) == (
        MoveReason.POOL,
        "nobody knows how fast its class is on V100; it goes there to find out",
    )
    world.go(30)
    assert len(world.moved) == 1, "until that one is measured"
    found = "w" if scout >= 12 else "y"
    world.change(rates={**known, (found, "V100"): 5.0})
    world.go(5)
    assert {"y", "w"} == {job.job_class for job in world.asked.jobs if job.hosts == ("v",)} - {"A/x"}
